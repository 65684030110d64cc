"""Signals that ask the program to end: whenever they come, what was begun is undone, and the exit code names them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Timer, current_thread, main_thread
from types import FrameType, TracebackType
from typing import Any, NoReturn

__all__ = ["Stopped", "end_at_once", "stopping"]

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""From the keyboard, from another process such as a scheduler, and, but on Windows, from a terminal that is closed."""

_AGAIN = 0.01
"""Seconds after which a signal comes again whose exception was lost."""


class Stopped(BaseException):
    """A signal asks the program to end: no error, and nothing that code which handles errors may pass over.

    Parameters
    ----------
    number : of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def stopping() -> Iterator[None]:
    """While the block runs, have signals that ask the program to end raise `Stopped`; after it they end it at once.

    Those that are ignored, as an interrupt under `nohup`, stay ignored. An exception that is lost, because a library
    called Python where none can pass, as from a destructor, is raised anew a moment later.
    """
    if current_thread() is not main_thread():  # which no signal reaches
        yield
        return
    report, show = sys.unraisablehook, sys.excepthook

    def raise_again(lost: Any) -> None:
        stopped = _cause(lost.exc_value)
        if stopped is None:
            report(lost)
        else:
            Timer(_AGAIN, os.kill, (os.getpid(), stopped.number)).start()

    def show_others(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _cause(error) is None:  # what Cython loses it shows, too
            show(kind, error, trace)

    try:
        sys.unraisablehook, sys.excepthook = raise_again, show_others
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _stop)
        yield
    finally:
        end_at_once()
        sys.unraisablehook, sys.excepthook = report, show


def end_at_once() -> None:
    """From now on have signals end the process without a word; one that comes at this moment changes nothing.

    A second one is obeyed at once, and none finds the interpreter shutting down, which would show a traceback.
    """
    for number in ENDING:
        while signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL, None):
            with suppress(Stopped):
                signal.signal(number, signal.SIG_DFL)


def _cause(error: BaseException | None) -> Stopped | None:
    """Return what an exception is, or was raised in the handling of, if that is a signal's."""
    while error is not None and not isinstance(error, Stopped):
        error = error.__context__
    return error


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped(number)
