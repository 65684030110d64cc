"""How long work reports where it stands: one call signature, understood by every layer of the package.

Compiling is announced from wherever it is waited for, by one line.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol, TypeAlias

from sparsenn.errors import UsageError

COMPILING = "compiling kernels, once …"
"""The line on stderr when kernels begin to be compiled: later runs load them."""

UNSHOWN_SECONDS = 0.5
"""Seconds of work before bars appear that nobody asked for: a short call does not flicker."""


class Progress(Protocol):
    """Receives the state of a piece of work; called often, so it must be cheap."""

    def __call__(self, task: str, done: int, total: int) -> None:
        """Take note that `done` of `total` steps of `task` are finished; a task ends when the two are equal."""
        ...


ProgressOption: TypeAlias = Progress | bool | None
"""The argument `progress` of public functions: a callback, whether bars are shown, or None for where they can be."""


def silent(task: str, done: int, total: int) -> None:
    """Report nothing."""


def is_notebook(stream: Any) -> bool:
    """Return whether a stream's text appears in a notebook."""
    return type(stream).__module__.startswith("ipykernel.")


def has_reader(stream: Any) -> bool:
    """Return whether somebody may read a stream: on a terminal, or in a notebook."""
    return stream is not None and (stream.isatty() or is_notebook(stream))


@contextmanager
def shown_progress(progress: ProgressOption) -> Iterator[Progress]:
    """Yield the function that reports to a caller: the caller's own, bars, lines, or one that reports nothing.

    None shows bars where somebody may read them, if the work takes a while; True shows them at once, and lines where
    stderr is neither a terminal nor a notebook; False shows nothing, nor that kernels are compiled.
    """
    if callable(progress):
        yield progress
    elif isinstance(progress, bool):
        from sparsenn.runtime.bars import reporting

        with reporting(progress) as report:
            yield report
    elif progress is not None:
        raise UsageError(
            f"the progress is {progress!r}; give True, False, or a function of a task, steps done and all steps"
        )
    elif has_reader(sys.stderr):
        with ExitStack() as stack:
            yield _LateBars(stack)
    else:
        yield silent


_bars = threading.Lock()
"""Held while bars that nobody asked for are shown: of several threads, one shows its own."""


class _LateBars:
    """Bars that appear once the work has taken `UNSHOWN_SECONDS`; the stack ends them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._start = stack, time.monotonic()
        self._draw: Callable[[str, int, int, str], None] | None = None

    def __call__(self, task: str, done: int, total: int) -> None:
        if self._draw is None:
            if time.monotonic() - self._start < UNSHOWN_SECONDS or not _bars.acquire(blocking=False):
                return
            self._stack.callback(_bars.release)
            from sparsenn.runtime.bars import drawn_progress

            self._draw = self._stack.enter_context(drawn_progress())
        self._draw(task, done, total, "")


def _to_reader() -> None:
    if has_reader(sys.stderr):
        print(COMPILING, file=sys.stderr, flush=True)


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
