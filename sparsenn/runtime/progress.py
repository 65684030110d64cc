"""How long work reports where it stands: one call signature, understood by every layer of the package.

Compiling is announced from wherever it is waited for, by one line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

__all__ = ["COMPILING", "Progress", "announce_compilation", "compilation_announced_by", "silent"]

COMPILING = "compiling kernels, once …"
"""The line on stderr when kernels begin to be compiled: later runs load them."""


class Progress(Protocol):
    """Receives the state of a piece of work; called often, so it must be cheap."""

    def __call__(self, task: str, done: int, total: int) -> None:
        """Take note that `done` of `total` steps of `task` are finished; a task ends when the two are equal."""
        ...


def silent(task: str, done: int, total: int) -> None:
    """Report nothing."""


def _to_reader() -> None:
    """Print the line where somebody may read it: on a terminal, or in a notebook."""
    stream = sys.stderr
    if stream is not None and (stream.isatty() or type(stream).__module__.startswith("ipykernel.")):
        print(COMPILING, file=stream, flush=True)


_announce: Callable[[], None] = _to_reader
_announced = False


def announce_compilation() -> None:
    """Announce, once in a process, that kernels are compiled: by a line on stderr, where somebody may read it."""
    global _announced
    if not _announced:
        _announced = True
        with suppress(OSError, ValueError):  # nobody reads it, and work goes on
            _announce()


@contextmanager
def compilation_announced_by(announce: Callable[[], None]) -> Iterator[None]:
    """Have another function announce compilation in the block, once."""
    global _announce, _announced
    before, was_announced = _announce, _announced
    _announce, _announced = announce, False
    try:
        yield
    finally:
        _announce, _announced = before, was_announced or _announced
