"""What a run gives: every kernel and every switch against the float64 reference."""

import sys
import time

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import assert_close
from sessions import SWITCHES, altered, doing_first
from sparse_layers import sparse_layer as layer
from strategies import networks_with_inputs

from sparsenn import backends, infer
from sparsenn.engine import Session
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.formats import from_dense
from sparsenn.layers import Identity, Linear, ReLU, Sigmoid, Tanh
from sparsenn.network import Network
from sparsenn.structure.merging import merge_equal_outputs

KERNELS = ["auto", *(entry.name for entry in backends.kernels("spmspm", "cpu"))]


@given(networks_with_inputs(), st.sampled_from(KERNELS), st.sampled_from(SWITCHES), st.sampled_from([None, 1, 7]))
def test_any_network_equals_the_reference(problem, kernel, switches, batch_size):
    network, inputs = problem
    result = infer(network, inputs, kernel=kernel, batch_size=batch_size, **switches)
    assert_close(result.outputs, network, inputs)
    rows = np.flatnonzero(np.diff(result.outputs.indptr))
    assert np.array_equal(result.categories, rows)


def test_equal_rows_are_computed_once(rng):
    network = Network(tuple(layer(rng.normal(size=(12, 12)), 0.1) for _ in range(20)))
    inputs = from_dense(np.repeat(rng.random((2, 12)), 500, axis=0))
    once, each = (infer(network, inputs, kernel="panel", deduplication=flag) for flag in (True, False))
    assert [once.statistics[number].rows for number in (0, -1)] == [1000, 2]
    assert each.statistics[-1].rows == 1000
    assert {layer.distinct_rows for layer in once.statistics} == {2, None}
    assert {layer.distinct_rows for layer in each.statistics} == {None}
    assert np.array_equal(once.outputs.to_scipy().toarray(), each.outputs.to_scipy().toarray())


