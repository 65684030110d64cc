"""Signals that come where an exception would do harm: while threads start or end, or code is compiled or loaded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from numba.core.caching import FunctionCache

from sparsenn.distributed.sharing import Stopping, ahead, shared
from sparsenn.runtime.interrupts import held_signals
from sparsenn.runtime.jit import compiled
from sparsenn.runtime.workers import _end, map_threads

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


def endless() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


@pytest.mark.usefixtures("interrupted_starts")
def test_a_reader_that_starts() -> None:
    with no_thread_is_left("sparsenn reads"), pytest.raises(Stop), ahead(endless(), 2) as numbers:
        next(numbers)


@pytest.mark.usefixtures("interrupted_starts")
def test_threads_that_share_work() -> None:
    threads = [ThreadPoolExecutor(1, "shares") for _ in range(2)]
    with pytest.raises(Stop), closing(shared(threads, [lambda item, stopping: item] * 2, endless(), 1)) as items:
        next(items)
    with no_thread_is_left("shares"):
        for thread in threads:
            assert thread._threads, "whoever ends the pool knows of its thread"
            thread.shutdown()


def test_an_end_that_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal comes before the reader, which waits for room, is told to stop."""
    ask, asked = Stopping.ask, []

    def ask_late(stopping: Stopping) -> None:
        asked.append(stopping)
        if len(asked) == 1:
            interrupt()
        ask(stopping)

    monkeypatch.setattr(Stopping, "ask", ask_late)
    reader = ahead(endless(), 1)
    with no_thread_is_left("sparsenn reads"):
        next(reader.__enter__())
        with pytest.raises(Stop):
            reader.__exit__(None, None, None)


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


@pytest.mark.parametrize("step", ["load_overload", "save_overload"])
def test_compiled_code_that_is_loaded_or_kept(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def interrupted(*_: object) -> None:
        interrupt()
        done.append(step)

    @compiled
    def double(number: int) -> int:
        return 2 * number

    monkeypatch.setattr(FunctionCache, "load_overload", lambda *_: None)
    monkeypatch.setattr(FunctionCache, step, interrupted)
    with pytest.raises(Stop):
        double(3)
    assert done == [step]
    monkeypatch.undo()
    assert double(3) == 6


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


COMPILING = """
import importlib.util, signal, sys, time
from pathlib import Path
import numpy as np

SOURCE = '''
from sparsenn.runtime.jit import compiled

@compiled
def count(numbers, counts):
    found = 0
    for place in range(numbers.size):
        if numbers[place] > {}:
            found += 1
        counts[place] = found
    return found
'''


def fresh(number):
    path = Path(f"module{number}.py")
    path.write_text(SOURCE.format(number))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.count


def stop(number, frame):
    fired.append(number)
    raise TimeoutError


numbers, counts, fired = np.arange(100), np.zeros(100, np.int64), []
fresh(0)(numbers, counts)
start = time.perf_counter()
fresh(1)(numbers, counts)
usual = time.perf_counter() - start
signal.signal(signal.SIGALRM, stop)
lost = raised = 0
for number in range(2, 32):
    function = fresh(number)
    fired.clear()
    try:
        signal.setitimer(signal.ITIMER_REAL, usual * (number - 1) / 31)
        function(numbers, counts)
        signal.setitimer(signal.ITIMER_REAL, 0)
        lost += len(fired)
    except TimeoutError:
        raised += 1
    assert function(numbers, counts) == 99 - number
print(lost, raised > 5)
"""


@pytest.mark.timeout(300)
def test_a_signal_while_a_function_is_compiled(tmp_path: Path) -> None:
    """LLVM calls Python code, and goes on where that raises: what is raised was lost, or ended the process."""
    environment = {**os.environ, "SPARSENN_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", COMPILING]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "0 True"), done.stderr
