"""Signals that come where an exception would do harm: held back for a moment, or outlasted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["held_signals", "outlast"]


@contextmanager
def held_signals() -> Iterator[Callable[[], bool]]:
    """Hold back all signals that Python code handles until the block ends, as an interrupt by Ctrl-C.

    For code that a library calls, where an exception would be lost, and for starting threads, which nobody would end.
    Yields a function that returns whether a signal has come, so that the block may hurry. Signals that Python code does
    not handle act as ever. Only the main thread handles signals, so in another one nothing is held back.
    """
    came: list[tuple[int, FrameType | None]] = []
    over: list[bool] = []
    process = os.getpid()
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def hold(number: int, frame: FrameType | None) -> None:
        if over or os.getpid() != process:  # what was forked meanwhile holds nothing back
            handlers[number](number, frame)
        else:
            came.append((number, frame))

    handlers = {
        int(number): action for number in signal.valid_signals() if callable(action := signal.getsignal(number))
    }
    try:
        for number in handlers:
            signal.signal(number, hold)
        yield lambda: bool(came)
    finally:
        _release(came, handlers, over)


def _release(came: list[tuple[int, FrameType | None]], handlers: dict[int, Any], over: list[bool]) -> None:
    """Put all handlers back, and call those of all signals that came, in their order; raise what the last raises."""
    last: BaseException | None = None
    left = list(handlers.items())
    while left or came:
        try:
            over.append(True)  # from here on signals are handled as they come
            while left:
                signal.signal(*left[-1])
                left.pop()
            while came:
                number, frame = came.pop(0)
                handlers[number](number, frame)
        except BaseException as raised:
            last = raised
    if last is not None:
        try:
            raise last
        finally:
            del last


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
