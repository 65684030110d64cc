"""Calls whose few rows are in host memory, as one replay: what numbers cannot be held is known once it has ended."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparsenn.backends import Backend, Features, Kernel, RowsWatch
from sparsenn.engine.finite import BatchGuard, OverflowGuard
from sparsenn.errors import NumericError
from sparsenn.formats import Array

__all__ = ["MAX_HOST_BYTES", "HostCall", "LoggingGuard"]

MAX_HOST_BYTES = 1 << 20
"""Of rows: more are brought to the device by several threads, while the first of them are computed."""

Look = tuple[float, bool]
"""The size of the largest finite number, and whether all are finite."""


class LoggingGuard(BatchGuard):
    """A guard of a batch that waits for no look: it takes all numbers for zeros, and logs what it was asked.

    Parameters
    ----------
    within : of the network.
    look : queues a look at features.
    """

    def __init__(self, within: OverflowGuard, look: Callable[[Features], None]) -> None:
        super().__init__(within, None, self._log)
        self._queue = look
        self._looks = 0
        self._asked: list[tuple[bool, tuple[Kernel, int, int], int]] = []

    def _log(self, features: Features) -> Look:
        self._queue(features)
        self._looks += 1
        return 0.0, True

    def before(self, kernel: Kernel, features: Features, first: int, last: int) -> int:
        """Queue the looks before a launch; return `last`."""
        super().before(kernel, features, first, last)
        self._asked.append((True, (kernel, first, last), self._looks))
        return last

    def after(self, kernel: Kernel, features: Features, first: int, last: int) -> None:
        """Queue the look after a launch."""
        super().after(kernel, features, first, last)
        self._asked.append((False, (kernel, first, last), self._looks))

    def approves(self, looks: list[Look]) -> bool:
        """Return whether a guard that waits would have let the launches pass as they were."""
        done = 0

        def next_look(_: Features) -> Look:
            nonlocal done
            done += 1
            return looks[min(done, len(looks)) - 1]

        guard, nothing = BatchGuard(self._within, None, next_look), np.zeros((0, 0), np.float32)
        try:
            for is_before, (kernel, first, last), expected in self._asked:
                if is_before and guard.before(kernel, nothing, first, last) != last:
                    return False
                if not is_before:
                    guard.after(kernel, nothing, first, last)
                if done != expected:
                    return False
        except NumericError:
            return False
        return True


class HostCall:
    """A run of an executable on rows in host memory, replayed.

    Parameters
    ----------
    backend : of the executable.
    shape : of the rows as a matrix.
    watch : looks for NaN and infinity among the rows, which are no others than those of calls that wait; None where
        they are not looked for.
    within : what half precision's range is guarded by; None where nothing is in half precision.
    looks : of the guard, at most.
    """

    def __init__(
        self,
        backend: Backend,
        shape: tuple[int, int],
        watch: RowsWatch | None,
        within: OverflowGuard | None,
        looks: int,
    ) -> None:
        self._backend, self._watch, self._within, self._looks = backend, watch, within, looks
        self._replay = backend.replay(shape, on_host=True)
        self._guard: LoggingGuard | None = None

    @property
    def nbytes(self) -> int:
        """Device memory that the replay takes, in bytes."""
        return 0 if self._replay is None else self._replay.nbytes

    def __call__(self, run: Callable[[Array, BatchGuard | None], Array], rows: Array) -> Array | None:
        """Return outputs, on the host; None where a number is not such as can be held, or there is no replay.

        Parameters
        ----------
        run : takes rows on the device through the steps, guarded; the same in each call.
        rows : contiguous.
        """
        if self._replay is None:
            return None

        def queue(features: Array) -> tuple[Array, ...]:
            if self._watch is not None:
                self._watch.look(features)
            if self._within is None:
                return (run(features, None),)
            log = self._backend.number_log(self._looks)
            self._guard = LoggingGuard(self._within, log.look)
            return run(features, self._guard), log.found

        results = self._replay(queue, rows)
        if results is None or (self._watch is not None and self._watch.found()):
            return None
        outputs, *found = results
        return outputs if self._guard is None or self._guard.approves(_looks(*found)) else None


def _looks(found: Array) -> list[Look]:
    """Return the looks of a `NumberLog`."""
    largest, spoilt = found.T
    return list(zip(largest.view(np.float32).tolist(), (spoilt == 0).tolist(), strict=True))
