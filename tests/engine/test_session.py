"""Session: ready once, called as often as wanted, from as many threads as wanted, and closed or pickled."""

import copy
import gc
import pickle
import sys
import threading
import time
import tracemalloc
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from sessions import same

import sparsenn
from sparsenn import Linear, Network, Session
from sparsenn.engine import Options, Result
from sparsenn.engine import batches as batch_loop
from sparsenn.engine.executable import Executable
from sparsenn.errors import ResourceError, UsageError
from sparsenn.formats import CSR, from_dense
from sparsenn.layers import Identity, ReLU, Sigmoid

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def scattered(rng, rows, width, density=0.3):
    return sp.random(rows, width, density, format="csr", random_state=rng, dtype=np.float32)


@pytest.fixture
def deep(rng):
    """Sparse layers, narrow and wide in turn, of which rows die and become equal."""
    widths = [128] + [64, 256] * 6
    weights = [scattered(rng, *pair, 0.2) * np.float32(0.3) for pair in pairwise(widths)]
    return Network.from_scipy(weights, -0.01, ReLU(clip=32))


@pytest.fixture
def dense(rng):
    return Network(
        (
            Linear(rng.normal(size=(6, 9)), rng.normal(size=9), ReLU()),
            Linear(rng.normal(size=(9, 4)), 0.5, Sigmoid()),
            Linear(rng.normal(size=(4, 3)), None, Identity()),
        )
    )


# ---- Ready before the first call ---------------------------------------------------------------------------------


@DEVICES
def test_calls_after_a_warm_up_prepare_nothing(deep, device, monkeypatch):
    session = Session(deep, device=device)
    plan = session.warm_up(40)
    assert (plan.inputs, plan.kernel) == (40, session.plan(np.ones((40, 128), np.float32)).kernel)
    made = []
    monkeypatch.setattr("sparsenn.engine.plan_cache.Executable", lambda *given: made.append(given))
    rows = np.random.default_rng(1).random((40, 128), np.float32)
    with ThreadPoolExecutor(8) as threads:
        outputs = list(threads.map(session, [rows] * 8))
    assert not made
    assert all(np.array_equal(output, outputs[0]) for output in outputs)


def test_a_warm_up_with_rows(deep, rng):
    session, rows = Session(deep, device="cpu"), scattered(rng, 30, 128)
    assert session.warm_up(rows).density == pytest.approx(0.3, abs=0.01)
    with pytest.raises(UsageError, match="rows is 0; give an integer of at least 1"):
        session.warm_up(0)
    with pytest.raises(ResourceError, match="1,000,000,000,000 rows"):
        session.warm_up(10**12)


@pytest.mark.parametrize("progress", [True, False])
def test_a_warm_up_writes_to_a_log_if_asked_to(deep, progress, capsys):
    Session(deep, device="cpu").warm_up(3, progress=progress)
    assert ("layers: " in capsys.readouterr().err) == progress


# ---- Rows of any number and type ---------------------------------------------------------------------------------


def test_more_rows_than_came_before_run_in_one_batch(deep, monkeypatch):
    session, batches = Session(deep, device="cpu"), []
    upload = batch_loop._upload_rows
    monkeypatch.setattr(batch_loop, "_upload_rows", lambda *a, **k: batches.append(a[2:4]) or upload(*a, **k))
    for count in (1000, 1020):
        session(np.ones((count, 128), np.float32))
    assert batches == [(0, 1000), (0, 1020)]


