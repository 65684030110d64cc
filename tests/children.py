"""Processes that tests start: whether they end at an interrupt, and what they take of the processors' time."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["interrupts_ignored", "interrupts_obeyed", "processor_time"]


@contextmanager
def interrupts_obeyed() -> Iterator[None]:
    """While this lasts, processes are started that end at an interrupt; `nohup` and `&` make them ignore it else."""
    with _own_action(signal.default_int_handler):
        yield


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """While this lasts, processes are started that ignore interrupts, as `nohup` and `&` start them."""
    with _own_action(signal.SIG_IGN):
        yield


@contextmanager
def _own_action(action: signal._HANDLER) -> Iterator[None]:
    """A process that is started ignores what its parent ignores; what that handles itself ends it."""
    before = signal.signal(signal.SIGINT, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def processor_time() -> Iterator[Callable[[], float]]:
    """Measure the seconds that processes take of processors, from their start to their end within; others may be busy.

    Yields what returns them, afterwards.
    """
    before = _spent()
    yield lambda: after - before
    after = _spent()


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
