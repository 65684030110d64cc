"""Signals that come where an exception would do harm: held back for a moment, or outlasted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["held_signals", "outlast"]


@contextmanager
def held_signals() -> Iterator[Callable[[], bool]]:
    """Hold back all signals that Python code handles until the block ends, as an interrupt by Ctrl-C.

    For code that a library calls, where an exception would be lost, and for starting threads, which nobody would end.
    Yields what tells whether one has come, so that the block may hurry. Signals that Python code does not handle act
    as ever. Only the main thread handles signals, so in another one nothing is held back.
    """
    came: list[tuple[int, FrameType | None]] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    handlers = {
        int(number): action for number in signal.valid_signals() if callable(action := signal.getsignal(number))
    }
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: came.append((number, frame)))
        yield lambda: bool(came)
    finally:
        for number, action in handlers.items():
            signal.signal(number, action)
        for number, frame in came:
            handlers[number](number, frame)


def outlast(work: Callable[[], None]) -> None:
    """Do work until it has come to its end, whatever interrupts it meanwhile; the last interrupt is raised then.

    Parameters
    ----------
    work : what may be begun anew; errors of its own end it.
    """
    interrupt: BaseException | None = None
    while True:
        try:
            work()
            break
        except Exception:
            raise
        except BaseException as raised:
            interrupt = raised
    if interrupt is not None:
        raise interrupt
