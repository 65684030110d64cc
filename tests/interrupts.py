"""Whether processes that tests start end at an interrupt, whatever the process that runs the tests does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["interrupts_ignored", "interrupts_obeyed"]


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
