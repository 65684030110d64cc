"""The worker threads: compiled kernels release the GIL, so plain threads use all cores.

All threads of a process share them. A forked child has none of its parent's threads, and starts its own.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, cached_property
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import numpy as np

from sparsenn.runtime.interrupts import held_signals

NUMBERS = 1 << 17
"""Numbers that a thread takes at a time: more work than the hand-over, and a core's cache holds them."""

TASKS = 4  # of each thread, at most, so that all threads end at about the same time

Item = TypeVar("Item")
Value = TypeVar("Value")


@cache
def thread_count() -> int:
    """Return how many threads compute: the cores this process may use, or NUMBA_NUM_THREADS if that is fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("NUMBA_NUM_THREADS", "")
    return max(1, min(cores, int(asked))) if asked.isdigit() else cores


class _Here(threading.local):
    """Whether this thread is one of the workers."""

    worker = False


_here = _Here()


class _Team:
    """Threads that do what they are given, as they become free.

    Tasks go through a queue that is written in C: what hands one over can be interrupted without harm.
    """

    def __init__(self, count: int) -> None:
        self.tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        names = [f"sparsenn_{number}" for number in range(count)]
        self._threads = [threading.Thread(target=self._serve, name=name, daemon=True) for name in names]
        try:
            with held_signals():  # a thread that is interrupted while it starts would wait for ever
                for thread in self._threads:
                    thread.start()
        except BaseException:
            self.dismiss()
            raise

    def _serve(self) -> None:
        _here.worker = True
        np.seterr(all="ignore")  # as sessions have it, in a thread's own state
        while task := self.tasks.get():
            task()
            del task  # and all that it holds, before waiting for the next

    def dismiss(self) -> None:
        """Have all threads end once they have done what they were given."""
        for _ in self._threads:
            self.tasks.put(None)

    def join(self) -> None:
        """Wait until they have ended."""
        for thread in self._threads:
            thread.join()


@cache
def _team() -> _Team:
    return _Team(thread_count())


@atexit.register
def _end() -> None:
    """End the threads before the interpreter ends under them."""
    if _team.cache_info().currsize:
        team = _team()
        _team.cache_clear()
        team.dismiss()
        team.join()


class _Forkable(Protocol):
    """What holds locks or threads, which are of no use in a forked child: their owners are not there."""

    def _after_fork(self) -> None: ...


_forkable: WeakSet[_Forkable] = WeakSet()


def is_free(lock: Any) -> bool:
    """Return whether no thread holds a lock."""
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True


def renew_after_fork(owner: _Forkable) -> None:
    """Have an object's `_after_fork` called in each child that is forked while the object lives."""
    _forkable.add(owner)


def _forget() -> None:
    """Let go of the parent's threads, in a child where they are not; the child computes in its own thread."""
    _team.cache_clear()
    _here.worker = False
    for each in _cached_properties():
        each.lock = threading.RLock()
    for owner in list(_forkable):
        owner._after_fork()


def _cached_properties() -> Iterator[Any]:
    """Yield the package's cached properties that have a lock, as in Python 3.11: another thread may hold it."""
    package = __name__.partition(".")[0]
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == package]:
        for each in (each for each in list(vars(module).values()) if isinstance(each, type)):
            for value in vars(each).values():
                if isinstance(value, cached_property) and hasattr(value, "lock"):
                    yield value


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def map_threads(function: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
    """Apply `function` to each item, on all threads where there is more than one item; results keep their order.

    This thread takes items, too, so that little is lost where there are few, and the others are slow to wake. Called
    from within such work it goes on in the same thread: workers that wait for workers would wait for ever. An error
    ends it as soon as all have done the item that they are at; an interrupt at once.
    """
    work = list(items)
    if len(work) < 2 or thread_count() == 1 or _here.worker:
        return [function(item) for item in work]
    found: list[Any] = [None] * len(work)
    left = iter(range(len(work)))  # a step of it is one for all threads

    def take() -> None:
        for number in left:
            found[number] = function(work[number])

    count = min(thread_count(), len(work)) - 1
    shared = [take] * count  # one for each helper: who finds none is too late
    done: SimpleQueue[BaseException | None] = SimpleQueue()

    def help_out() -> None:
        try:
            run = shared.pop()
        except IndexError:
            return
        failure = _failure(run)
        del run  # what was worked on must not stay alive
        if failure is not None:
            list(left)  # nobody needs to begin what is left
        done.put(failure)

    try:
        for _ in range(count):
            _team().tasks.put(help_out)
        _here.worker = True
        take()
    except BaseException as error:
        list(left)
        if isinstance(error, Exception):
            _outcomes(shared, done, count)
        shared.clear()
        raise
    finally:
        _here.worker = False
    _raise(next(filter(None, _outcomes(shared, done, count)), None))
    return found


def _failure(work: Callable[[], object]) -> BaseException | None:
    try:
        work()
    except BaseException as failure:
        return failure
    return None


def _raise(failure: BaseException | None) -> None:
    """Raise it, if there is any, and refer to it no longer: that would keep alive all that its traceback refers to."""
    try:
        if failure is not None:
            raise failure
    finally:
        del failure


def _outcomes(shared: list[Any], done: SimpleQueue[BaseException | None], count: int) -> list[BaseException | None]:
    """Let none of so many helpers begin any more, wait for those that have, and return what they raised."""
    with suppress(IndexError):
        while True:
            shared.pop()
            count -= 1
    return [done.get() for _ in range(count)]


def begin(function: Callable[[], Value]) -> Callable[[], Value]:
    """Have one of the workers call `function`; returns what waits until it has, and returns what it returned."""
    if _here.worker:
        return function
    found: list[Value] = []
    done: SimpleQueue[BaseException | None] = SimpleQueue()

    def result() -> Value:
        _raise(done.get())
        return found[0]

    _team().tasks.put(lambda: done.put(_failure(lambda: found.append(function()))))
    return result


def chunks(total: int, size: int) -> list[tuple[int, int]]:
    """Cut 0..total into consecutive (start, stop) ranges of at most `size`, as plain integers."""
    total, size = int(total), int(size)
    if 0 < total <= size:  # as in all calls with few rows
        return [(0, total)]
    return [(start, min(start + size, total)) for start in range(0, total, size)]
