"""The engine's answers: every kernel and every switch against the float64 reference."""

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import assert_close
from strategies import networks_with_inputs

from sparsenn import backends
from sparsenn.backends.cpu import CPUBackend
from sparsenn.engine import execute, infer, plan
from sparsenn.errors import ShapeError
from sparsenn.formats import CSC, from_dense
from sparsenn.layers import Identity, ReLU, Sigmoid, SparseLinear, Tanh
from sparsenn.network import Network

KERNELS = ["auto", *(entry.name for entry in backends.kernels("spmspm", "cpu"))]
SWITCHES = [
    dict(zip(("compaction", "deduplication", "merging"), flags, strict=True))
    for flags in itertools.product((True, False), repeat=3)
]


def layer(dense, bias=None, activation=None):
    weights = CSC.from_scipy(from_dense(np.asarray(dense, dtype=np.float32)).to_scipy())
    return SparseLinear(weights, bias, activation or ReLU())


def sixteenths(rng, *shape, density=0.5):
    """Numbers whose sums and products stay exact in float32."""
    return rng.integers(-8, 9, shape) / 16 * (rng.random(shape) < density)


@given(networks_with_inputs(), st.sampled_from(KERNELS), st.sampled_from(SWITCHES), st.sampled_from([None, 1, 7]))
def test_any_network_equals_the_reference(problem, kernel, switches, batch_size):
    network, inputs = problem
    result = infer(network, inputs, kernel=kernel, batch_size=batch_size, **switches)
    assert_close(result.outputs, network, inputs)
    rows = np.flatnonzero(np.diff(result.outputs.indptr))
    assert np.array_equal(result.categories, rows)


@given(networks_with_inputs(max_layers=4, max_rows=20))
def test_the_reference_backend_runs_behind_the_same_engine(problem):
    network, inputs = problem
    assert_close(infer(network, inputs, device="reference").outputs, network, inputs)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_where_sums_are_exact_every_bit_and_every_count_agrees(rng, kernel, switches):
    widths = [30, 17, 40, 1, 25]
    network = Network(
        tuple(layer(sixteenths(rng, *pair), -1 / 16, ReLU(clip=4.0)) for pair in itertools.pairwise(widths))
    )
    inputs = from_dense(np.repeat(sixteenths(rng, 25, 30), 4, axis=0))
    result = infer(network, inputs, kernel=kernel, **switches)
    expected = inputs.to_scipy().astype(np.float64)
    for statistics, part in zip(result.statistics, network, strict=True):
        expected = backends.oracle.forward(part, expected)
        assert statistics.active_rows == np.count_nonzero(np.diff(expected.indptr))
        assert statistics.nonzeros == expected.nnz
    assert np.array_equal(result.outputs.to_scipy().toarray(), expected.toarray())


def test_equal_rows_are_computed_once(rng):
    network = Network(tuple(layer(rng.normal(size=(12, 12)), 0.1) for _ in range(20)))
    inputs = from_dense(np.repeat(rng.random((2, 12)), 500, axis=0))
    once, each = (infer(network, inputs, deduplication=flag) for flag in (True, False))
    assert [once.statistics[number].rows for number in (0, -1)] == [1000, 2]
    assert each.statistics[-1].rows == 1000
    assert once.statistics[-1].distinct_rows == 2
    assert each.statistics[-1].distinct_rows is None
    assert np.array_equal(once.outputs.to_scipy().toarray(), each.outputs.to_scipy().toarray())


def test_dead_rows_are_dropped_only_where_nothing_revives_them(rng):
    dying = layer(-np.eye(6), -1.0)
    reviving = layer(np.eye(6), 0.5)
    inputs = from_dense(rng.random((10, 6)))
    dead = infer(Network((dying, layer(np.eye(6)))), inputs, deduplication=False)
    assert dead.categories.size == 0
    assert dead.statistics[-1].rows == 0
    revived = infer(Network((dying, reviving)), inputs, deduplication=False)
    assert np.array_equal(revived.outputs.to_scipy().toarray(), np.full((10, 6), 0.5))
    assert revived.plan.droppable_from == 1


def test_compaction_can_be_switched_off():
    inputs = from_dense(np.eye(4))
    network = Network((layer(np.diag([1, 1, 0, 0])), layer(np.eye(4))))
    kept, dropped = (infer(network, inputs, compaction=flag, deduplication=False) for flag in (False, True))
    assert kept.statistics[-1].rows == 4
    assert dropped.statistics[-1].active_rows == kept.statistics[-1].active_rows == 2
    assert np.array_equal(dropped.outputs.to_scipy().toarray(), kept.outputs.to_scipy().toarray())


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


def test_runs_repeat_to_the_bit(rng):
    network = Network(tuple(layer(rng.normal(size=(64, 64)) / 8, -0.01) for _ in range(9)))
    inputs = from_dense(rng.random((5000, 64)))
    chosen = plan(network, inputs)
    first, second = (execute(chosen, inputs).outputs for _ in range(2))
    assert first.values.tobytes() == second.values.tobytes()
    assert first.indices.tobytes() == second.indices.tobytes()


def test_results_outlive_the_next_run(rng):
    network = Network((layer(rng.random((8, 8))),))
    inputs = from_dense(rng.random((50, 8)))
    chosen = plan(network, inputs)
    result = execute(chosen, inputs)
    before = result.batches[0].features.copy()
    execute(chosen, from_dense(rng.random((50, 8))))
    assert np.array_equal(result.batches[0].features, before)


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
    result = infer(network, from_dense(np.eye(3)), progress=lambda *state: seen.append(state[1]))
    assert seen[-1] == 30
    assert [statistics.rows for statistics in result.statistics][-1] == 0


@pytest.mark.parametrize("merging", [True, False])
def test_rows_that_all_die_early_still_have_the_last_width(merging):
    network = Network((layer([[0.0]]), layer([[0.0]]), layer([[0.0, 1.0, 0.0]])))
    outputs = infer(network, from_dense(np.zeros((2, 1))), merging=merging).outputs
    assert outputs.shape == (2, 3)
    assert outputs.nnz == 0


def test_inputs_must_be_those_of_the_plan(rng):
    network = Network((layer(np.eye(3)),))
    chosen = plan(network, from_dense(np.eye(3)))
    with pytest.raises(ShapeError, match="the plan is for inputs of shape"):
        execute(chosen, from_dense(rng.random((4, 3))))


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


def test_compiling_is_kept_apart_from_computing(rng):
    class Compiling(CPUBackend):
        spent = 100.0  # before the run

        def compile_seconds(self):
            return self.spent

    network = Network((layer(rng.random((30, 30))),))
    inputs = from_dense(rng.random((20, 30)))
    chosen, backend = plan(network, inputs), Compiling()

    def launch(step):
        start = time.perf_counter()
        time.sleep(0.5)
        backend.spent += time.perf_counter() - start
        return chosen.kernel.launch(step)

    execute(chosen, inputs)  # compiles what is really compiled
    start = time.perf_counter()
    result = execute(replace(chosen, backend=backend, kernels=(replace(chosen.kernel, launch=launch),)), inputs)
    whole = time.perf_counter() - start
    assert result.seconds.compile == pytest.approx(backend.spent - 100)
    assert result.seconds.compile >= 0.5
    assert 0 < result.statistics[0].seconds <= result.seconds.compute
    assert result.seconds.compute + result.seconds.compile <= whole  # counted once, however long it took
