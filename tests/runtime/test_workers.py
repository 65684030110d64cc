"""Threads: order, nesting, errors, forks."""

import os
import subprocess
import sys
import time

import pytest

from sparsenn.runtime.workers import begin, chunks, map_threads, thread_count


def test_results_keep_their_order():
    assert map_threads(lambda item: item * item, range(50)) == [item * item for item in range(50)]


def test_work_may_use_threads_itself():
    """More outer items than threads, each waiting for inner ones: a pool that waits for itself would never end."""

    def outer(item: int) -> int:
        return sum(map_threads(lambda part: item * part, range(10)))

    assert map_threads(outer, range(4 * thread_count())) == [45 * item for item in range(4 * thread_count())]


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


def test_what_is_begun_is_done_meanwhile():
    waiting = [begin(lambda item=item: item) for item in range(5)]
    assert [wait() for wait in waiting] == list(range(5))
    with pytest.raises(ZeroDivisionError):
        begin(lambda: 1 // 0)()
    inner = map_threads(lambda item: begin(lambda: 3 * item)(), range(4 * thread_count()))  # workers wait for none
    assert inner == [3 * item for item in range(4 * thread_count())]


def test_threads_are_at_most_the_cores_of_this_process():
    assert 1 <= thread_count() <= (os.cpu_count() or 1)


def test_chunks_cover_everything_once():
    assert [chunks(total, 3) for total in (0, 3, 7)] == [[], [(0, 3)], [(0, 3), (3, 6), (6, 7)]]


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
    environment = {**os.environ, "NUMBA_THREADING_LAYER": layer}
    command = [sys.executable, "-c", FORK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
