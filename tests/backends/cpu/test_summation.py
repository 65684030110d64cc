"""One order of summation: bits do not depend on the kernel, the rows at a time, lanes, chunks, form or density."""

import fractions
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from fused import bits, fused_multiply_add, in_order
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csc_array
from sparse_layers import sparse_layer
from strategies import activations, csc_matrices, seeds

from sparsenn import Network, Session
from sparsenn.backends import StepInput, backend_for
from sparsenn.backends.cpu import panel
from sparsenn.backends.cpu.panel import PANEL, launch_panel
from sparsenn.backends.cpu.row_by_row import GATHERED_ROWS, ROWS
from sparsenn.formats import CSC, from_dense
from sparsenn.layers import Identity, Linear, ReLU, SparseLinear
from sparsenn.runtime.workers import thread_count


def prepared(layers):
    return backend_for("cpu").prepare(layers, [np.ones(layer.outputs, np.int64) for layer in layers])


def rows_of(output, count):
    """Return a launch's rows in the order of its inputs; none may be missing."""
    assert output.features.shape[0] == count
    return output.row_map.scatter(output.features)


@contextmanager
def threads_with(panels, chunk_work):
    """Threads take panels, up to so much work at a time; or share the layers of each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panel, "_is_shared", lambda *_: not panels)
        patch.setattr(panel, "CHUNK_WORK", chunk_work)
        yield


@st.composite
def problems(draw):
    """Up to three layers with any real weights and biases, also -0.0, and rows for them, of any density."""
    widths = draw(st.lists(st.integers(1, 40), min_size=2, max_size=4))
    rng = np.random.default_rng(draw(seeds))
    layers = []
    for inputs, outputs in pairwise(widths):
        bias = draw(st.sampled_from([None, -0.0, 0.3, "vector"]))
        vector = rng.normal(size=outputs).astype(np.float32) if bias == "vector" else bias
        kind = draw(st.sampled_from([ReLU(), ReLU(clip=1.0), Identity()]))
        layers.append(SparseLinear(draw(csc_matrices((inputs, outputs))), vector, kind))
    count, density = draw(st.integers(1, 40)), draw(st.sampled_from([0.02, 0.3, 1.0]))
    rows = rng.normal(size=(count, widths[0])) * (rng.random((count, widths[0])) < density)
    return layers, rows.astype(np.float32)


@given(problem=problems(), panels=st.booleans(), chunk_work=st.sampled_from([1, 1 << 23]))
def test_all_kernels_give_the_bits_of_sums_in_order(problem, panels, chunk_work):
    layers, rows = problem
    stack, count = prepared(layers), rows.shape[0]
    expected = bits(in_order(layers, rows))
    for features in (rows, from_dense(rows)):
        for scatter in (False, True):
            step = StepInput(stack, 0, len(layers), features, np.ones(count, np.int64), len(layers), scatter)
            with threads_with(panels, chunk_work):
                assert np.array_equal(bits(rows_of(launch_panel(step), count) + 0.0), expected)
        for kernel in (ROWS, GATHERED_ROWS):
            assert np.array_equal(bits(rows_of(kernel.launch(step), count) + 0.0), expected)


@pytest.mark.parametrize("density", [0.01, 0.4])
def test_rows_that_are_scattered_give_the_bits_of_sums_in_order(density, rng):
    matrix = rng.normal(size=(200, 70)) * (rng.random((200, 70)) < density)
    layer = sparse_layer(matrix, 0.25)
    rows = (rng.normal(size=(45, 400)) * (rng.random((45, 400)) < 0.3)).astype(np.float32)[:, ::2]
    step = StepInput(prepared([layer]), 0, 1, rows, np.ones(45, np.int64), 1, True)
    output = launch_panel(step)
    assert np.array_equal(bits(rows_of(output, 45) + 0.0), bits(in_order([layer], rows)))
    degrees = np.count_nonzero(layer.weights.to_scipy().toarray(), axis=1)
    assert output.counts[0].performed_edges == (rows != 0).astype(np.int64).sum(axis=0) @ degrees


@pytest.mark.parametrize("inputs", [40, 256, 300])
@pytest.mark.parametrize("panels", [False, True])
def test_inputs_without_a_weight_do_not_matter(inputs, panels, rng):
    weights = rng.normal(size=(inputs, 21)) * (rng.random((inputs, 21)) < 0.2)
    weights[rng.choice(inputs, inputs // 3, replace=False)] = 0
    layer = sparse_layer(weights, 0.25)
    used = np.flatnonzero(weights.any(axis=1))
    rows = np.full((150, inputs), np.nan, np.float32)
    rows[:, used] = rng.normal(size=(150, used.size))
    with threads_with(panels, 1):
        output = launch_panel(StepInput(prepared([layer]), 0, 1, rows, np.ones(150, np.int64), 1))
    expected = in_order([layer], np.nan_to_num(rows))
    assert np.array_equal(bits(rows_of(output, 150) + 0.0), bits(expected))


@pytest.mark.parametrize("count", [1, 16, 17, 64, 150])
@pytest.mark.parametrize("inputs", [300, 70_000])
@pytest.mark.parametrize("activation", [ReLU(clip=1.0), Identity()])
def test_layers_that_threads_share_give_the_bits_of_sums_in_order(count, inputs, activation, rng):
    each = 200_000 // 120
    places = np.concatenate([np.sort(rng.choice(inputs, min(each, inputs // 2), replace=False)) for _ in range(120)])
    matrix = csc_array((rng.normal(size=places.size), places, np.arange(121) * min(each, inputs // 2)), (inputs, 120))
    layers = [
        SparseLinear(CSC.from_scipy(matrix.astype(np.float32)), 0.1, activation),
        sparse_layer(rng.normal(size=(120, 500)), -0.1, activation),
    ]
    rows = rng.normal(size=(count, inputs)).astype(np.float32)
    with threads_with(False, 1):
        output = launch_panel(StepInput(prepared(layers), 0, 2, rows, np.ones(count, np.int64), 2))
    expected = in_order(layers, rows)
    assert np.array_equal(bits(rows_of(output, count) + 0.0), bits(expected))
    assert output.counts[1].nonzeros == np.count_nonzero(expected)


@pytest.mark.parametrize("degree", [*range(20), 31, 32, 33])
@pytest.mark.parametrize("iso", [False, True])
def test_every_number_of_weights_an_output(degree, iso, rng):
    weights = np.zeros((64, 9), np.float32)
    for column in weights.T:
        chosen = rng.choice(64, degree, replace=False)
        column[chosen] = 0.3 if iso else rng.normal(size=degree)
    layers = [sparse_layer(weights, -0.1, Identity())]
    rows = rng.normal(size=(70, 64)).astype(np.float32)
    output = launch_panel(StepInput(prepared(layers), 0, 1, rows, np.ones(70, np.int64), 1))
    assert np.array_equal(bits(rows_of(output, 70)), bits(in_order(layers, rows)))


@pytest.mark.parametrize("count", [70, 300, 700])
@pytest.mark.parametrize("panels", [False, True])
def test_rows_that_die_leave_every_tile(count, panels, rng):
    layer = sparse_layer(rng.normal(size=(60, 300)), 0.0)
    rows = rng.normal(size=(count, 60)).astype(np.float32) * (rng.random((count, 1)) < 0.5)
    with threads_with(panels, 1):
        output = launch_panel(StepInput(prepared([layer]), 0, 1, rows, np.ones(count, np.int64), 0))
    assert output.features.shape[0] == np.count_nonzero(rows.any(axis=1))
    found = output.row_map.scatter(output.features)
    assert np.array_equal(bits(found + 0.0), bits(in_order([layer], rows)))
    assert output.counts[0].nonzeros == np.count_nonzero(found)


def test_threads_share_panels_where_there_are_fewer_than_threads_that_can_share():
    most = panel.MOST_THREADS * panel.TILE
    assert panel._is_shared(2 * panel.TILE - 1, 1 << 20, 2, False)
    assert not panel._is_shared(2 * panel.TILE, 1 << 20, 2, False)
    assert not panel._is_shared(most, 1 << 20, 64, False)  # a panel each, of fewer rows
    assert panel._panel_rows(most, 64) < panel.TILE
    assert panel._is_shared(10_000, 10, 64, False)  # little work
    assert panel._is_shared(10_000, 1 << 20, 2, True)  # slices of one layer
    assert not panel._is_shared(most, 1 << 20, 64, True)


def test_a_tiny_addend_survives_or_not_in_every_kernel_alike():
    """-1 + 2^-25 + 1 is 0 or not, by the order: a row dies or is a category."""
    weights = np.full((40, 200), -1, np.float32)
    weights[:, 0] = 0
    weights[0, 0], weights[1, 0] = 1, 2.0**-25
    layers = [sparse_layer(weights, -1.0)]
    rows = np.zeros((64, 40), np.float32)
    rows[0, :2], rows[1:, 2:] = 1, 1
    stack = prepared(layers)
    found = []
    for count in (1, 64):
        for features in (rows[:count], from_dense(rows[:count])):
            for kernel, scatter in ((PANEL, False), (PANEL, True), (ROWS, False), (GATHERED_ROWS, False)):
                output = kernel.launch(StepInput(stack, 0, 1, features, np.ones(count, np.int64), 1, scatter))
                found.append(float(output.row_map.scatter(output.features)[0, 0]))
    assert set(found) == {0.0}


@given(seed=seeds)
def test_the_emulated_operation_rounds_once(seed):
    """Against fractions, which are exact, and float's rounding of them, which is right."""
    rng = np.random.default_rng(seed)
    numbers = (rng.normal(size=(3, 30)) * 2.0 ** rng.integers(-20, 20, (3, 30))).astype(np.float32)
    found = fused_multiply_add(*numbers)
    for weight, value, added, result in zip(*numbers.tolist(), found.tolist(), strict=True):
        exact = fractions.Fraction(weight) * fractions.Fraction(value) + fractions.Fraction(added)
        near = [np.float32(result), np.nextafter(np.float32(result), np.float32(np.inf))]
        near.append(np.nextafter(np.float32(result), np.float32(-np.inf)))
        gaps = [abs(fractions.Fraction(float(number)) - exact) for number in near]
        assert gaps[0] == min(gaps)


