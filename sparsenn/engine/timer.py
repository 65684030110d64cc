"""The timer of a run: wall time by part, with the time for compiling and loading kernels apart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

from sparsenn.backends import Backend
from sparsenn.engine.result import Seconds
from sparsenn.runtime.jit import compile_seconds, load_seconds
from sparsenn.runtime.spans import span, watchers

__all__ = ["NullTimer", "ReadingTimer", "Timer"]


class Timer:
    """Measures from when it is made; it stands still while the backend compiles or loads kernels."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._compiled, self._loaded = backend.compile_seconds(), load_seconds()
        self._start = self.now()
        self._parts = {name: _Part(self) for name in ("plan", "prepare", "transfer")}

    def now(self) -> float:
        """Return seconds since any moment, without those spent on compiling and loading."""
        return time.perf_counter() - self._backend.compile_seconds() - load_seconds()

    def part(self, name: str, title: str) -> AbstractContextManager[object]:
        """Count what runs inside as `plan`, `prepare` or `transfer`, a span with a title; no part may be in itself."""
        part = self._parts[name]
        if not watchers[name]:
            return part
        return _both(span(title, name), part)

    def seconds(self, plan: float = 0.0, compiled: float = 0.0) -> Seconds:
        """Return where the time went until now: what was in no part was compute; loading kernels is to prepare.

        `plan` was spent before, of it `compiled` on compiling.
        """
        parts = {name: part.seconds for name, part in self._parts.items()}
        compute = self.now() - self._start - sum(parts.values())
        parts["plan"] += plan - compiled
        parts["prepare"] += load_seconds() - self._loaded
        compiled += self._backend.compile_seconds() - self._compiled
        return Seconds(compile=compiled, compute=compute, **parts)


class ReadingTimer:
    """Measures reading from when it is made, with the time that numba compiles kept apart."""

    def __init__(self) -> None:
        self._compiled, self._start = compile_seconds(), time.perf_counter()

    def seconds(self) -> Seconds:
        """Return what has passed until now."""
        compiled = compile_seconds() - self._compiled
        return Seconds(read=time.perf_counter() - self._start - compiled, compile=compiled)


class _Part:
    """Counts the seconds of a timer that pass inside it."""

    def __init__(self, timer: Timer) -> None:
        self.seconds = 0.0
        self._timer, self._begun = timer, 0.0

    def __enter__(self) -> None:
        self._begun = self._timer.now()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.seconds += self._timer.now() - self._begun


@contextmanager
def _both(outer: AbstractContextManager[object], inner: AbstractContextManager[object]) -> Iterator[None]:
    with outer, inner:
        yield


class NullTimer:
    """A timer that counts nothing."""

    def now(self) -> float:
        """Return 0."""
        return 0.0

    def part(self, name: str, title: str) -> AbstractContextManager[object]:
        """Count nothing; what runs inside is a span all the same."""
        return span(title, name)