# ---- What is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["batch_size", "memory_limit", "weight_memory"])
@pytest.mark.parametrize("value", [0, -3, 1.5, "3", "1G", True, np.True_, np.nan, [4]], ids=repr)
def test_sizes_that_are_none_are_refused_in_one_line(network, name, value):
    if value == "1G" and name != "batch_size":
        pytest.skip("that is a size")
    message = f"the {name.replace('_', ' ')} is .*; give .*an integer of at least 1"
    with pytest.raises(UsageError, match=message) as caught:
        Session(network, **{name: value})
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("kernel", ["panel", "auto"])
def test_sizes_are_integers_of_any_type_and_do_not_wrap_around(rng, kind, kernel):
    weights = scattered(rng, 60, 60, 0.5)
    network, rows = Network.from_scipy([weights, weights]), rng.random((90, 60)).astype(np.float32)
    session = Session(network, device="cpu", kernel=kernel, batch_size=kind(40))
    assert type(session.options.batch_size) is int
    assert session.plan(rows).batches == ((0, 40), (40, 80), (80, 90))
    right = np.maximum(np.maximum(rows @ weights.toarray(), 0) @ weights.toarray(), 0)
    np.testing.assert_allclose(session(rows), right, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(session.run(rows).dense, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["device", "kernel", "precision"])
@pytest.mark.parametrize("value", [None, 5, "no such thing"])
def test_names_that_do_not_exist_are_refused(network, name, value):
    with pytest.raises(sparsenn.SparseNNError) as caught:
        Session(network, **{name: value})
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_no_network_is_refused(dense):
    for given_network in (list(dense), None, np.eye(3)):
        with pytest.raises(UsageError, match=r"an? \w+; .*sparsenn\.Network"):
            Session(given_network, device="cpu")


def test_a_session_says_what_it_is(dense, deep):
    assert str(Session(dense, device="cpu")).startswith("6 - 9 - 4 - 3 on cpu")
    session = Session(deep, device="reference", batch_size=3)
    assert repr(session).startswith("128 - 64 - 256 - … - 64 - 256 on reference")
    assert session.network is deep
    assert session.options == Options(device="reference", batch_size=3, precision="float32")
    assert session.backend.device == "reference"


# ---- Closing, pickling, copying -------------------------------------------------------------------------------------


@DEVICES
def test_a_closed_session_is_used_no_more(network, inputs, device):
    with Session(network, device=device) as session:
        outputs, result = session(inputs), session.run(inputs)
    for use in (session, session.run, session.plan):
        with pytest.raises(UsageError, match="the session is closed"):
            use(inputs)
    session.close()
    assert same(result.outputs, outputs)
    with pytest.raises(ZeroDivisionError), Session(network, device=device) as failing:
        raise ZeroDivisionError
    with pytest.raises(UsageError, match="closed"):
        failing(inputs)


@DEVICES
@pytest.mark.parametrize("again", [lambda it: pickle.loads(pickle.dumps(it)), copy.copy, copy.deepcopy])
def test_a_session_is_pickled_as_its_network_and_options(deep, rng, device, again):
    rows = scattered(rng, 50, 128)
    session = Session(deep, device=device, batch_size=20, weight_memory=1 << 20, deduplication=False)
    first = session(rows, form="dense")
    other = again(session)
    assert other is not session
    assert other.options == session.options
    assert np.array_equal(other(rows, form="dense"), first)
    session.close()
    assert np.array_equal(other(rows, form="dense"), first)


@DEVICES
@pytest.mark.parametrize("again", [lambda it: pickle.loads(pickle.dumps(it)), copy.copy, copy.deepcopy])
def test_a_result_is_pickled(deep, rng, device, again):
    result = Session(deep, device=device, batch_size=20).run(scattered(rng, 50, 128))
    other = again(result)
    assert isinstance(other, Result)
    assert same(other.outputs, result.outputs)
    assert np.array_equal(other.dense, result.dense)
    assert np.array_equal(other.categories, result.categories)
    assert (other.statistics, other.seconds, other.notes) == (result.statistics, result.seconds, result.notes)
    assert str(other.plan) == str(result.plan)


def test_plan_and_infer_are_sessions_for_one_call(network, inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = sparsenn.plan(network, inputs, device="cpu", batch_size=30)
        result = sparsenn.infer(network, inputs, device="cpu", batch_size=30, statistics=False)
    assert str(result.plan) == str(chosen)
    assert result.statistics == ()
    assert same(result.outputs, Session(network, device="cpu", batch_size=30)(inputs))


# ---- Bits -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def thin():
    """Thin sparse layers, and rows of which some are equal and some dead."""
    rng = np.random.default_rng(5)
    widths = [300, 512, 256, 512, 400, 512]
    weights = [scattered(rng, *pair, 0.012) for pair in pairwise(widths)]
    rows = scattered(rng, 150, 300, 0.1).toarray()
    rows[::7] = 0
    rows[3::5] = rows[3]
    network = Network.from_scipy(weights, -0.01, ReLU(clip=32))
    session = Session(network, device="cpu", kernel="panel", compaction=False, deduplication=False)
    return network, rows, session.run(rows, statistics=False).dense


@DEVICES
@pytest.mark.parametrize("options", [{}, {"weight_memory": 1}, {"batch_size": 1000}], ids=str)
def test_one_session_in_six_threads_gives_the_same_bits(deep, rng, device, options):
    rows = [scattered(rng, count, 128, density) for count, density in ((900, 0.3), (1200, 0.5), (31, 0.1))]
    rows.append(rows[0].toarray())
    session = Session(deep, device=device, **options)
    expected = [session(one, form="dense") for one in rows]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as threads:

            def right(number):
                one = rows[number % 4]
                found = session(one, form="dense") if number % 2 else session.run(one).dense
                return np.array_equal(found, expected[number % 4])

            assert all(threads.map(right, range(40)))
    finally:
        sys.setswitchinterval(interval)


@DEVICES
def test_several_sessions_at_once_give_the_same_bits(deep, rng, device):
    rows = [scattered(rng, 900, 128, density) for density in (0.3, 0.5, 0.1)]
    expected = [Session(deep, device=device)(one, form="dense") for one in rows]
    start = threading.Barrier(3)

    def right(number):
        session = Session(deep, device=device)
        start.wait(timeout=60)
        return all(np.array_equal(session(rows[number], form="dense"), expected[number]) for _ in range(8))

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(right, range(3)))


def test_a_call_waits_while_another_runs(network, inputs):
    session = Session(network, device="cpu", kernel="panel")
    begun, order = threading.Event(), []

    def slow(*state):
        begun.set()
        time.sleep(0.05)
        order.append("progress")

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(session.run, inputs, progress=slow)
        assert begun.wait(timeout=60)
        session(inputs)
        order.append("call")
        running.result()
    assert order[-1] == "call"


# ---- Many calls -----------------------------------------------------------------------------------------------------


def counts_of_rows(calls):
    return [(37 * call * call + 5 * call) % 200 for call in range(calls)]


def call_often(session, rows, expected, calls):
    for count in counts_of_rows(calls):
        found = session(rows[:count])
        assert found.shape == (count, expected.shape[1])
        assert np.array_equal(found, expected[:count])


def test_a_thousand_calls_give_the_same_bits_and_take_no_more_memory(thin):
    network, rows, expected = thin
    rows, expected = np.concatenate([rows, rows]), np.concatenate([expected, expected])
    session, held = Session(network, device="cpu", kernel="panel"), []
    call_often(session, rows, expected, 250)
    tracemalloc.start()
    try:
        for _ in range(4):
            call_often(session, rows, expected, 250)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert min(np.diff(held)) < 50_000  # what leaks leaks every time; other threads of the process take memory, too


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["host", "device"])
def test_a_thousand_calls_on_a_gpu_take_no_more_memory(thin, where, cupy):
    network, rows, expected = thin
    rows, expected = np.concatenate([rows, rows]), np.concatenate([expected, expected])
    if where == "device":
        rows, expected = cupy.asarray(rows), cupy.asarray(expected)
    library = np if where == "host" else cupy
    session = Session(network, device="cuda", reproducible=True)

    def calls(number):
        for count in counts_of_rows(number):
            assert library.array_equal(session(rows[:count]), expected[:count])

    pool, pinned = cupy.get_default_memory_pool(), cupy.get_default_pinned_memory_pool()
    calls(1400)  # until as many graphs are cached as may be
    used, total, blocks = pool.used_bytes(), pool.total_bytes(), pinned.n_free_blocks()
    calls(700)
    cupy.cuda.Device().synchronize()
    assert pool.used_bytes() <= used * 1.1
    assert pool.total_bytes() <= total * 1.1
    assert pinned.n_free_blocks() <= blocks + 2


