"""Work shared by threads: items handed out as threads become free, and what becomes of them, in one place."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, Queue, SimpleQueue
from typing import Generic, TypeVar

from sparsenn.interrupts import held_signals, outlast

__all__ = ["Stopping", "ahead", "shared"]

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
    """Whether work is to be left undone, because other work has failed or whoever waits for it was interrupted."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        """Have all work end where it looks next."""
        self._asked.set()

    def look(self, first: int = 0, last: int = 0, layers: int = 0) -> None:
        """End the work of this thread if that is asked for; what a report of rows is told makes no difference."""
        if self._asked.is_set():
            raise _StoppedError


@dataclass(frozen=True)
class _Ended:
    """A thread that does nothing more.

    Parameters
    ----------
    error : why; None where no item is left.
    """

    error: BaseException | None = None


class _Shared(Generic[Item, Value]):
    """Items that threads take one by one, and what they make of them."""

    def __init__(self, items: Iterable[Item], most: int) -> None:
        self.stopping = Stopping()
        self.done: SimpleQueue[tuple[Item, Value] | _Ended] = SimpleQueue()
        self.room = threading.Semaphore(most)
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
        self.done.put(_Ended(error))

    def _do_next(self, make: Callable[[Item, Stopping], Value]) -> bool:
        """Do an item; returns whether there was one."""
        self.room.acquire()
        self.stopping.look()
        with self._turns:
            try:
                item = next(self._items)
            except StopIteration:
                self.room.release()
                return False
        self.stopping.look()
        self.done.put((item, make(item, self.stopping)))
        return True


def shared(
    threads: Sequence[Executor],
    workers: Sequence[Callable[[Item, Stopping], Value]],
    items: Iterable[Item],
    ahead: int = 0,
) -> Generator[tuple[Item, Value], None, None]:
    """Have items done by several threads at once, and yield each with what was made of it, in the order of their ends.

    Ends when all are done. Where one fails, or the iteration is left, the threads stop where they look next, and do
    nothing more when this returns.

    Parameters
    ----------
    threads : of one thread each.
    workers : what each of them does with an item; it may look whether it is to stop.
    items : taken one by one, in one thread at a time.
    ahead : how many may be done, or be under way, beside one a thread, before what was made of them is asked for.

    Raises
    ------
    BaseException
        What a worker, or the iteration over the items, raised first.
    """
    state: _Shared[Item, Value] = _Shared(items, len(workers) + ahead)
    begun: list[Future[None]] = []

    def end() -> None:
        state.stopping.ask()
        state.room.release(len(begun) + 1)
        wait(begun)

    try:
        with held_signals():
            for thread, make in zip(threads, workers, strict=True):
                begun.append(thread.submit(state.work, make))
        left = len(begun)
        while left:
            found = state.done.get()
            if not isinstance(found, _Ended):
                yield found
                state.room.release()
            elif found.error is not None:
                raise found.error
            else:
                left -= 1
    finally:
        outlast(end)


@contextmanager
def ahead(items: Iterator[Item], most: int) -> Iterator[Iterator[Item]]:
    """Yield items that a thread takes before they are asked for, so many at most; it has ended when this returns.

    What the iteration over the items raises is raised where the next one is asked for.
    """
    waiting: Queue[tuple[Item] | _Ended] = Queue(most)
    stopping = Stopping()

    def take() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                waiting.put((item,))
                stopping.look()
        except _StoppedError:
            pass
        except BaseException as failure:
            error = failure
        waiting.put(_Ended(error))

    def given() -> Iterator[Item]:
        while not isinstance(found := waiting.get(), _Ended):
            yield found[0]
        waiting.put(found)  # for whoever asks again
        if found.error is not None:
            raise found.error

    thread = threading.Thread(target=take, name="sparsenn reads")

    def end() -> None:
        stopping.ask()
        while thread.is_alive():
            with suppress(Empty):
                waiting.get(timeout=0.05)

    try:
        with held_signals():
            thread.start()
        with _quick_switches():
            yield given()
    finally:
        outlast(end)


@contextmanager
def _quick_switches() -> Iterator[None]:
    """Have threads give way to each other after `SWITCH_SECONDS`, as long as anything reads ahead."""
    _switch_seconds.append(sys.getswitchinterval())
    try:
        sys.setswitchinterval(min(_switch_seconds[-1], SWITCH_SECONDS))
        yield
    finally:
        sys.setswitchinterval(_switch_seconds.pop())
