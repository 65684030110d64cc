"""Signals that come where an exception would do harm are held back for a moment."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_signals() -> Iterator[Callable[[], bool]]:
    """Hold back all signals that Python code handles until the block ends, such as an interrupt by Ctrl-C.

    For code that a library calls, where an exception would be lost, and for starting and ending threads. Only the main
    thread handles signals: in another thread nothing is held back.

    Yields
    ------
    callable
        Returns whether a signal has come, so that the block may hurry.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    came: list[int] = []
    holders = [os.getpid()]  # a process that is forked meanwhile never leaves the block, and holds nothing back
    handlers = {
        int(number): action for number in signal.valid_signals() if callable(action := signal.getsignal(number))
    }

    def hold(number: int, frame: FrameType | None) -> None:
        if os.getpid() in holders:
            came.append(number)
        else:
            handlers[number](number, frame)

    try:
        for number in handlers:
            signal.signal(number, hold)
        yield lambda: bool(came)
    finally:
        holders.clear()  # first: should the next signal end this loop early, `hold` passes signals on
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)
