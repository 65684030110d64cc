"""Each cell of the table that `record.py` records, as a benchmark."""

from __future__ import annotations

from typing import Any

from record import Run
from timing import Timer


def bench_cell(cell: Any, run: Run, benchmark: Any) -> None:
    run.record(cell, Timer(benchmark))