@DEVICES
def test_a_session_that_nobody_refers_to_is_gone_at_once(dense, rng, device):
    session, rows = Session(dense, device=device), rng.random((5, 6), np.float32)
    for _ in range(2):
        session(rows)
    kept = weakref.ref(session._cache)
    gc.disable()
    try:
        del session
        assert kept() is None
    finally:
        gc.enable()


def test_what_is_ready_is_let_go_of_where_memory_does_not_suffice(dense, rng, monkeypatch):
    monkeypatch.setattr(Executable, "_direct", lambda self: None)
    session, rows, real = Session(dense, device="cpu"), rng.random((8, 6), np.float32), Executable.compute
    failures, held = [], []

    def run(*given):
        if failures:
            failures.pop()
            raise MemoryError
        return real(*given)

    monkeypatch.setattr(Executable, "compute", run)
    expected = session(rows)
    ready, release = weakref.ref(*session._cache._executables.values()), type(session.backend).release

    def released(self):
        held.append(ready())
        release(self)

    monkeypatch.setattr(type(session.backend), "release", released)
    failures += [None, None]
    np.testing.assert_allclose(session(rows), expected, rtol=1e-6)
    assert (failures, held) == ([], [None])


def test_what_is_kept_ready_is_bounded(thin):
    network, rows, _ = thin
    session = Session(network, device="cpu", kernel="panel")
    session(rows)
    once = session.nbytes
    for count in range(1, 150):
        session(rows[:count])
        session(from_dense(rows[:count]))
    assert session.nbytes < 30 * once


