"""Chains of launches: what leaves, what merges, how often that is looked for, and what is counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sessions import doing_first
from sparse_layers import sparse_layer
from strategies import networks_with_inputs

from sparsenn import backends
from sparsenn.backends import oracle
from sparsenn.backends.chains import SparseProblem
from sparsenn.backends.stepwise import DEPTH, Stepwise, scatters
from sparsenn.formats import CSR, from_dense

KERNELS = [
    (entry.device, entry)
    for device in ("reference", "cpu")
    for entry in backends.kernels("spmspm", device)
    if entry.prepare is None
]
PANEL = backends.kernel_named("spmspm", "panel", "cpu")


def chain_of(device, kernel, layers, rows, *, droppable_from=0, deduplicate=True, adaptive=True):
    backend = backends.backend_for(device)
    stack = backend.prepare(layers, [np.ones(layer.outputs, np.int64) for layer in layers])
    return Stepwise(backend, kernel, stack, layers, SparseProblem(rows, "csr", droppable_from, deduplicate), adaptive)


def spread(left, rows):
    features = left.features.to_scipy().toarray() if isinstance(left.features, CSR) else left.features
    assert left.inputs == rows
    return left.row_map.scatter(features)


def diagonal(value, bias):
    return sparse_layer(value * np.eye(4), bias)


class Watched:
    def __init__(self, kernel):
        self.spans = []
        self.kernel = doing_first(lambda step: self.spans.append((step.first, step.last)))(kernel)


@pytest.mark.parametrize(("device", "kernel"), KERNELS, ids=lambda value: getattr(value, "name", value))
@given(problem=networks_with_inputs(), deduplicate=st.booleans(), repeats=st.integers(1, 2))
def test_every_input_gets_its_row(device, kernel, problem, deduplicate, repeats):
    network, inputs = problem
    layers = tuple(network)
    backend = backends.backend_for(device)
    rows = inputs.shape[0]
    chain = chain_of(device, kernel, layers, rows, droppable_from=len(layers), deduplicate=deduplicate)
    expected = oracle.run(network, inputs).toarray()
    for _ in range(repeats):
        left = chain.run(backend.place(inputs), True)
        np.testing.assert_allclose(spread(left, rows), expected, rtol=1e-3, atol=1e-4)
    counts = chain.counts()
    assert len(counts) == len(layers)
    if not deduplicate:
        assert all(counted.distinct is None for counted in counts)


def test_rows_leave_and_merge_and_all_inputs_are_counted():
    rows = np.array([[40, 0, 0, 0], [1, 0, 0, 0], [40, 0, 0, 0], [40, 40, 0, 0]], np.float32)
    layers = [diagonal(1, -1.0)] * 14
    chain = chain_of("cpu", PANEL, layers, 4)
    left = chain.run(rows, True)
    owner = left.row_map.rows.tolist()
    assert owner[1] == -1
    assert left.features.shape[0] == 2
    assert owner[0] == owner[2] != owner[3]
    assert spread(left, 4)[:, :2].tolist() == [[26, 0], [0, 0], [26, 0], [26, 26]]
    counts = chain.counts()
    assert [counted.active_inputs for counted in counts] == [3] * 14
    assert [counted.nonzeros for counted in counts] == [4] * 14
    assert [counts[0].rows, counts[DEPTH - 1].distinct, counts[DEPTH].rows] == [4, 2, 2]


def test_inputs_that_stand_for_many_are_counted_as_that():
    chain = chain_of("cpu", PANEL, [diagonal(1, 0.0)] * 2, 2)
    chain.run(np.eye(2, 4, dtype=np.float32), True, np.array([3, 5]))
    assert [counted.active_inputs for counted in chain.counts()] == [8, 8]


def test_nothing_is_computed_once_all_rows_are_gone():
    watched = Watched(PANEL)
    chain = chain_of("cpu", watched.kernel, [diagonal(1, -1.0)] * 30, 3)
    left = chain.run(np.ones((3, 4), np.float32), True)
    assert watched.spans == [(0, DEPTH)]
    assert spread(left, 3).tolist() == [[0] * 4] * 3
    assert [counted.rows for counted in chain.counts()][:2] == [3, 0]
    assert [counted.distinct for counted in chain.counts()][-1] == 0
    assert len(chain.counts()) == 30


@pytest.mark.parametrize(("device", "kernel"), KERNELS, ids=lambda each: getattr(each, "name", each))
def test_rows_may_all_be_zeros_before_equal_ones_are_grouped(device, kernel):
    layers = [diagonal(1, -1.0)] * (DEPTH + 2)
    left = chain_of(device, kernel, layers, 3, adaptive=False).run(np.ones((3, 4), np.float32), False)
    assert spread(left, 3).tolist() == [[0] * 4] * 3


def test_rows_that_come_to_life_again_are_computed():
    layers = [diagonal(1, -1.0), diagonal(1, 2.0), diagonal(1, 0.0)]
    chain = chain_of("cpu", PANEL, layers, 2, droppable_from=2)
    assert spread(chain.run(np.zeros((2, 4), np.float32), False), 2).tolist() == [[2] * 4] * 2


@pytest.mark.parametrize("problem", [{"deduplicate": False, "droppable_from": 99}, {}])
def test_looking_ends_where_nothing_goes(problem, rng):
    watched = Watched(PANEL)
    chain = chain_of("cpu", watched.kernel, [diagonal(1, 0.0)] * 60, 50, **problem)
    chain.run(rng.random((50, 4)).astype(np.float32), True)
    assert watched.spans == ([(0, DEPTH), (DEPTH, 60)] if not problem else [(0, 60)])


def test_looks_come_less_often_where_few_rows_go():
    """One row of a hundred dies every fourth layer."""
    rows = np.zeros((100, 4), np.float32)
    rows[:, 0] = 4 * np.arange(100) + 1.5
    watched = Watched(PANEL)
    chain = chain_of("cpu", watched.kernel, [diagonal(1, -1.0)] * 60, 100)
    chain.run(rows, True)
    assert watched.spans == [(0, 6), (6, 18), (18, 42), (42, 60)]


def test_kernels_of_one_layer_a_launch_look_after_each_at_first():
    watched = Watched(backends.kernel_named("spmspm", "scatter", "cpu"))
    rows = np.ones((8, 4), np.float32)
    chain = chain_of("cpu", watched.kernel, [diagonal(1, 0.0)] * 10, 8)
    chain.run(rows, True)
    assert watched.spans == [(number, number + 1) for number in range(10)]
    looked = [counted.distinct for counted in chain.counts()]
    assert looked == [1, 1, None, 1, None, None, None, 1, None, None]


def test_progress_is_told_of_layers():
    told = []
    chain_of("cpu", PANEL, [diagonal(1, -1.0)] * 20, 3).run(np.ones((3, 4), np.float32), True, None, told.append)
    assert told == [6, 20]


def band(width):
    """A layer of 400 outputs, each of up to so many neighbouring inputs."""
    weights = np.tri(400, k=0, dtype=np.float32) - np.tri(400, k=-width, dtype=np.float32)
    return sparse_layer(weights)


def test_scattering_pays_for_few_nonzeros_of_csr():
    wide = sparse_layer(np.ones((400, 400)))
    rows = np.zeros((3000, 400), np.float32)
    rows[:, 7] = 1
    assert scatters(wide, from_dense(rows))
    assert not scatters(wide, from_dense(np.ones_like(rows)))
    assert scatters(band(16), from_dense(rows))
    assert not scatters(band(16), from_dense(np.ones_like(rows)))
    assert not scatters(wide, rows)  # dense rows are gathered
