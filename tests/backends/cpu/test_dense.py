"""Stacks of dense layers: tiles, blocks of rows, threads, the order of sums, and estimates."""

from itertools import pairwise

import numpy as np
import pytest
from fused import bits, in_order
from hypothesis import given
from hypothesis import strategies as st
from sparse_layers import sparse_layer
from strategies import linear_layers, seeds

from sparsenn import Session
from sparsenn.backends.cpu import CPUBackend, dense
from sparsenn.backends.cpu.dense import DEPTH, launch, prepare, seconds
from sparsenn.backends.cpu.panel import panel_seconds
from sparsenn.backends.cpu.processor import processor_of
from sparsenn.backends.cpu.tiles import TALL, TILE
from sparsenn.backends.oracle.dense import forward
from sparsenn.formats import from_dense
from sparsenn.layers import Linear, ReLU
from sparsenn.network import Network


@st.composite
def stacks(draw):
    widths = draw(st.lists(st.integers(1, 30), min_size=2, max_size=6))
    layers = [draw(linear_layers(*pair)) for pair in pairwise(widths)]
    rng = np.random.default_rng(draw(seeds))
    return layers, rng.normal(size=(draw(st.integers(0, 50)), widths[0])).astype(np.float32)


@given(problem=stacks(), block=st.sampled_from([1, 7, 1000]), threads=st.sampled_from([1, 2, 40]))
def test_blocks_and_threads_change_no_bit_of_what_float64_gives(problem, block, threads):
    layers, rows = problem
    stack = prepare(layers)
    plain = launch(stack, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "CACHE_BYTES", 4 * stack.widest * block)
        patch.setattr(dense, "THREAD_WORK", 1)
        patch.setattr(dense, "thread_count", lambda: threads)
        found = launch(stack, rows)
    assert (found.dtype, found.shape) == (np.float32, (rows.shape[0], layers[-1].outputs))
    assert np.array_equal(bits(found), bits(plain))
    expected, size = forward(layers, rows), 1.0
    for layer in layers:
        size = size * np.abs(layer.weights).sum(axis=0).max(initial=1.0) + 1
    assert np.abs(found - expected).max(initial=0.0) <= 1e-5 * size * max(1.0, np.abs(rows).max(initial=0.0))


@pytest.mark.parametrize(
    ("width", "rows", "shared"),
    [(512, 1, False), (256, 16, False), (1024, 4, False), (1024, 8, True), (512, 64, True), (2048, 1, True)],
)
def test_threads_share_what_takes_each_longer_than_waking_it(width, rows, shared, rng, monkeypatch):
    given = []

    def alone(function, items):
        given.append(len(items))
        return list(map(function, items))

    monkeypatch.setattr(dense, "map_threads", alone)
    monkeypatch.setattr(dense, "thread_count", lambda: 2)
    monkeypatch.setattr(dense, "THREAD_WORK", 2_400_000)  # of processors with a unit of 16 numbers
    layers = [Linear(rng.random((width, width), np.float32), None, ReLU()) for _ in range(2)]
    launch(layers, rng.random((rows, width), np.float32))
    assert (max(given, default=0) > 1) == shared


@pytest.mark.parametrize("rows", [1, 2, TALL - 1, TALL, TALL + 1, 2 * TALL + 3])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, TILE), (7, TILE + 1), (DEPTH + 3, 3), (2 * DEPTH, 2 * TILE)])
def test_sums_are_in_order(rows, inputs, outputs, rng):
    weights = rng.normal(size=(inputs, outputs)).astype(np.float32)
    given_rows, bias = rng.normal(size=(rows, inputs)).astype(np.float32), rng.normal(size=outputs).astype(np.float32)
    sparse = sparse_layer(weights, bias)
    found = launch([Linear(weights, bias, ReLU())], given_rows)
    assert np.array_equal(bits(found + 0.0), bits(in_order([sparse], given_rows)))


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize(("density", "dense_is_faster"), [(0.02, False), (0.6, True), (1.0, True)])
def test_estimates_choose_by_density(threads, density, dense_is_faster):
    machine, rng = processor_of("here", threads), np.random.default_rng(0)
    for width in (128, 512):
        weights = rng.random((width, width)) + 1
        weights[rng.random((width, width)) >= density] = 0
        sparse = [sparse_layer(weights)] * 4
        faster = seconds(machine, [Linear(weights)] * 4, 10_000) < panel_seconds(machine, sparse, 10_000)
        assert faster == dense_is_faster


# ---- CSR rows ----------------------------------------------------------------------------------------------------


@given(problem=stacks(), density=st.sampled_from([0.0, 0.05, 0.5]), iso=st.booleans(), threads=st.sampled_from([1, 40]))
def test_entries_alone_give_the_bits_of_dense_rows(problem, density, iso, threads):
    layers, rows = problem
    kept = np.random.default_rng(0).random(rows.shape) < density
    rows = np.where(kept, np.float32(0.3) if iso else rows, np.float32(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "MOST_DENSITY", 1.0)
        patch.setattr(dense, "THREAD_WORK", 1 if threads > 1 else 1 << 60)
        patch.setattr(dense, "thread_count", lambda: threads)
        found = launch(layers, from_dense(rows))
        patch.setattr(dense, "MOST_DENSITY", -1.0)
        filled = launch(layers, from_dense(rows))
    assert np.array_equal(bits(found), bits(filled))
    assert np.array_equal(bits(found), bits(launch(layers, rows)))


def test_sparse_rows_are_never_made_dense(rng, monkeypatch):
    monkeypatch.setattr(dense, "sparse_to_dense", None)
    weights, rows = rng.standard_normal((5000, 20)), (rng.random((30, 5000)) < 0.001).astype(np.float32)
    session = Session(Network((Linear(weights, 0.5, ReLU()),)), device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(CPUBackend, "as_dense", None)
        result = session.run(from_dense(rows))
    assert np.array_equal(bits(result.dense), bits(launch([Linear(weights, 0.5, ReLU())], rows)))
    assert result.statistics[0].performed_edges == np.count_nonzero(rows) * 20
    sparse, full = (session.plan(each).estimate for each in (from_dense(rows), rows))
    assert sparse < full / 2


def test_estimates_of_csr_rows_grow_with_their_entries():
    layers, machine = [Linear(np.ones((20_000, 50)), None, ReLU())], processor_of("a processor", 2)
    estimates = [seconds(machine, layers, 300, density=share) for share in (0.0, 1e-3, 1e-2, 1e-1)]
    assert sorted(estimates) == estimates
    assert seconds(machine, layers, 300, density=0.5) >= seconds(machine, layers, 300)
