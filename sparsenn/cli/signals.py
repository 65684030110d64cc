"""Signals that ask the program to end: whenever they come, what was begun is undone, and the exit code names them."""

from __future__ import annotations

import signal
import sys
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, current_thread, get_ident, main_thread
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Stopped", "end_at_once", "stopped", "stopping"]

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""From the keyboard, from another process such as a scheduler, and, but on Windows, from a terminal that is closed."""

AGAIN = 0.1
"""Seconds after which a signal comes again, in case its exception was lost."""


class Stopped(BaseException):
    """A signal asks the program to end: no error, and nothing that code which handles errors may pass over.

    Parameters
    ----------
    number : of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_raised: list[Stopped] = []
"""All exceptions so far, and through their tracebacks the interrupted frames: a deleted half-made object crashes."""


@contextmanager
def stopping() -> Iterator[None]:
    """While the block runs, have signals that ask the program to end raise `Stopped`; after it they end it at once.

    Those that are ignored, as an interrupt under `nohup`, stay ignored. An exception may be lost: in a destructor, or
    where a library makes another one of it and handles that. So it is raised anew, a moment later, and as often as it
    takes, but not while one is being handled. Once a signal has come, nothing is said of exceptions in destructors, not
    even after the block: what dies half-made complains.
    """
    global _handler
    if current_thread() is not main_thread():  # where no signal arrives
        yield
        return
    report, show, handler = sys.unraisablehook, sys.excepthook, _Handler()
    _handler = handler

    def report_unless_stopped(lost: Any) -> None:
        if handler.stopped is None:
            report(lost)

    def show_unless_stopped(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if handler.stopped is None:  # what Cython loses it shows, too
            show(kind, error, trace)

    try:
        sys.unraisablehook, sys.excepthook = report_unless_stopped, show_unless_stopped
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)
        yield
    finally:
        end_at_once()
        _handler = None
        if handler.stopped is None:
            sys.unraisablehook, sys.excepthook = report, show


def stopped() -> Stopped | None:
    """Return what the first signal has raised while the block of `stopping` runs; None if none has come."""
    return _handler.stopped if _handler is not None else None


def end_at_once() -> None:
    """From now on have signals end the process without a word; one that comes at this moment changes nothing.

    A second one is obeyed at once, and none finds the interpreter shutting down, which would show a traceback.
    """
    if _handler is not None:
        _handler.rest()
    for number in ENDING:
        while signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL, None):
            with suppress(Stopped):
                signal.signal(number, signal.SIG_DFL)


class _Handler:
    """Raises `Stopped` at each signal, and has the first one come again and again.

    Attributes
    ----------
    stopped : what was raised at the first signal; None before it.
    """

    def __init__(self) -> None:
        self.stopped: Stopped | None = None
        self._over = self._repeated = False
        self._lock = Lock()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        repeated, self._repeated = self._repeated, False
        if repeated and _is_handled():
            return
        _raised.append(Stopped(number))
        if self.stopped is None:
            self.stopped = _raised[-1]
            with suppress(RuntimeError, AttributeError):  # no further thread, or, on Windows, no such signals
                start_new_thread(self._repeat, (number, get_ident(), signal.pthread_kill))
        raise _raised[-1]

    def rest(self) -> None:
        """Have no signal come again from now on."""
        while not self._over:
            with suppress(Stopped), self._lock:
                self._over = True

    def _repeat(self, number: int, thread: int, send: Callable[[int, int], None]) -> None:
        while True:
            time.sleep(AGAIN)
            with self._lock:
                if self._over:
                    return
                self._repeated = True
                send(thread, number)


_handler: _Handler | None = None
"""Of the block of `stopping` that runs."""


def _is_handled() -> bool:
    """Whether a signal's exception, or one that was raised in the handling of such a one, is being handled."""
    error = sys.exception()
    while error is not None and not isinstance(error, Stopped):
        error = error.__context__
    return error is not None
