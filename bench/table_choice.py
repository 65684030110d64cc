"""How well a session chooses: the plan that it measured and took beside every candidate, timed in turn.

`choice_cells.py` draws the networks and rows. A session is made and called five times, on rows where it computes; then
it is timed in turn with a session for each other candidate. --add continues a run that was short of time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from cases import random_rows
from choice_cells import CPU_CELLS, GPU_CELLS, Chain, Convolutions, network_of
from peers import Problem
from record import Case, Row, Run, Table
from table_session import check, exact, place
from timing import Timing, gpu_wait, no_wait

from sparsenn import Plan, Session
from sparsenn.engine.choosing import segments_of
from sparsenn.errors import SparseNNError
from sparsenn.runtime import choices

__all__ = ["TABLES", "kernels_of"]

MOST = 1.1
"""The longest time of the choice, relative to the fastest candidate's, without tolerance for the spread of the two."""

CALLS = 5
"""Calls of a session before it is timed."""

HOPELESS = 2.0
"""A candidate whose fastest call of a few takes so many times the choice's is not timed further."""

RUNS, LEAST_RUNS = 30, 5
CELL_SECONDS = 0.6
"""Timed calls of each candidate, fewer where all take longer than that together."""

WITHIN = 4.0
"""Candidates whose prior is longer, relative to the shortest, are left out; a session measures fewer."""


def candidates_of(plan: Plan) -> Iterator[Plan]:
    """Yield the plans that differ from a session's in the kernels of one segment, and may be as fast."""
    for segment in segments_of(plan.compiled, plan.rows):
        limit, (first, last) = WITHIN * segment[0].prior, segment[0].layers
        chosen = plan.kernels[first:last]
        for other in segment:
            kernels = tuple(step.kernel for step in other for _ in step.layers)
            if kernels == chosen or (other.prior > limit and not other.skips_rows):
                continue
            if plan.keeps_half and not all(kernel.half_rows for kernel in kernels):
                continue
            before = (step for step in plan.steps if step.last <= first)
            after = (step for step in plan.steps if step.first >= last)
            yield replace(plan, steps=(*before, *other, *after))


def kernels_of(plan: Plan) -> str:
    """Return the kernels of a plan, step by step."""
    return ", ".join(f"{step.kernel.name} {step.first + 1}-{step.last}" for step in plan.steps)


def in_turn(calls: Mapping[str, Callable[[], Any]], wait: Callable[[], None], run: Run) -> dict[str, Timing]:
    """Time all calls."""
    once = sum(seconds_of(call, wait) for call in calls.values())
    runs = max(LEAST_RUNS, min(RUNS, int(CELL_SECONDS / max(once, 1e-9))))
    return dict(zip(calls, run.timer.in_turn(list(calls.values()), wait, runs, warm_up=1), strict=True))


def seconds_of(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Return the seconds of one call."""
    wait()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def choice_row(cell: Chain | Convolutions, run: Run) -> Row:
    """Time the choice and the other candidates.

    Raises
    ------
    WrongAnswerError
        An answer differs from the reference.
    """
    network, device, precision = network_of(cell), run.options.device, cell.precision
    where, wait = ("device", gpu_wait()) if device == "cuda" else ("host", no_wait)
    problem = Problem(network, random_rows(cell.rows, network.inputs), device, where)
    expected, rows = exact(problem), place(problem.rows, problem, precision)
    make = partial(Session, network, device=device, precision=precision)
    with ExitStack() as stack:
        session = stack.enter_context(make())
        call = partial(session, rows)
        first = seconds_of(call, wait)
        for _ in range(CALLS - 1):
            call()
        check(problem, precision, call(), expected)
        with make() as later:  # its choice has been cached
            measuring = max(0.0, first - seconds_of(partial(later, rows), wait))
        plan = session.plan(rows)
        key = plan.compiled.choice_key(plan.rows.count, plan.rows.form)
        choices.clear(str(key["network"]))  # so that a later run measures anew
        chosen, others = kernels_of(plan), {}
        calls = {chosen: call}
        limit = HOPELESS * min(seconds_of(call, wait) for _ in range(CALLS))
        for candidate in candidates_of(plan):
            title, other = kernels_of(candidate), stack.enter_context(Session.of_plan(candidate))
            call = partial(other, rows)
            try:
                call()
                call()
                seconds = min(seconds_of(call, wait) for _ in range(CALLS - 2))  # one may capture a graph
                if seconds <= limit:
                    check(problem, precision, call(), expected)
            except (SparseNNError, MemoryError) as error:
                print(f"  {title}: {error}", file=sys.stderr, flush=True)
                continue
            others[title] = 1e3 * seconds
            if seconds <= limit:
                calls[title] = call
            else:
                other.close()
        timings = in_turn(calls, wait, run)
    fastest = min(timings, key=lambda title: timings[title].median)
    ours, best = timings[chosen], timings[fastest]
    tolerance = max(timing.spread / timing.median for timing in (ours, best)) / 2
    return {
        "chosen": chosen,
        "milliseconds": ours.median,
        "fastest": fastest,
        "fastest_milliseconds": best.median,
        "ratio": ours.median / best.median,
        "most": MOST * (1 + tolerance),
        "measuring_seconds": measuring,
        "candidates": others | {title: timing.median for title, timing in timings.items()},
    }


def title(options: argparse.Namespace, rows: Sequence[Row]) -> str:
    best = sum(row["chosen"] == row["fastest"] for row in rows)
    return (
        f"A session's choice on a {'GPU' if options.device == 'cuda' else 'CPU'}: the fastest candidate for {best} of "
        f"{len(rows)} networks and rows, at most {rows[0]['ratio']:.2f} times its time"
    )


TABLES = {
    "choice": Table(
        title=title,
        columns=[
            ("cell", "network and rows"),
            ("chosen", "chosen"),
            ("milliseconds", "time (ms)", "{:,.3f}"),
            ("fastest", "fastest candidate"),
            ("ratio", "× the fastest", "{:.2f}"),
            ("measuring_seconds", "first call, measuring (s)", "{:.2f}"),
        ],
        cases=lambda options: [
            Case(str(cell), {"cell": str(cell)}, partial(choice_row, cell))
            for cell in (GPU_CELLS if options.device == "cuda" else CPU_CELLS)
        ],
        notes=[
            f"Median latency of warm calls; candidates run alternately, up to {RUNS} times each. "
            f"Candidates are the plans whose prior is up to {WITHIN:g} times the shortest. Rows and outputs are where "
            "the session computes. Kernels are listed with the layers that they run. The slowest choices come first.",
            "Measuring: how much longer the first call takes than that of a second session, whose choice is cached; "
            "includes the compilation of candidates whose kernels were not cached.",
        ],
        configuration=lambda options: {"runs": RUNS, "calls": CALLS, "most": MOST, "hopeless": HOPELESS},
        order=lambda row: -row["ratio"],
        device="cuda",
    )
}
