"""Signals that ask the program to end: the first is raised as an exception, a second one ends the process at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""From the keyboard, from another process such as a scheduler, and from a terminal that is closed."""


class Stopped(BaseException):
    """A signal asks the program to end: no error, so that code which handles errors passes it on."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_raised: list[Stopped] = []
"""All exceptions so far. Their tracebacks keep objects of libraries alive that crash when deleted half-made."""


@contextmanager
def stopping() -> Iterator[None]:
    """While the block runs, have signals that ask the program to end raise `Stopped`; after it they end it at once.

    Ignored signals, such as an interrupt under `nohup`, stay ignored.
    """
    if current_thread() is not main_thread():  # where no signal arrives
        yield
        return
    try:
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _stop)
        yield
    finally:
        end_at_once()


def stopped() -> Stopped | None:
    """Return the exception of the signal that has come; None if none has."""
    return _raised[0] if _raised else None


def end_at_once() -> None:
    """Have signals end the process without a word from now on."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _stop(number: int, frame: FrameType | None) -> None:
    end_at_once()
    # half-made objects complain when they are deleted; Cython reports them to the second
    sys.unraisablehook = sys.excepthook = _ignore
    _raised.append(Stopped(number))
    raise _raised[-1]


def _ignore(*_: Any) -> None:
    """Report nothing."""
