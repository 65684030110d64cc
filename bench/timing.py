"""The timer of the benchmarks, in milliseconds: calls until their result is there, or a GPU's work by events."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

__all__ = ["RUNS", "Timer", "Timing", "between_events", "captured", "gpu_wait", "no_wait", "queued", "summary"]

Call = Callable[[], Any]

RUNS = 50
LEAST_RUNS = 5
WARM_UP = 5

BLOCKS = 5
PAUSE_SECONDS = 0.02  # longer than threads spin

QUEUED_RUNS, FEW_RUNS = 20, 5
LONG_MILLISECONDS = 250.0
"""Work on a GPU that takes longer is timed FEW_RUNS times: cuSPARSE would take most of an hour otherwise."""

SAMPLE_MILLISECONDS = 0.1
"""Shorter work is timed several calls at a time, so that events cost nothing beside it."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: median, interquartile range and least of `runs` calls."""

    median: float
    spread: float
    runs: int
    least: float = 0.0


def summary(milliseconds: Sequence[float]) -> Timing:
    """Return median, interquartile range, which is 0 for a single run, number of runs, and the least."""
    low, middle, high = statistics.quantiles(milliseconds, n=4) if len(milliseconds) > 1 else [milliseconds[0]] * 3
    return Timing(middle, high - low, len(milliseconds), min(milliseconds))


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
        before: Call = no_wait,
    ) -> list[Timing]:
        """Time calls against each other: each once, then each again, so that a disturbance affects all.

        `before` is called before each call, and not timed; the other arguments are as for `time`.
        """
        first, *others = calls
        found: list[list[float]] = [[] for _ in others]

        def setup() -> None:
            for call, milliseconds in zip(others, found, strict=True):
                before()
                milliseconds.append(_once(call, wait))
            before()

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


# ---- Events of a GPU --------------------------------------------------------------------------------------------

_SPIN = r"""
// Keeps the device busy while the host queues up what is to be timed.
extern "C" __global__ void spin(long long nanoseconds) {
    long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - start < nanoseconds);
}
"""


@cache
def _spin() -> Any:
    import cupy

    return cupy.RawModule(code=_SPIN, options=("-std=c++17",)).get_function("spin")


def queued(call: Call, runs: int = QUEUED_RUNS) -> Timing:
    """Time work on the current stream by events, queued while the device is busy so that the host does not count.

    Runs are fewer where one takes more than a quarter of a second.
    """
    host, device = _queue_and_wait(call)
    if device > LONG_MILLISECONDS:
        runs = min(runs, FEW_RUNS)
    else:
        host, device = _queue_and_wait(call)
    calls = max(1, min(10, int(SAMPLE_MILLISECONDS / device)))
    milliseconds = min(200.0, 1.0 + 1.5 * host * calls * runs)
    _spin()((1,), (1,), (np.int64(1e6 * milliseconds),))
    return between_events(lambda: [call() for _ in range(calls)], runs, calls, warm_up=0)


def between_events(call: Call, runs: int, calls: int = 1, warm_up: int = 3, stream: Any = None) -> Timing:
    """Time a call that queues the work of `calls` calls on a stream, the current one if None; launches count, too."""
    import cupy

    stream = stream or cupy.cuda.get_current_stream()
    for _ in range(warm_up):
        call()
    events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(runs)]
    for start, stop in events:
        start.record(stream)
        call()
        stop.record(stream)
    stream.synchronize()
    return summary([cupy.cuda.get_elapsed_time(*pair) / calls for pair in events])


def captured(calls: Sequence[Call], runs: int) -> Timing:
    """Time what calls of CuPy launch one after the other, captured in one graph, per call.

    Raises
    ------
    RuntimeError
        A call cannot be captured.
    """
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for call in calls:
            call()
        stream.synchronize()
        stream.begin_capture()
        try:
            outputs = [call() for call in calls]  # live as long as the graph that writes them
        finally:
            graph = stream.end_capture()  # the stream must not go on capturing
        found = between_events(lambda: graph.launch(stream), runs, len(calls), stream=stream)
        del outputs
    return found


def _queue_and_wait(call: Call) -> tuple[float, float]:
    """Return the milliseconds that the host takes to queue a call, and that the device takes to be done with it."""
    import cupy

    stream = cupy.cuda.get_current_stream()
    stream.synchronize()
    start = time.perf_counter()
    call()
    host = time.perf_counter() - start
    stream.synchronize()
    return 1e3 * host, max(1e-3, 1e3 * (time.perf_counter() - start))
