"""Work shared by threads: items handed out as threads become free, and what becomes of them, in one place.

What the main thread waits at are queues that are written in C: a signal whose handler raises an exception in Python's
own `Queue`, `Semaphore` or `Event` can leave their lock taken for ever.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar

from sparsenn.runtime.interrupts import held_signals

Item = TypeVar("Item")
Value = TypeVar("Value")

SWITCH_SECONDS = 1e-4
"""After which a thread that runs Python code gives way to others, while one reads ahead. A reader needs the interpreter
for moments only, but many times an item: after Python's own 5 ms each, it would wait longer than it reads."""

_switch_seconds: list[float] = []
"""What was found by those that read ahead, to be put back; one each."""


class _StoppedError(Exception):
    """Ends work that nobody waits for any more."""


class Stopping:
    """Whether work should end early, because other work has failed or its caller was interrupted."""

    def __init__(self) -> None:
        self._asked = False

    def ask(self) -> None:
        """Have all work end at its next `check`."""
        self._asked = True

    def check(self, first: int = 0, last: int = 0, layers: int = 0) -> None:
        """End the work of this thread if asked to; the numbers of a report of rows are ignored."""
        if self._asked:
            raise _StoppedError


@dataclass(frozen=True)
class _Ended:
    """A thread that does nothing more."""

    error: BaseException | None = None


@contextmanager
def shared(
    threads: Sequence[Executor],
    workers: Sequence[Callable[[Item, Stopping], Value]],
    items: Iterable[Item],
    ahead: int = 0,
) -> Iterator[Iterator[tuple[Item, Value]]]:
    """Have items done by several threads at once, and yield each with what was made of it, in the order of their ends.

    Where one fails, the iteration raises what the first one raised. When the block ends the threads stop at their next
    check, and do nothing more when it is left.

    Parameters
    ----------
    threads : of one thread each.
    workers : what each of them does with an item; it may look whether it is to stop.
    items : taken one by one, in one thread at a time.
    ahead : how many may be done, or be under way, beside one a thread, before what was made of them is asked for.
    """
    stopping, lock, left = Stopping(), threading.Lock(), iter(items)
    done: SimpleQueue[tuple[Item, Value] | _Ended] = SimpleQueue()
    room: SimpleQueue[None] = SimpleQueue()
    begun: list[Future[None]] = []

    def work(make: Callable[[Item, Stopping], Value]) -> None:
        error: BaseException | None = None
        try:
            while True:
                room.get()
                stopping.check()
                with lock:
                    item = next(left)
                stopping.check()
                done.put((item, make(item, stopping)))
        except StopIteration:
            room.put(None)
        except BaseException as failure:
            error = failure
        done.put(_Ended(error))

    def finished() -> Iterator[tuple[Item, Value]]:
        running = len(begun)
        while running:
            found = done.get()
            if not isinstance(found, _Ended):
                yield found
                room.put(None)
            elif found.error is not None:
                raise found.error
            else:
                running -= 1

    for _ in range(len(workers) + ahead):
        room.put(None)
    try:
        with held_signals():
            for thread, make in zip(threads, workers, strict=True):
                begun.append(thread.submit(work, make))
        yield finished()
    finally:
        with held_signals():
            stopping.ask()
            for _ in begun:
                room.put(None)
            wait(begun)


@contextmanager
def ahead(items: Iterator[Item], most: int) -> Iterator[Iterator[Item]]:
    """Yield items that a thread takes before they are asked for, so many at most; it has ended when this returns.

    What the iteration over the items raises is raised where the next one is asked for.
    """
    with (
        ThreadPoolExecutor(1, "sparsenn reads") as thread,
        shared([thread], [lambda item, stopping: None], items, most + 1) as taken,
        _quick_switches(),
    ):
        yield (item for item, _ in taken)


@contextmanager
def _quick_switches() -> Iterator[None]:
    """Have threads give way to each other after `SWITCH_SECONDS`, as long as anything reads ahead."""
    _switch_seconds.append(sys.getswitchinterval())
    try:
        sys.setswitchinterval(min(_switch_seconds[-1], SWITCH_SECONDS))
        yield
    finally:
        sys.setswitchinterval(_switch_seconds.pop())
