"""Rows by themselves through all layers."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparse_layers import sparse_layer
from strategies import networks_with_inputs

from sparsenn.backends import StepInput, backend_for
from sparsenn.backends.chains import SAME_ROWS, SparseProblem
from sparsenn.backends.cpu import row_by_row, row_threads
from sparsenn.backends.cpu import stack as stack_module
from sparsenn.backends.cpu.panel import PANEL
from sparsenn.backends.cpu.processor import processor_of
from sparsenn.backends.cpu.row_by_row import GATHERED_ROWS, ROWS, rows_seconds
from sparsenn.errors import ShapeError
from sparsenn.layers import ReLU, Sigmoid, Tanh


def prepared(network, copies=1):
    layers = tuple(network)
    return layers, backend_for("cpu").prepare(layers, [np.full(layer.outputs, copies, np.int64) for layer in layers])


@given(problem=networks_with_inputs(), copies=st.integers(1, 3), drop=st.booleans(), shared=st.booleans())
def test_chains_count_as_panels_do(problem, copies, drop, shared):
    network, inputs = problem
    layers, stack = prepared(network, copies)
    count = inputs.shape[0]
    reviving = [number for number, layer in enumerate(layers) if not layer.keeps_zero_rows]
    droppable_from = max(reviving, default=0) if drop else len(layers)
    dense = inputs.to_scipy().toarray()
    with pytest.MonkeyPatch.context() as patch:
        if shared:
            patch.setattr(row_by_row, "SHARED_EDGES", 1)
        for features in (inputs, dense):
            step = StepInput(stack, 0, len(layers), features, np.arange(1, count + 1), droppable_from)
            found, expected, gathered = (kernel.launch(step) for kernel in (ROWS, PANEL, GATHERED_ROWS))
            for output in (found, gathered):
                rows, right = (each.row_map.scatter(each.features) for each in (output, expected))
                np.testing.assert_allclose(rows, right, rtol=1e-5, atol=1e-6)
            for mine, panel, other in zip(found.counts, expected.counts, gathered.counts, strict=True):
                assert (mine.kernel, other.kernel) == ("rows", "gathered_rows")
                assert mine[1:4] == other[1:4]
                assert (mine.active_inputs, mine.nonzeros) == (panel.active_inputs, panel.nonzeros)
                assert mine.rows <= panel.rows <= 4 * mine.rows / 3  # a panel keeps dead rows until a quarter has died
                assert mine.performed_edges <= panel.performed_edges


@given(problem=networks_with_inputs(), counting=st.booleans())
def test_chains_give_every_row_and_can_run_again(problem, counting):
    network, inputs = problem
    layers, stack = prepared(network)
    chain = ROWS.prepare(stack, SparseProblem(max(1, inputs.shape[0]), "csr", len(layers), True))
    dense = inputs.to_scipy().toarray()
    first = chain.run(dense, counting)
    assert first.row_map is SAME_ROWS
    assert len(chain.counts()) == (len(layers) if counting else 0)
    kept = first.features.copy()
    assert np.array_equal(chain.run(inputs, counting).features, kept)
    half = inputs.shape[0] // 2
    assert np.array_equal(chain.run(dense[:half], False).features, kept[:half])


def test_dead_rows_are_zeros_and_cost_nothing_further():
    _, stack = prepared([sparse_layer(np.eye(3), -1.0)] * 4)
    chain = ROWS.prepare(stack, SparseProblem(2, "dense", 1, False))
    left = chain.run(np.array([[9, 9, 9], [1, 1, 1]], np.float32), True)
    assert left.features.tolist() == [[5, 5, 5], [0, 0, 0]]
    assert [counts.rows for counts in chain.counts()] == [2, 2, 1, 1]
    assert [counts.performed_edges for counts in chain.counts()] == [6, 3, 3, 3]


def test_more_or_other_rows_than_the_chain_was_made_for_are_refused():
    _, stack = prepared([sparse_layer(np.eye(3))])
    chain = ROWS.prepare(stack, SparseProblem(2, "dense", 1, False))
    for shape in ((3, 3), (2, 4)):
        with pytest.raises(ShapeError, match="up to 2 rows of 3"):
            chain.run(np.ones(shape, np.float32), False)


def test_estimates_prefer_rows_for_one_and_panels_for_many():
    rng = np.random.default_rng(0)
    for width, density, few in ((100, 0.05, 8), (1000, 0.03, 1)):  # of wide panels, threads share more than of rows
        dense = rng.normal(size=(width, width)) * (rng.random((width, width)) < density)
        layers = [sparse_layer(dense)] * 6
        for threads in (1, 2, 8):
            machine = processor_of("here", threads)
            if threads <= few:
                assert rows_seconds(machine, layers, 1) < PANEL.seconds(machine, layers, 1)
            assert rows_seconds(machine, layers, 5000) > PANEL.seconds(machine, layers, 5000)


def connected(rng, inputs, outputs, density, activation):
    dense = rng.normal(size=(inputs, outputs)) * (rng.random((inputs, outputs)) < density)
    return sparse_layer(dense, rng.normal(), activation)


@pytest.mark.parametrize("density", [0.004, 0.02, 0.3, 0.9])
@pytest.mark.parametrize("outputs", [1, 127, 129, 300, 1000])
def test_slices_have_the_bits_of_panels(density, outputs):
    rng = np.random.default_rng(outputs)
    layers, stack = prepared(
        [connected(rng, 200, outputs, density, ReLU()), connected(rng, outputs, 40, 0.5, Sigmoid())]
    )
    rows = rng.normal(size=(3, 200)).astype(np.float32)
    step = StepInput(stack, 0, len(layers), rows, np.ones(3, np.int64), len(layers))
    expected = PANEL.launch(step)
    for kernel in (ROWS, GATHERED_ROWS):
        found = kernel.launch(step)
        assert np.array_equal(found.features, expected.row_map.scatter(expected.features))
        assert found.counts[0].performed_edges == expected.counts[0].performed_edges


@pytest.mark.parametrize("activation", [ReLU(), Tanh()])
@pytest.mark.parametrize("density", [0.02, 0.5])
@pytest.mark.parametrize("kernel", [ROWS, GATHERED_ROWS], ids=lambda kernel: kernel.name)
def test_a_few_rows_together_have_the_bits_of_single_ones(activation, density, kernel):
    rng = np.random.default_rng(1)
    layers, stack = prepared([connected(rng, 150, 150, density, activation) for _ in range(3)])
    chain = kernel.prepare(stack, SparseProblem(8, "dense", len(layers), False))
    rows = rng.normal(size=(8, 150)).astype(np.float32) * (rng.random((8, 150)) < 0.6)
    rows[2] = 0
    single = np.concatenate([chain.run(row[None], False).features for row in rows])
    for count in range(1, 9):
        assert np.array_equal(chain.run(rows[:count], False).features, single[:count])


@pytest.mark.parametrize("density", [0.05, 0.5])
def test_threads_share_a_row_without_changing_a_bit(monkeypatch, density):
    monkeypatch.setattr(stack_module, "thread_count", lambda: 3)
    monkeypatch.setattr(row_threads, "thread_count", lambda: 3)
    monkeypatch.setattr(row_threads, "_process", own := row_threads._RowThreads())
    rng = np.random.default_rng(0)
    _, stack = prepared([connected(rng, 1000, 1000, density, Tanh()) for _ in range(4)])
    rows = rng.normal(size=(50, 1000)).astype(np.float32)
    chains = [ROWS.prepare(stack, SparseProblem(1, "dense", 4, False)) for _ in range(4)]
    assert stack.slices.is_split

    def run(chain):
        return np.concatenate([chain.run(row[None], False).features for row in rows])

    try:
        with ThreadPoolExecutor(4) as pool:  # one of them has the workers at a time
            found = list(pool.map(run, chains))
        assert len(own._threads) == 2
        assert all(thread.is_alive() for thread in own._threads)
    finally:
        own.end()
    assert not own._threads
    monkeypatch.setattr(row_by_row, "row_threads", lambda: row_threads.NO_THREADS)
    alone = run(chains[0])
    assert all(np.array_equal(each, alone) for each in found)


def test_a_forked_child_starts_workers_of_its_own():
    rng = np.random.default_rng(0)
    _, stack = prepared([connected(rng, 1000, 1000, 0.5, ReLU())])
    chain = ROWS.prepare(stack, SparseProblem(1, "dense", 1, False))
    row = rng.normal(size=(1, 1000)).astype(np.float32)
    expected = chain.run(row, False).features
    child = os.fork()
    if not child:
        os._exit(not np.array_equal(chain.run(row, False).features, expected))
    assert os.waitpid(child, 0)[1] == 0
