"""The timer of a run: wall time by section, without the time for compiling and loading kernels."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sparsenn.backends import compile_seconds
from sparsenn.engine.result import Seconds
from sparsenn.runtime.jit import load_seconds
from sparsenn.runtime.spans import span

__all__ = ["ReadingTimer", "Timer", "now", "section"]


class Timer:
    """Measures from its beginning on; it stands still while kernels are compiled or loaded."""

    def __init__(self) -> None:
        self._compiled, self._loaded = compile_seconds(), load_seconds()
        self._start = self.now()
        self._sections = {"plan": 0.0, "prepare": 0.0, "transfer": 0.0}

    def now(self) -> float:
        """Return seconds of a clock that stands still during compiling and loading."""
        return time.perf_counter() - compile_seconds() - load_seconds()

    @contextmanager
    def section(self, name: str, title: str) -> Iterator[None]:
        """Count the block as `plan`, `prepare` or `transfer`, a span with a title; sections do not nest."""
        with span(title, name):
            begun = self.now()
            try:
                yield
            finally:
                self._sections[name] += self.now() - begun

    def seconds(self, plan: float = 0.0, compiled: float = 0.0) -> Seconds:
        """Return where the time went until now: time in no section was compute; loading kernels is to prepare.

        `plan` was spent before, of it `compiled` on compiling.
        """
        sections = dict(self._sections)
        compute = self.now() - self._start - sum(sections.values())
        sections["plan"] += plan - compiled
        sections["prepare"] += load_seconds() - self._loaded
        compiled += compile_seconds() - self._compiled
        return Seconds(compile=compiled, compute=compute, **sections)


class ReadingTimer:
    """Measures reading from its beginning on; the time of compiling is separate."""

    def __init__(self) -> None:
        self._compiled, self._start = compile_seconds(), time.perf_counter()

    def seconds(self) -> Seconds:
        """Return what has passed until now."""
        compiled = compile_seconds() - self._compiled
        return Seconds(read=time.perf_counter() - self._start - compiled, compile=compiled)


def now(timer: Timer | None) -> float:
    """Return a timer's seconds; 0 without one."""
    return 0.0 if timer is None else timer.now()


def section(timer: Timer | None, name: str, title: str) -> AbstractContextManager[object]:
    """Count the block as a section of a timer, if there is one; it is a span in any case."""
    return span(title, name) if timer is None else timer.section(name, title)
