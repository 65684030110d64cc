"""Work shared by threads: items handed out as threads become free, and what becomes of them, in one place.

What the main thread uses here are queues that are written in C, and plain flags. Python's `Queue`, `Semaphore` and
`Event` are written in Python: a signal whose handler raises an exception in them can leave their lock taken for ever,
and `Thread.join` and `Thread.is_alive`, so interrupted, may take a thread that runs for one that has ended.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

from sparsenn.runtime.interrupts import held_signals

Item = TypeVar("Item")
Value = TypeVar("Value")

SWITCH_SECONDS = 1e-4
"""After which a thread that runs Python code gives way to others, while one reads ahead. A reader needs the interpreter
for moments only, but many times an item: after Python's own 5 ms each, it would wait longer than it reads."""

CHECK_SECONDS = 1e-3  # between two checks whether threads have ended

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


def _room_for(count: int) -> SimpleQueue[None]:
    """Return a queue that so many can be taken from before one has to be put back."""
    room: SimpleQueue[None] = SimpleQueue()
    for _ in range(count):
        room.put(None)
    return room


class _Shared(Generic[Item, Value]):
    """Items that threads take one by one, and what they make of them."""

    def __init__(self, items: Iterable[Item], most: int) -> None:
        self.stopping = Stopping()
        self.done: SimpleQueue[tuple[Item, Value] | _Ended] = SimpleQueue()
        self.room = _room_for(most)
        self.over: list[bool] = []  # one for each thread that does nothing more
        self._items, self._turns = iter(items), threading.Lock()

    def work(self, make: Callable[[Item, Stopping], Value]) -> None:
        """Do items until none is left."""
        error: BaseException | None = None
        try:
            while self._do_next(make):
                pass
        except _StoppedError:
            pass
        except BaseException as failure:
            error = failure
        self.over.append(True)
        self.done.put(_Ended(error))

    def _do_next(self, make: Callable[[Item, Stopping], Value]) -> bool:
        """Do an item; returns whether there was one."""
        self.room.get()
        self.stopping.check()
        with self._turns:
            try:
                item = next(self._items)
            except StopIteration:
                self.room.put(None)
                return False
        self.stopping.check()
        self.done.put((item, make(item, self.stopping)))
        return True

    def end(self, begun: int) -> None:
        """Have threads stop at their next check, and wait until all that have begun have stopped."""
        self.stopping.ask()
        for _ in range(begun):
            self.room.put(None)
        while len(self.over) < begun:
            time.sleep(CHECK_SECONDS)


def shared(
    threads: Sequence[Executor],
    workers: Sequence[Callable[[Item, Stopping], Value]],
    items: Iterable[Item],
    ahead: int = 0,
) -> Generator[tuple[Item, Value], None, None]:
    """Have items done by several threads at once, and yield each with what was made of it, in the order of their ends.

    Ends when all are done. Where one fails, or the iteration is left, the threads stop where they look next, and do
    nothing more when this returns, or raises what the first one raised.

    Parameters
    ----------
    threads : of one thread each.
    workers : what each of them does with an item; it may look whether it is to stop.
    items : taken one by one, in one thread at a time.
    ahead : how many may be done, or be under way, beside one a thread, before what was made of them is asked for.
    """
    state: _Shared[Item, Value] = _Shared(items, len(workers) + ahead)
    begun = 0
    try:
        with held_signals():
            for thread, make in zip(threads, workers, strict=True):
                thread.submit(state.work, make)
                begun += 1
        left = begun
        while left:
            found = state.done.get()
            if not isinstance(found, _Ended):
                yield found
                state.room.put(None)
            elif found.error is not None:
                raise found.error
            else:
                left -= 1
    finally:
        with held_signals():
            state.end(begun)


@contextmanager
def ahead(items: Iterator[Item], most: int) -> Iterator[Iterator[Item]]:
    """Yield items that a thread takes before they are asked for, so many at most; it has ended when this returns.

    What the iteration over the items raises is raised where the next one is asked for.
    """
    state: _Shared[Item, None] = _Shared(items, most + 1)  # one is read while others wait
    begun: list[bool] = []

    def taken() -> Iterator[Item]:
        while not isinstance(found := state.done.get(), _Ended):
            state.room.put(None)
            yield found[0]
        if found.error is not None:
            raise found.error

    work = partial(state.work, lambda item, stopping: None)
    thread = threading.Thread(target=work, name="sparsenn reads", daemon=True)
    try:
        with held_signals():
            thread.start()
            begun.append(True)
        with _quick_switches():
            yield taken()
    finally:
        with held_signals():
            state.end(len(begun))


@contextmanager
def _quick_switches() -> Iterator[None]:
    """Have threads give way to each other after `SWITCH_SECONDS`, as long as anything reads ahead."""
    _switch_seconds.append(sys.getswitchinterval())
    try:
        sys.setswitchinterval(min(_switch_seconds[-1], SWITCH_SECONDS))
        yield
    finally:
        sys.setswitchinterval(_switch_seconds.pop())
