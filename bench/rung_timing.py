"""What the recorded ladders of conv2d and gemm share: timing calls that take microseconds or seconds, and their floors.

Calls are queued while the device is kept busy, so that the time the host takes to start them does not count; the same
for the project's rungs, for cuBLAS and for PyTorch, which shares CuPy's stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import cupy as cp
from event_timing import Timing, timed
from record_mlp import Peaks

__all__ = ["ALLOWED", "floor_seconds", "inputs_in_turn", "timed_in_turn"]

ALLOWED = {"float32": 2e-5, "tf32": 5e-3, "float16": 1e-2}
"""Largest difference from float64, in parts of the largest output."""

CACHE_BYTES = 200 << 20
"""Inputs are taken in turn, as many as are larger than any cache."""

MOST_IN_TURN = 16

RUNS, FEW_RUNS, LEAST_RUNS = 20, 7, 3
SLOW_SECONDS, SLOWEST_SECONDS = 0.01, 0.2
"""Calls that take longer are run fewer times."""


def inputs_in_turn(size: int) -> int:
    """Return how many inputs are taken in turn, if a call reads and writes so many bytes."""
    return max(1, min(MOST_IN_TURN, -(-CACHE_BYTES // max(1, size))))


def timed_in_turn(call: Callable[[Any], object], given: Sequence[Any]) -> Timing:
    """Return the time of a call, median and interquartile range, on inputs in turn; slow ones are run less often."""
    call(given[0])
    cp.cuda.get_current_stream().synchronize()
    start = time.perf_counter()
    call(given[0])
    cp.cuda.get_current_stream().synchronize()
    once = time.perf_counter() - start
    runs = RUNS if once < SLOW_SECONDS else FEW_RUNS if once < SLOWEST_SECONDS else LEAST_RUNS
    taken = given if once < SLOW_SECONDS else given[:1]
    found = timed(lambda: [call(each) for each in taken], runs)
    return Timing(found.median / len(taken), found.spread / len(taken), found.runs)


def floor_seconds(top: Peaks, moved: int, multiply_adds: int, precision: str) -> float:
    """Return the seconds that nothing can go below: bytes moved once, or multiply-adds at the precision's rate.

    float32's are those of cuBLAS, or a third of TF32's if that is more: three products of parts make one.
    """
    seconds = multiply_adds / top.rates[precision]
    if precision == "float32":
        seconds = min(seconds, 3 * multiply_adds / top.rates["tf32"])
    return max(seconds, moved / top.copied)
