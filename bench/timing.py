"""The timer of the benchmarks, in milliseconds: calls until their result is there; and floors."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sparsenn.backends import backend_for
from sparsenn.studies.measure import Roofs, meter_for

__all__ = ["RUNS", "Timer", "Timing", "floor", "gpu_wait", "no_wait", "roofs", "roofs_in_words", "summary"]

Call = Callable[[], Any]

RUNS = 50
LEAST_RUNS = 5
WARM_UP = 5

BLOCKS = 5
PAUSE_SECONDS = 0.02  # longer than threads spin


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: median and interquartile range of `runs` calls."""

    median: float
    spread: float
    runs: int


def summary(milliseconds: Sequence[float]) -> Timing:
    """Return median, interquartile range, which is 0 for a single run, and number of runs."""
    low, middle, high = statistics.quantiles(milliseconds, n=4) if len(milliseconds) > 1 else [milliseconds[0]] * 3
    return Timing(middle, high - low, len(milliseconds))


def no_wait() -> None:
    """Return at once: what runs on the host is done when its call returns."""


def gpu_wait() -> Call:
    """Return a call that waits until the current GPU has done all that was queued on any stream."""
    import cupy

    return cupy.cuda.Device().synchronize  # type: ignore[no-any-return]


def _once(call: Call, wait: Call = no_wait) -> float:
    start = time.perf_counter()
    call()
    wait()
    return 1e3 * (time.perf_counter() - start)


def _block(call: Call, count: int) -> list[float]:
    """Return the milliseconds of calls one after the other; a call in another process times itself, by `block`."""
    block = getattr(call, "block", None)
    return [_once(call) for _ in range(count)] if block is None else block(count)


class Timer:
    """Times calls by the wall clock; the first call of each benchmark by pytest-benchmark.

    Parameters
    ----------
    benchmark : pytest-benchmark's fixture, which times one call; None times that one as all others.
    """

    def __init__(self, benchmark: Any = None) -> None:
        self._benchmark = benchmark

    def time(
        self,
        call: Call,
        wait: Call = no_wait,
        runs: int = RUNS,
        warm_up: int = WARM_UP,
        most_seconds: float | None = None,
        warm_seconds: float = 0.0,
        least_seconds: float = 0.0,
    ) -> Timing:
        """Time a call that is repeated, each time until its result is there.

        Parameters
        ----------
        wait : called after each call.
        warm_up, warm_seconds : calls before the timed ones, at least one, and for how long these go on at least.
        most_seconds : fewer runs where `runs` would take longer, but never fewer than 5; and a single call before them
            where even 5 do.
        least_seconds : more runs where `runs` would take less.
        """
        warm_until, done, fastest = time.perf_counter() + warm_seconds, 0, math.inf
        while done < max(1, warm_up) or time.perf_counter() < warm_until:
            last = max(_once(call, wait) / 1e3, 1e-9)
            done, fastest = done + 1, min(fastest, last)
            if most_seconds is not None and LEAST_RUNS * last > most_seconds:
                break
        runs = max(runs, math.ceil(least_seconds / fastest))
        if most_seconds is not None:
            runs = min(runs, max(LEAST_RUNS, int(most_seconds / last)))
        return summary(self._rounds(call, wait, runs))

    def in_turn(
        self,
        calls: Sequence[Call],
        wait: Call = no_wait,
        runs: int = RUNS,
        warm_up: int = WARM_UP,
    ) -> list[Timing]:
        """Time calls against each other: each once, then each again, so that a disturbance affects all.

        The other arguments are as for `time`.
        """
        first, *others = calls
        found: list[list[float]] = [[] for _ in others]

        def setup() -> None:
            for call, milliseconds in zip(others, found, strict=True):
                milliseconds.append(_once(call, wait))

        for _ in range(warm_up):
            setup()
            _once(first, wait)
        for milliseconds in found:
            milliseconds.clear()
        own = self._rounds(first, wait, runs, setup)
        return [summary(own), *map(summary, found)]

    def in_blocks(self, calls: Sequence[Call], seconds: float) -> list[Timing]:
        """Time calls of several libraries on a CPU, for some seconds in all, in blocks with a pause before each.

        So threads of a library that spin after its calls do not hold up those of another.
        """
        block = 1e3 * seconds / (BLOCKS * len(calls))
        counts = [max(1, int(block / max(min(_block(call, 2)), 1e-6))) for call in calls]
        (first, own_count), *others = zip(calls, counts, strict=True)
        found: list[list[float]] = [[] for _ in others]
        rounds = 0

        def setup() -> None:
            nonlocal rounds
            if rounds % own_count == 0:
                for (call, count), milliseconds in zip(others, found, strict=True):
                    time.sleep(PAUSE_SECONDS)
                    call()
                    milliseconds += _block(call, count)
                time.sleep(PAUSE_SECONDS)
                first()
            rounds += 1

        own = self._rounds(first, no_wait, BLOCKS * own_count, setup)
        return [summary(own), *map(summary, found)]

    def _rounds(self, call: Call, wait: Call, runs: int, setup: Call = no_wait) -> list[float]:
        """Return the milliseconds of each run; `setup` is called before each, and not timed."""
        benchmark, self._benchmark = self._benchmark, None
        if benchmark is None:
            return [(setup(), _once(call, wait))[1] for _ in range(runs)]

        def target() -> None:
            call()
            wait()

        benchmark.pedantic(target, setup=setup, rounds=runs)
        return [1e3 * seconds for seconds in benchmark.stats.stats.data]


# ---- Floors -----------------------------------------------------------------------------------------------------


@cache
def roofs(device: str) -> Roofs:
    """Measure what a device can do at most, once per process."""
    return meter_for(backend_for(device)).roofs()


def floor(device: str, moved: int, multiply_adds: int, precision: str = "float32") -> float:
    """Return the milliseconds that nothing can go below: bytes moved once, or multiply-adds at the precision's rate.

    float32's rate is a third of TF32's if that is more: three products of TF32 make one.
    """
    top = roofs(device)
    rate = top.multiply_adds[precision]
    if precision == "float32":
        rate = max(rate, top.multiply_adds.get("tf32", 0.0) / 3)
    return 1e3 * max(moved / top.copy_bandwidth, multiply_adds / rate)


def roofs_in_words(device: str) -> dict[str, Any]:
    """Return what a result file states of floors."""
    top = roofs(device)
    return {"copy_bytes_per_second": top.copy_bandwidth, "multiply_adds_per_second": dict(top.multiply_adds)}
