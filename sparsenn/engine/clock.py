"""The clock of a run: wall time by part, with the time for compiling kernels kept apart."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from sparsenn.backends import Backend
from sparsenn.engine.result import Seconds

__all__ = ["Clock", "Unwatched"]


class Clock:
    """Measures from when it is made; it stands still while the backend compiles or loads kernels."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._compiled = backend.compile_seconds()
        self._start = self.now()
        self._parts = {name: _Part(self) for name in ("plan", "prepare", "transfer")}

    def now(self) -> float:
        """Return seconds since any moment, without those spent on compiling."""
        return time.perf_counter() - self._backend.compile_seconds()

    def part(self, name: str) -> AbstractContextManager[None]:
        """Count what runs inside as `plan`, `prepare` or `transfer`; no part may be inside itself."""
        return self._parts[name]

    def seconds(self, plan: float) -> Seconds:
        """Return where the time went until now: what was in no part was compute. `plan` was spent before."""
        parts = {name: part.seconds for name, part in self._parts.items()}
        compute = self.now() - self._start - sum(parts.values())
        compiled = self._backend.compile_seconds() - self._compiled
        return Seconds(compile=compiled, compute=compute, **{**parts, "plan": plan + parts["plan"]})


class _Part:
    """Counts the seconds of a clock that pass inside it."""

    def __init__(self, clock: Clock) -> None:
        self.seconds = 0.0
        self._clock, self._begun = clock, 0.0

    def __enter__(self) -> None:
        self._begun = self._clock.now()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.seconds += self._clock.now() - self._begun


class Unwatched:
    """A clock that nobody looks at."""

    _NOTHING = nullcontext()

    def now(self) -> float:
        """Return 0."""
        return 0.0

    def part(self, name: str) -> AbstractContextManager[None]:
        """Count nothing."""
        return self._NOTHING