@given(activation=activations(), rows=st.sampled_from([1, 5, 40]))
@pytest.mark.parametrize("kernel", ["panel", "rows", "gathered_rows", "scatter", "sequential", None], ids=str)
def test_infinite_sums_become_the_limits_of_activations(kernel, activation, rows):
    """Without a kernel, that of dense layers."""
    weights = np.float32([[3e38, -3e38], [3e38, -3e38]])
    layer = SparseLinear.from_scipy(csc_array(weights), 0.0, activation) if kernel else Linear(weights, 0.0, activation)
    found = Session(Network((layer,)), device="cpu", kernel=kernel or "auto")(np.ones((rows, 2), np.float32))
    assert np.array_equal(found, np.tile(activation(np.float32([np.inf, -np.inf])), (rows, 1)))


@pytest.mark.skipif(thread_count() < 2, reason="one thread computes slices one after the other")
def test_slices_at_tiles_of_unequal_lanes_do_not_meet(rng):
    dense = (rng.normal(size=(64, 512)) * (rng.random((64, 512)) < 0.5)).astype(np.float32)
    network = Network((sparse_layer(dense),))
    features = rng.normal(size=(176, 64)).astype(np.float32)
    alone, shared = (Session(network, device="cpu", kernel=kernel) for kernel in ("rows", "panel"))
    expected = alone(features)
    assert all(np.array_equal(shared(features), expected) for _ in range(1000))
