"""The clock of a run: wall time by part, with the time for compiling kernels kept apart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from sparsenn.backends import Backend
from sparsenn.engine.result import Seconds

__all__ = ["Clock", "Unwatched"]


class Clock:
    """Measures from when it is made; it stands still while the backend compiles or loads kernels."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._compiled = backend.compile_seconds()
        self._start = self.now()
        self._parts = {"plan": 0.0, "prepare": 0.0, "transfer": 0.0}

    def now(self) -> float:
        """Return seconds since any moment, without those spent on compiling."""
        return time.perf_counter() - self._backend.compile_seconds()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what runs inside as `plan`, `prepare` or `transfer`."""
        start = self.now()
        try:
            yield
        finally:
            self._parts[name] += self.now() - start

    def seconds(self, plan: float) -> Seconds:
        """Return where the time went until now: what is in no part was compute. `plan` was spent before."""
        compute = self.now() - self._start - sum(self._parts.values())
        compiled = self._backend.compile_seconds() - self._compiled
        parts = {**self._parts, "plan": plan + self._parts["plan"]}
        return Seconds(compile=compiled, compute=compute, **parts)


class Unwatched:
    """A clock that nobody looks at."""

    _NOTHING = nullcontext()

    def now(self) -> float:
        """Return 0."""
        return 0.0

    def part(self, name: str) -> AbstractContextManager[None]:
        """Count nothing."""
        return self._NOTHING