@pytest.mark.parametrize("activation", [ReLU(), ReLU(clip=2.0), Sigmoid(), Tanh(), Identity()], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_extreme_values_stay_what_they_are(activation, kernel):
    network = Network((layer(np.eye(5), None, activation),))
    inputs = from_dense(np.array([[0.0, 1e-30, 88.0, -1e4, 3e38]], dtype=np.float32))
    outputs = infer(network, inputs, kernel=kernel).outputs.to_scipy().toarray()
    expected = activation(inputs.to_scipy().toarray().astype(np.float64))
    np.testing.assert_allclose(outputs, expected, rtol=1e-6, atol=1e-44)


@pytest.mark.parametrize("kernel", KERNELS)
def test_overflow_is_not_hidden(kernel):
    network = Network((layer([[3e38], [3e38]]), layer([[-1.0]], None, Identity())))
    result = infer(network, from_dense(np.ones((1, 2))), kernel=kernel)
    assert result.outputs.to_scipy().toarray() == -np.inf


@pytest.mark.parametrize("kernel", KERNELS)
def test_results_outlive_the_next_run(rng, kernel):
    session = Session(Network((layer(rng.random((8, 8))),)), kernel=kernel, device="cpu")
    inputs, others = (from_dense(rng.random((50, 8))) for _ in range(2))
    result, outputs = session.run(inputs), session(inputs, form="dense")
    before = outputs.copy()
    session.run(others)
    session(others)
    assert np.array_equal(result.dense, before)
    assert np.array_equal(outputs, before)


def test_progress_counts_layers_over_batches_and_ends_complete(rng):
    network = Network(tuple(layer(rng.random((6, 6))) for _ in range(5)))
    seen = []
    infer(network, from_dense(rng.random((10, 6))), batch_size=4, progress=lambda *state: seen.append(state))
    assert {state[0] for state in seen} == {"layers"}
    assert [state[1] for state in seen] == sorted(state[1] for state in seen)
    assert seen[-1] == ("layers", 15, 15)


def test_progress_completes_when_all_rows_die():
    network = Network(tuple(layer(-np.eye(3)) for _ in range(30)))
    seen = []
    result = infer(network, from_dense(np.eye(3)), kernel="panel", progress=lambda *state: seen.append(state[1]))
    assert seen[-1] == 30
    assert [statistics.rows for statistics in result.statistics][-1] == 0


@pytest.mark.parametrize("merging", [True, False])
def test_rows_that_all_die_early_still_have_the_last_width(merging):
    network = Network((layer([[0.0]]), layer([[0.0]]), layer([[0.0, 1.0, 0.0]])))
    outputs = infer(network, from_dense(np.zeros((2, 1))), merging=merging).outputs
    assert outputs.shape == (2, 3)
    assert outputs.nnz == 0


def test_seconds_and_rate_add_up(rng):
    network = Network(tuple(layer(rng.random((30, 30))) for _ in range(4)))
    result = infer(network, from_dense(rng.random((200, 30))))
    seconds = result.seconds
    parts = seconds.plan + seconds.prepare + seconds.transfer + seconds.compile + seconds.compute
    assert min(seconds.plan, seconds.prepare, seconds.transfer, seconds.compute) > 0
    assert result.seconds.total == pytest.approx(parts)
    assert result.edges_per_second == pytest.approx(200 * network.edges / parts)
    assert result.performed_edges == sum(entry.performed_edges for entry in result.statistics)
    assert sum(entry.seconds for entry in result.statistics) <= result.seconds.compute


def test_waiting_for_a_device_counts_as_computing(rng, monkeypatch):
    session = Session(Network((Linear(rng.normal(size=(6, 3)), 0.1, ReLU()),)), device="cpu")
    backend = type(session.backend)
    take_out = backend.take_out

    def slow(self, left, own):
        taken = take_out(self, left, own)
        return lambda: (time.sleep(0.3), taken())[1]

    monkeypatch.setattr(backend, "take_out", slow)
    seconds = session.run(rng.random((5, 6), np.float32), statistics=False).seconds
    assert seconds.compute >= 0.3 > seconds.transfer


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_waiting_for_a_gpu_counts_as_computing(rng, precision, cupy):
    layers = [Linear(rng.normal(size=(1024, 1024)) / 32, 0.1, ReLU()) for _ in range(16)]
    session, rows = Session(Network(tuple(layers)), device="cuda", precision=precision), cupy.ones((20_000, 1024), "f4")
    for _ in range(2):
        seconds = session.run(rows, statistics=False).seconds
    assert seconds.compute > 2 * seconds.transfer


def test_what_numba_compiles_is_told_as_such_once(rng, monkeypatch):
    network = Network((layer(rng.random((30, 30))),))
    inputs = from_dense(rng.random((20, 30)))
    infer(network, inputs, device="cpu", kernel="panel")  # compiles the engine's own functions

    def fresh():
        return numba.njit(lambda number: number + 1)

    def merged(network):
        while_planned(1)
        return merge_equal_outputs(network)

    while_computed, while_planned = fresh(), fresh()
    monkeypatch.setattr(sys.modules[CompiledNetwork.__module__], "merge_equal_outputs", merged)
    change = doing_first(lambda step: while_computed(1))
    session = altered(Network(network.layers), change=change, device="cpu", kernel="panel")
    problem = session.plan(inputs).compiled
    start = time.perf_counter()
    first = session.run(inputs).seconds
    whole = time.perf_counter() - start
    second = session.run(inputs).seconds
    assert 0.001 < problem.compile_seconds <= problem.seconds
    assert first.compile > problem.compile_seconds + 0.001
    assert first.plan >= problem.seconds - problem.compile_seconds
    assert first.inference - problem.seconds <= whole
    assert min(first.compute, second.compute) > 0
    assert second.compile == 0


def test_without_statistics_the_outputs_are_the_same(rng):
    session = Session(Network(tuple(layer(rng.normal(size=(30, 30)), -0.1) for _ in range(9))), device="cpu")
    rows = rng.random((200, 30)).astype(np.float32)
    told, silent = (session.run(rows, statistics=flag) for flag in (True, False))
    assert len(told.statistics) == 9
    assert silent.statistics == ()
    assert np.array_equal(silent.categories, told.categories)
    assert np.array_equal(silent.dense, told.dense)


@pytest.mark.parametrize("batch_size", [None, 7])
@pytest.mark.parametrize("merging", [True, False])
def test_dense_outputs_are_the_sparse_ones(rng, batch_size, merging):
    blocks = np.kron(rng.integers(-4, 5, (6, 6)) / 8, np.ones((5, 5)))
    network = Network((layer(blocks, -0.25), layer(blocks, -0.25)))
    inputs = from_dense(rng.integers(0, 2, (40, 30)) * (rng.random((40, 1)) < 0.5))
    result = infer(network, inputs, device="cpu", batch_size=batch_size, merging=merging)
    assert (result.dense.shape, result.dense.dtype) == ((40, 30), np.float32)
    assert np.array_equal(result.dense, result.outputs.to_scipy().toarray())
    empty = infer(network, from_dense(np.zeros((0, 30))), device="cpu")
    assert empty.dense.shape == empty.outputs.shape == (0, 30)
