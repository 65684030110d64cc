"""The worker threads: compiled kernels release the GIL, so plain threads use all cores.

All threads of a process share them. A forked child has none of its parent's threads, and starts its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any, TypeVar

from sparsenn.interrupts import held_signals

__all__ = ["apart", "chunks", "map_threads", "thread_count"]

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


def _enlist() -> None:
    _here.worker = True


@cache
def _pool() -> ThreadPoolExecutor:
    threads = thread_count()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="sparsenn", initializer=_enlist)
    together = threading.Barrier(threads)
    try:
        with held_signals():  # a thread that is interrupted while it starts would wait for ever
            list(pool.map(lambda _: together.wait(), range(threads)))
    except BaseException:
        together.abort()
        raise
    return pool


def _forget() -> None:
    """Let go of the parent's threads, in a child where they are not; whoever forked computes here."""
    _pool.cache_clear()
    _here.worker = False


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

    shared = [take]  # emptied at the end: threads that wake too late must not keep alive what was worked on

    def help_out() -> None:
        try:
            for run in tuple(shared):
                run()
        except BaseException:
            list(left)  # nobody needs to begin what is left
            raise

    helpers = [_pool().submit(help_out) for _ in range(min(thread_count(), len(work)) - 1)]
    _here.worker = True
    try:
        take()
    except BaseException as error:
        list(left)
        if isinstance(error, Exception):
            _ended(helpers)
        raise
    finally:
        _here.worker = False
        shared.clear()
    for helper in _ended(helpers):
        helper.result()
    return found


def _ended(helpers: Sequence[Future[None]]) -> list[Future[None]]:
    """Wait for those that have begun; return them."""
    begun = [helper for helper in helpers if not helper.cancel()]
    wait(begun)
    return begun


def apart(function: Callable[[], Value]) -> Value:
    """Return what `function` returns, called outside the main thread.

    For libraries that listen to signals themselves where they are called in the main thread, and lose some.
    """
    main = threading.current_thread() is threading.main_thread()
    return _pool().submit(function).result() if main else function()


def chunks(total: int, size: int) -> list[tuple[int, int]]:
    """Cut 0..total into consecutive (start, stop) ranges of at most `size`, as plain integers."""
    total, size = int(total), int(size)
    return [(start, min(start + size, total)) for start in range(0, total, size)]
