"""Each case of the table that `record.py` records, as a benchmark."""

from __future__ import annotations

from typing import Any

from record import Case, Run
from timing import Timer


def bench_case(case: Case, run: Run, benchmark: Any) -> None:
    run.record(case, Timer(benchmark))
