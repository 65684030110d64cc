"""What the recorded ladders of dense kernels share: timing of calls of microseconds or seconds, and the way to a file.

Calls are queued while the device is kept busy, so that the time the host takes to start them does not count; the same
for the project's rungs, for cuBLAS and for PyTorch, which shares CuPy's stream.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np
from event_timing import Timing, timed
from results_file import Column, results_path
from rung_plots import draw_rungs

__all__ = ["difference", "inputs_in_turn", "record_rungs", "timed_in_turn"]

Row = dict[str, Any]

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


def difference(found: Any, right: Any) -> float:
    """Return the largest difference in parts of the largest output; NaN stays NaN."""
    return float(cp.abs(found.astype(np.float64) - right).max() / cp.abs(right).max())


def record_rungs(
    table: str,
    columns: Sequence[Column],
    measured: Iterable[Row],
    write: Callable[[Path, Sequence[Row]], None],
    machine: str | None,
    plot: Path | None = None,
) -> int:
    """Print rows as they are measured, write them to the table's result file, draw them; return the exit code."""
    rows = []
    for row in measured:
        print("  ".join(column.show(row[column.key]) for column in columns), flush=True)
        rows.append(row)
    if not rows:
        print("nothing was measured in the time given", file=sys.stderr)
        return 1
    path = results_path(table, folder=machine)
    write(path, rows)
    print(path)
    if plot:
        draw_rungs(table, rows, plot)
    return 0 if all(row["error"] <= ALLOWED[row["precision"]] for row in rows) else 1
