"""Timing calls on a GPU by events, without what the host takes to queue them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import cupy as cp
import numpy as np

RUNS = 20
FEW_RUNS = 5
LONG_SECONDS = 0.25
"""Above this, FEW_RUNS: seconds-long runs of cuSPARSE would take most of an hour otherwise."""

SAMPLE_SECONDS = 1e-4
"""Short calls are timed several at a time, so that events cost nothing beside them."""

_SPIN = cp.RawModule(
    code=r"""
// Keeps the device busy while the host queues up what is to be timed.
extern "C" __global__ void spin(long long nanoseconds) {
    long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - start < nanoseconds);
}
""",
    options=("-std=c++17",),
)


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median and interquartile range of `runs` samples."""

    median: float
    spread: float
    runs: int


def timed(call: Callable[[], object], runs: int = RUNS) -> Timing:
    """Time a call by events. Everything is queued while the device is kept busy, so that the host does not count."""
    host, device = _once(call)
    if device > LONG_SECONDS:
        runs = min(runs, FEW_RUNS)
    else:
        host, device = _once(call)
    calls = max(1, min(10, int(SAMPLE_SECONDS / device)))
    events = [(cp.cuda.Event(), cp.cuda.Event()) for _ in range(runs)]
    _SPIN.get_function("spin")((1,), (1,), (np.int64(min(0.2, 1e-3 + 1.5 * host * calls * runs) * 1e9),))
    for start, stop in events:
        start.record()
        for _ in range(calls):
            call()
        stop.record()
    cp.cuda.get_current_stream().synchronize()
    seconds = [cp.cuda.get_elapsed_time(*pair) / 1e3 / calls for pair in events]
    low, middle, high = statistics.quantiles(seconds, n=4)
    return Timing(middle, high - low, runs)


def _once(call: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that the host takes to queue a call, and that the device takes to be done with it."""
    cp.cuda.get_current_stream().synchronize()
    start = time.perf_counter()
    call()
    queued = time.perf_counter()
    cp.cuda.get_current_stream().synchronize()
    return queued - start, max(1e-6, time.perf_counter() - start)