@DEVICES
def test_a_plan_is_for_the_form_that_rows_had_once_they_were_placed(deep, rng, device):
    ones = scattered(rng, 1500, 128)
    ones.data[:] = 1
    session = Session(deep, device=device)
    run, planned = session.run(ones).plan, session.plan(ones)
    assert (run.rows.form, planned.rows.form) == ("iso", "iso")
    assert str(run) == str(planned)


# ---- Results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "none",
    [
        sp.csr_array((0, 128), dtype=np.float32),
        CSR((0, 128), np.zeros(1, np.int64), np.zeros(0, np.uint16), np.zeros(0, np.float32)),
    ],
)
def test_a_run_of_no_rows_has_its_own_plan(deep, rng, none):
    alone = Session(deep, device="cpu").run(none).plan.rows
    with Session(deep, device="cpu") as session:
        session.run(rng.random((5, 128), np.float32))
        assert session.run(none).plan.rows == alone != session.run(np.zeros((0, 128), np.float32)).plan.rows


@pytest.mark.parametrize("kernel", ["auto", "panel", "rows"])
def test_statistics_carry_the_plans_estimate(deep, rng, kernel):
    result = Session(deep, device="cpu", kernel=kernel).run(scattered(rng, 128, 128))
    estimate = result.plan.estimate
    assert estimate > 0
    assert sum(layer.estimate for layer in result.statistics) == pytest.approx(estimate)
    assert "estimated to take" in str(result.plan)


def test_what_nothing_estimates_has_no_estimate(deep, rng):
    result = Session(deep, device="cpu", kernel="scipy").run(scattered(rng, 20, 128))
    assert {layer.estimate for layer in result.statistics} == {None}
    assert result.plan.estimate is None
    assert "estimated" not in str(result.plan)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "float16"])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_rows_on_a_gpu_get_the_same_outputs_each_time_wherever_they_begin(
    dense, rng, monkeypatch, precision, kind, cupy
):
    session = Session(dense, device="cuda", precision=precision)
    numbers = cupy.asarray(rng.normal(size=5 * 6 + 3).astype(kind))
    parts = [numbers[begin : begin + 30].reshape(5, 6) for begin in range(4)]
    expected = [session(rows, form="dense") for rows in parts]
    session(parts[0])
    if kind is np.float32 or precision == "float16":  # nothing is left to do but to launch
        monkeypatch.setattr(Executable, "run", None)
    with np.errstate(all="raise"):
        for rows, right in zip(parts, expected, strict=True):
            found = [session(rows) for _ in range(3)]
            assert all(cupy.array_equal(each, right) for each in found)
            assert len({each.data.ptr for each in found}) == 3


def test_rows_are_not_written_to(deep, dense, rng):
    for network, width in ((deep, 128), (dense, 6)):
        rows = rng.random((60, width)).astype(np.float32)
        before = rows.copy()
        session = Session(network, device="cpu")
        session(rows)
        session.run(rows)
        assert np.array_equal(rows, before)


def test_rows_that_are_returned_as_they_came_are_a_copy(rng):
    """A network that changes nothing, by kernels that may have nothing to do."""
    network = Network((sparsenn.Flatten(),), image=(1, 2, 3))
    rows = rng.random((4, 6)).astype(np.float32)
    outputs = Session(network, device="cpu")(rows)
    assert np.array_equal(outputs, rows)
    assert not np.shares_memory(outputs, rows)


@pytest.mark.usefixtures("measuring_kernels")
def test_rows_that_die_decide_against_multiplying_zeros(rng):
    weights = [sp.csc_array((rng.random((128, 128)) < 0.6).astype(np.float32) / 77) for _ in range(20)]
    network = Network.from_scipy([2 * weights[0], *weights[1:]], [-100.0] * 10 + [0.0] * 10, ReLU(clip=32))
    rows = rng.random((4000, 128)).astype(np.float32)
    result = Session(network, device="cpu", merging=False).run(rows)
    assert all(entry.operation == "spmspm" for entry in result.plan.kernels)
    assert result.categories.size == 0
