"""Signals that come where an exception would do harm: while threads start or end, or code is compiled or loaded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from sparsenn.distributed.sharing import ahead, shared
from sparsenn.runtime.interrupts import held_signals
from sparsenn.runtime.workers import _end, map_threads, thread_count

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there are no such signals")


class Stop(BaseException):
    """What a signal raises."""


@pytest.fixture(autouse=True)
def stops() -> Iterator[None]:
    """Have a signal raise `Stop`."""

    def stop(number: int, frame: Any) -> None:
        raise Stop

    before = signal.signal(signal.SIGUSR1, stop)
    yield
    signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.fixture
def interrupted_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a signal come whenever a thread has just begun, before whoever starts it knows."""
    start: Callable[[threading.Thread], None] = threading.Thread.start

    def start_and_interrupt(thread: threading.Thread) -> None:
        start(thread)
        interrupt()

    monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)


@contextmanager
def no_thread_is_left(name: str) -> Iterator[None]:
    before = threading.enumerate()
    yield
    for thread in threading.enumerate():
        if thread.name.startswith(name) and thread not in before:
            thread.join(20)
            assert not thread.is_alive(), f"{thread.name} waits for ever"


@pytest.mark.usefixtures("interrupted_starts")
def test_a_reader_that_starts() -> None:
    with no_thread_is_left("sparsenn reads"), pytest.raises(Stop), ahead(count(), 2) as numbers:
        next(numbers)


@pytest.mark.usefixtures("interrupted_starts")
def test_threads_that_share_work() -> None:
    threads = [ThreadPoolExecutor(1, "shares") for _ in range(2)]
    with pytest.raises(Stop), shared(threads, [lambda item, stopping: item] * 2, count(), 1) as items:
        next(items)
    with no_thread_is_left("shares"):
        for thread in threads:
            assert thread._threads, "whoever ends the pool knows of its thread"
            thread.shutdown()


@pytest.mark.skipif(thread_count() < 2, reason="no worker starts where there is one thread")
def test_workers_that_start(interrupted_starts: None) -> None:
    _end()  # of those that other work has started
    with no_thread_is_left("sparsenn_"), pytest.raises(Stop):
        map_threads(abs, range(4))


def test_what_is_held_back_comes_when_the_block_ends() -> None:
    done = []

    def held() -> None:
        with held_signals() as came:
            interrupt()
            done.append(came())

    with pytest.raises(Stop):
        held()
    assert done == [True]


IN_COMPILED_CODE = """
import signal, time
import numpy as np
from numba.core import serialize
from sparsenn.formats.equality import equal_rows


class Stop(BaseException):
    pass


def stop(number, frame):
    raise Stop


rows = np.arange(1 << 18, dtype=np.float32)[:, None]
equal_rows(rows)
signal.signal(signal.SIGALRM, stop)
stopped = 0
for trial in range(1, 41):
    serialize._unpickled_memo.clear()  # as it is when a function is called for the first time
    try:
        signal.setitimer(signal.ITIMER_REAL, trial / 2000)
        representatives, group = equal_rows(rows)
        while True:
            time.sleep(0.01)
    except Stop:
        stopped += 1
print(stopped)
"""


def test_a_signal_in_compiled_code_is_raised_where_it_returns() -> None:
    """Numba loses exceptions that are raised while it makes arrays to return, and returns null pointers."""
    done = subprocess.run([sys.executable, "-c", IN_COMPILED_CODE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "40"), done.stderr
