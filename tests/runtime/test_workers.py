"""Threads: order, nesting, errors, forks."""

import os
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from sparsenn.runtime.workers import begin, chunks, map_threads, thread_count


def test_results_keep_their_order():
    assert map_threads(lambda item: item * item, range(50)) == [item * item for item in range(50)]


def test_work_may_use_threads_itself():
    """More outer items than threads, each waiting for inner ones: a pool that waits for itself would never end."""

    def outer(item: int) -> int:
        return sum(map_threads(lambda part: item * part, range(10)))

    assert map_threads(outer, range(4 * thread_count())) == [45 * item for item in range(4 * thread_count())]


def test_one_item_stays_in_this_thread():
    assert map_threads(lambda _: threading.current_thread(), [0]) == [threading.current_thread()]
    assert map_threads(lambda item: item, []) == []


def test_an_error_in_a_thread_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        map_threads(lambda item: 1 // item, [1, 0, 2])


@pytest.mark.skipif(thread_count() < 2, reason="there is one thread")
def test_an_error_ends_all_and_leaves_nothing_running():
    begun, running = [], []

    def work(item: int) -> None:
        begun.append(item)
        running.append(item)
        time.sleep(0.01)
        running.remove(item)
        if item == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        map_threads(work, range(1000))
    assert not running
    assert len(begun) <= 4 + thread_count()
    assert map_threads(lambda item: item, range(5)) == list(range(5))


@pytest.mark.skipif(thread_count() < 2, reason="there is one thread")
def test_this_thread_and_others_share_the_items():
    together = threading.Barrier(2, timeout=60)
    found = map_threads(lambda _: (together.wait(), threading.current_thread())[1], range(2))
    assert len(set(found)) == 2
    assert threading.current_thread() in found


def test_what_was_worked_on_is_let_go():
    class Kept:
        pass

    thing = Kept()
    gone = weakref.ref(thing)
    map_threads(lambda _, thing=thing: thing, range(20))
    del thing
    assert gone() is None


def test_what_is_begun_is_done_meanwhile():
    waiting = [begin(lambda item=item: item) for item in range(5)]
    assert [wait() for wait in waiting] == list(range(5))
    with pytest.raises(ZeroDivisionError):
        begin(lambda: 1 // 0)()
    inner = map_threads(lambda item: begin(lambda: 3 * item)(), range(4 * thread_count()))  # workers wait for none
    assert inner == [3 * item for item in range(4 * thread_count())]


def test_threads_are_at_most_the_cores_of_this_process():
    assert 1 <= thread_count() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("total", "size", "expected"),
    [(0, 3, []), (3, 3, [(0, 3)]), (7, 3, [(0, 3), (3, 6), (6, 7)])],
)
def test_chunks_cover_everything_once(total, size, expected):
    assert chunks(total, size) == expected


def test_chunks_are_plain_integers_whatever_they_are_made_from():
    pieces = chunks(np.int32(2_000_000_000), np.int32(1_500_000_000))  # the second would end beyond int32
    assert pieces == [(0, 1_500_000_000), (1_500_000_000, 2_000_000_000)]
    assert all(type(bound) is int for piece in pieces for bound in piece)


FORK = """
import multiprocessing, os, sys, threading
import numpy as np
from sparsenn.backends import StepInput, backend_for
from sparsenn.backends.cpu.panel import launch_panel
from sparsenn.formats import CSC, from_dense
from sparsenn.layers import ReLU, SparseLinear
from sparsenn.studies.train import host_products
from sparsenn.runtime.workers import map_threads

rows = np.random.default_rng(0).random((5000, 60)).astype(np.float32)
weights = rows[:60].copy()
layer = SparseLinear(CSC.from_scipy(from_dense(weights).to_scipy()), -0.5, ReLU())
stack = backend_for("cpu").prepare([layer], [np.ones(60, np.int64)])


def infer():
    output = launch_panel(StepInput(stack, 0, 1, rows, np.ones(5000, np.int64), 1))
    return output.row_map.scatter(output.features)


def train():
    outputs = np.empty((5000, 60), np.float32)
    host_products.forward(rows, weights, np.zeros(60, np.float32), *host_products.code(ReLU()), outputs)
    return outputs


expected = infer(), train()


def child():
    assert map_threads(lambda item: item, range(9)) == list(range(9))
    assert np.array_equal(infer(), expected[0])
    assert np.array_equal(train(), expected[1])
    sys.exit(7)


def fork():
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    return process.exitcode


assert fork() == 7


def fork_here(_):
    process = os.fork()
    if process == 0:
        try:
            child()
        except SystemExit as left:
            os._exit(left.code)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


assert map_threads(fork_here, range(2)) == [7, 7]  # from workers, each its child's only thread
threads = [threading.Thread(target=train) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert np.array_equal(train(), expected[1])
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("layer", ["default", "workqueue"])
def test_children_forked_after_inference_and_training_compute(layer):
    done = subprocess.run(
        [sys.executable, "-c", FORK],
        env={**os.environ, "NUMBA_THREADING_LAYER": layer},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


DURING_CALLS = """
import os, signal, threading, warnings
import numpy as np, scipy.sparse as sp
from sparsenn import Network, Session, Sessions

warnings.simplefilter("ignore")
rng = np.random.default_rng(3)
weights = [sp.random(64, 64, 0.1, format="csc", random_state=rng, dtype=np.float32) for _ in range(6)]
network, rows = Network.from_scipy(weights, -0.05), rng.random((300, 64), np.float32)
options = {"device": "cpu", "reproducible": True}
first = Session(network, **options)
several = Sessions.of([Session(network, **options), Session(network, **options)])
streaming = Session(network, weight_memory=1, **options)
expected, ended = first(rows), []


def run(session):
    while not ended:
        session(rows)


def child():
    for session in (first, several, streaming, Session(network, **options)):
        assert np.array_equal(session(rows), expected)


def fork():
    process = os.fork()
    if process == 0:
        signal.alarm(60)  # ends a child that hangs
        try:
            child()
            os._exit(7)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


threads = [threading.Thread(target=run, args=(session,)) for session in (first, first, several, streaming)]
for thread in threads:
    thread.start()
codes = [fork() for _ in range(8)]
ended.append(True)
for thread in threads:
    thread.join()
forked = []
first.run(rows, progress=lambda *_: forked or forked.append(fork()))  # by the thread that has the session's lock
assert [*codes, *forked] == [7] * 9, (codes, forked)
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_children_forked_during_calls_compute() -> None:
    done = subprocess.run([sys.executable, "-c", DURING_CALLS], capture_output=True, text=True, timeout=500)
    assert done.stdout == "done\n", done.stderr


HELD_PROPERTY = """
import functools, os, signal, threading
import numpy as np
from sparsenn import Network, Session
import scipy.sparse as sp

network = Network.from_scipy([sp.random(8, 8, 0.5, format="csc", random_state=1, dtype=np.float32)])
locks = [
    value.lock
    for kind in (Network, Session)
    for value in vars(kind).values()
    if isinstance(value, functools.cached_property) and hasattr(value, "lock")
]
held, done = threading.Event(), threading.Event()


def hold():
    for lock in locks:
        lock.acquire()
    held.set()
    done.wait()


thread = threading.Thread(target=hold, daemon=True)
thread.start()
held.wait()
process = os.fork()
if process == 0:
    signal.alarm(60)  # ends a child that hangs
    Session(network, device="cpu")(np.ones((1, 8), np.float32))
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_waits_for_no_property_that_a_thread_of_its_parent_computes():
    done = subprocess.run(
        [sys.executable, "-u", "-c", HELD_PROPERTY], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
