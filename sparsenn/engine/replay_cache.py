"""The replays of all executables of a session, and calls with few rows in host memory, each of which is one replay."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from sparsenn.backends import Backend, Features, Kernel, RowsWatch
from sparsenn.engine.finite import BatchGuard, OverflowGuard, is_half
from sparsenn.errors import NumericError
from sparsenn.formats import Array

__all__ = ["MAX_HOST_BYTES", "HostCall", "ReplayCache"]

MAX_BYTES = 512 << 20  # device memory of all replays but the last one
MAX_REPLAYS = 32  # each takes memory of the driver as well: some 100 kB on the device, and as much on the host
MAX_HOST_BYTES = 1 << 20
"""Bytes of rows: larger ones are copied to the device by several threads, while the first rows are computed."""

_Scan: TypeAlias = tuple[float, bool]
"""The size of the largest finite number, and whether all are finite."""


class ReplayCache:
    """The replays that were called last."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._replays: OrderedDict[tuple[Hashable, ...], Any] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Device memory of all replays, in bytes."""
        return sum(replay.nbytes for replay in self._replays.values())

    @cached_property
    def host_watch(self) -> RowsWatch | None:
        """The check of rows in host memory, whose calls wait, and report no faults of earlier calls."""
        return self._backend.rows_watch()

    def get(self, key: tuple[Hashable, ...]) -> Any:
        """Return the replay of a key, or None."""
        replay = self._replays.get(key)
        if replay is not None:
            self._replays.move_to_end(key)
        return replay

    def put(self, key: tuple[Hashable, ...], replay: Any) -> None:
        """Cache a replay, or a `HostCall`; keys begin with their executable's."""
        while len(self._replays) >= MAX_REPLAYS or self.nbytes > MAX_BYTES:
            self._backend.queue.before_drop()
            self._replays.popitem(last=False)[1].drop()  # which functions of repeated calls may still refer to
        self._replays[key] = replay

    def drop(self, executable: Hashable) -> None:
        """Drop the replays of an executable; the caller has called `Queue.before_drop`."""
        for key in [key for key in self._replays if key[0] == executable]:
            del self._replays[key]

    def clear(self) -> None:
        """Drop all replays, as `drop` does."""
        self._replays.clear()


class _LoggingGuard(BatchGuard):
    """A guard of a batch that waits for no scan: it passes every launch, and logs the questions for `approves`."""

    def __init__(self, overflow_guard: OverflowGuard, queue_scan: Callable[[Features], None]) -> None:
        super().__init__(overflow_guard, self._log_scan)
        self._queue_scan = queue_scan
        self._scans = 0
        self._questions: list[tuple[str, tuple[Kernel, Features, int, int], int]] = []

    def _log_scan(self, features: Features) -> _Scan:
        self._queue_scan(features)
        self._scans += 1
        return 0.0, True

    def before(self, kernel: Kernel, features: Features, first: int, last: int) -> int:
        super().before(kernel, features, first, last)
        self._log("before", kernel, features, first, last)
        return last

    def after(self, kernel: Kernel, features: Features, first: int, last: int) -> None:
        super().after(kernel, features, first, last)
        self._log("after", kernel, features, first, last)

    def _log(self, question: str, kernel: Kernel, features: Features, first: int, last: int) -> None:
        numbers = np.zeros((0, 0), np.float16 if is_half(features) else np.float32)
        self._questions.append((question, (kernel, numbers, first, last), self._scans))

    def approves(self, scans: list[_Scan]) -> bool:
        """Return whether a guard that waits would have let the launches pass as they were."""
        done = 0

        def next_scan(_: Features) -> _Scan:
            nonlocal done
            done += 1
            return scans[min(done, len(scans)) - 1]

        guard = BatchGuard(self._overflow_guard, next_scan)
        try:
            return all(
                getattr(guard, question)(*asked) in (None, asked[-1]) and done == expected
                for question, asked, expected in self._questions
            )
        except NumericError:
            return False


class HostCall:
    """A run of an executable on rows in host memory, replayed; its watch is of such calls alone."""

    def __init__(
        self,
        backend: Backend,
        shape: tuple[int, int],
        watch: RowsWatch | None,
        overflow_guard: OverflowGuard | None,
        scans: int,
    ) -> None:
        self._backend, self._watch, self._overflow_guard, self._scans = backend, watch, overflow_guard, scans
        self._replay = backend.queue.replay(shape, on_host=True)
        self._guard: _LoggingGuard | None = None

    @property
    def nbytes(self) -> int:
        """Device memory of the replay, in bytes."""
        return 0 if self._replay is None else self._replay.nbytes

    def drop(self) -> None:
        """Free that memory."""
        if self._replay is not None:
            self._replay.drop()

    def __call__(self, run: Callable[[Array, BatchGuard | None], Array], rows: Array) -> Array | None:
        """Return outputs, on the host; None where a check fails, or there is no replay.

        `run` takes rows on the device through the steps, guarded, and is the same in each call.
        """
        if self._replay is None:
            return None

        def queue(features: Array) -> tuple[Array, ...]:
            if self._watch is not None:
                self._watch.scan(features)
            if self._overflow_guard is None:
                return (run(features, None),)
            log: Any = self._backend.number_check(self._scans)
            self._guard = _LoggingGuard(self._overflow_guard, log.scan)
            return run(features, self._guard), log.results

        results = self._replay(queue, rows)
        if results is None or (self._watch is not None and self._watch.take_fault()):
            return None
        outputs: Array = results[0]
        if self._guard is None:
            return outputs
        largest, faulty = results[1].T
        scans = list(zip(largest.view(np.float32).tolist(), (faulty == 0).tolist(), strict=True))
        return outputs if self._guard.approves(scans) else None
