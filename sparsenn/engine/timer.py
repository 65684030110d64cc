"""The timer of a run: wall time by part, with the time for compiling and loading kernels apart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sparsenn.backends import Backend
from sparsenn.engine.result import Seconds
from sparsenn.runtime.jit import compile_seconds, load_seconds
from sparsenn.runtime.spans import span

__all__ = ["NullTimer", "ReadingTimer", "Timer"]


class Timer:
    """Measures from when it is made; it stands still while the backend compiles or loads kernels."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._compiled, self._loaded = backend.compile_seconds(), load_seconds()
        self._start = self.now()
        self._parts = {"plan": 0.0, "prepare": 0.0, "transfer": 0.0}

    def now(self) -> float:
        """Return seconds since any moment, without those spent on compiling and loading."""
        return time.perf_counter() - self._backend.compile_seconds() - load_seconds()

    @contextmanager
    def part(self, name: str, title: str) -> Iterator[None]:
        """Count the block as `plan`, `prepare` or `transfer`, a span with a title; no such block may be in another."""
        with span(title, name):
            begun = self.now()
            try:
                yield
            finally:
                self._parts[name] += self.now() - begun

    def seconds(self, plan: float = 0.0, compiled: float = 0.0) -> Seconds:
        """Return where the time went until now: what was in no part was compute; loading kernels is to prepare.

        `plan` was spent before, of it `compiled` on compiling.
        """
        parts = dict(self._parts)
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


class NullTimer:
    """A timer that counts nothing."""

    def now(self) -> float:
        """Return 0."""
        return 0.0

    def part(self, name: str, title: str) -> AbstractContextManager[object]:
        """Count nothing; what runs inside is a span all the same."""
        return span(title, name)
