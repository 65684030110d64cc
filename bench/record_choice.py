"""Record how well a session chooses: the plan that it measured and took beside every candidate.

Usage: python bench/record_choice.py [--device cuda|cpu] [--seconds S] [--machine NAME]

`choice_cells.py` lists the networks and rows. A session is made and called five times, on rows where it computes; then
it is timed in turn with a session for each other candidate. A run that is short of time is continued by the next one:
cells that the same commit has recorded stay. Answers are compared with the float64 reference first.

Writes bench/results/<machine>/choice.json, or choice-cpu.json, the slowest choice first. The exit code is 1 if an
answer is wrong, a cell fails, or a choice takes longer than the fastest candidate by more than `MOST`, with a tolerance
for the spread of the two.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from choice_cells import CPU_CELLS, GPU_CELLS, Chain, Convolutions, network_of
from record_session import WrongAnswerError, check, exact, place
from results_file import Column, commit_of_tree, read_results, results_path, write_results
from session_cases import Case, Problem
from session_networks import random_rows
from wall_timing import Timing, gpu_wait, timed_in_turn, wait_for_nothing

from sparsenn import Plan, Session
from sparsenn.engine.choice_key import choice_key
from sparsenn.engine.choosing import layers_of, segments_of
from sparsenn.engine.steps import prior_of, skips_rows
from sparsenn.errors import SparseNNError
from sparsenn.runtime import choices

MOST = 1.1
"""The longest time of the choice, in parts of the fastest candidate's, without tolerance."""

CALLS = 5
"""Calls of a session before it is timed."""

HOPELESS = 2.0
"""A candidate whose fastest call of a few takes so many times the choice's is not timed further."""

RUNS = 30
CELL_SECONDS = 0.6
"""Timed calls of each candidate, fewer where all take longer than that together."""

LEAST_RUNS = 5

WITHIN = 4.0
"""Candidates whose prior is longer, in parts of the shortest, are left out; a session measures fewer."""

COLUMNS = (
    Column("cell", "network and rows"),
    Column("chosen", "chosen"),
    Column("milliseconds", "time (ms)", "{:,.3f}"),
    Column("fastest", "fastest candidate"),
    Column("ratio", "× the fastest", "{:.2f}"),
    Column("measuring_seconds", "first call, measuring (s)", "{:.2f}"),
)

Row = dict[str, Any]
Cell = Chain | Convolutions


def candidates_of(plan: Plan) -> Iterator[Plan]:
    """Yield the plans that differ from a session's in the kernels of one segment, and may be as fast."""
    for segment in segments_of(plan.compiled, plan.rows):
        limit, (first, last) = WITHIN * prior_of(segment[0]), layers_of(segment)
        chosen = plan.kernels[first:last]
        for other in segment:
            kernels = tuple(step.kernel for step in other for _ in step.layers)
            if kernels == chosen or (prior_of(other) > limit and not skips_rows(other)):
                continue
            if plan.keeps_half and not all(kernel.half_rows for kernel in kernels):
                continue
            before = (step for step in plan.steps if step.last <= first)
            after = (step for step in plan.steps if step.first >= last)
            yield replace(plan, steps=(*before, *other, *after))


def kernels_of(plan: Plan) -> str:
    """Return the kernels of a plan, step by step."""
    return ", ".join(f"{step.kernel.name} {step.first + 1}-{step.last}" for step in plan.steps)


@dataclass(frozen=True)
class Recorder:
    """Measures cells on a device.

    Parameters
    ----------
    wait : waits for the device.
    """

    device: str
    wait: Callable[[], None]

    def record(self, cell: Cell) -> Row:
        """Time the choice and the other candidates.

        Raises
        ------
        WrongAnswerError
            An answer differs from the reference.
        SparseNNError
            The session refuses the network.
        """
        network = network_of(cell)
        problem = Problem(network, random_rows(cell.rows, network.inputs))
        case = Case("", "", lambda sources: problem, self.device, "device" if self.device == "cuda" else "host",
                    precision=cell.precision)  # fmt: skip
        exact_rows, rows = exact(problem), place(problem.rows, case)
        make = partial(Session, network, device=self.device, precision=cell.precision)
        with ExitStack() as stack:
            session, first = self._called(stack.enter_context(make()), rows)
            for _ in range(CALLS - 2):
                session(rows)
            check(case, problem, session(rows), exact_rows)
            with make() as later:  # its choice has been cached
                measuring = first - self._called(later, rows)[1]
            plan = session.plan(rows)
            choices.clear(str(choice_key(plan.compiled, plan.rows)["network"]))  # so that a later run measures anew
            chosen, others = kernels_of(plan), {}
            sessions = {chosen: session}
            limit = HOPELESS * min(self._seconds(session, rows) for _ in range(CALLS))
            for candidate in candidates_of(plan):
                title, other = kernels_of(candidate), stack.enter_context(Session.of_plan(candidate))
                try:
                    self._called(other, rows)
                    seconds = min(self._seconds(other, rows) for _ in range(CALLS - 2))  # one may capture a graph
                    if seconds <= limit:
                        check(case, problem, other(rows), exact_rows)
                except (SparseNNError, MemoryError) as error:
                    print(f"  {title}: {error}", file=sys.stderr, flush=True)
                    continue
                others[title] = 1e3 * seconds
                if seconds <= limit:
                    sessions[title] = other
                else:
                    other.close()
            timings = self._in_turn(sessions, rows)
        others |= {title: timing.median for title, timing in timings.items()}
        return _row(cell, chosen, timings, others, max(0.0, measuring))

    def _called(self, session: Session, rows: Any) -> tuple[Session, float]:
        """Call a session for the first time; return it with the seconds that this took."""
        seconds = self._seconds(session, rows)
        session(rows)
        return session, seconds

    def _seconds(self, session: Session, rows: Any) -> float:
        self.wait()
        start = time.perf_counter()
        session(rows)
        self.wait()
        return time.perf_counter() - start

    def _in_turn(self, sessions: dict[str, Session], rows: Any) -> dict[str, Timing]:
        once = sum(self._seconds(session, rows) for session in sessions.values())
        runs = max(LEAST_RUNS, min(RUNS, int(CELL_SECONDS / max(once, 1e-9))))
        calls = [partial(session, rows) for session in sessions.values()]
        return dict(zip(sessions, timed_in_turn(calls, self.wait, runs, warm_up=1), strict=True))


def _row(cell: Cell, chosen: str, timings: dict[str, Timing], others: dict[str, float], measuring: float) -> Row:
    fastest = min(timings, key=lambda title: timings[title].median)
    first, second = timings[chosen], timings[fastest]
    tolerance = max(timing.spread / timing.median for timing in (first, second)) / 2
    return {
        "cell": str(cell),
        "chosen": chosen,
        "milliseconds": first.median,
        "fastest": fastest,
        "fastest_milliseconds": second.median,
        "ratio": first.median / second.median,
        "most": MOST * (1 + tolerance),
        "measuring_seconds": measuring,
        "candidates": others,
    }


# ---- The command ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record a session's choice beside all candidates.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=540, help="start no further cell after this time")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    options = parser.parse_args(arguments)
    recorder = Recorder(options.device, gpu_wait() if options.device == "cuda" else wait_for_nothing)
    path = results_path("choice" if options.device == "cuda" else "choice-cpu", folder=options.machine)
    rows, failed = _rows(recorder, path, options.seconds)
    if not rows:
        print("record_choice: no cell was recorded", file=sys.stderr)
        return 1
    rows.sort(key=lambda row: -row["ratio"])
    best = sum(row["chosen"] == row["fastest"] for row in rows)
    slow = [row for row in rows if row["ratio"] > row["most"]]
    write_results(
        path,
        table="choice",
        title=f"A session's choice on a {'GPU' if options.device == 'cuda' else 'CPU'}: the fastest candidate for "
        f"{best} of {len(rows)} networks and rows, at most {rows[0]['ratio']:.2f} times its time",
        columns=COLUMNS,
        rows=rows,
        configuration={"runs": RUNS, "calls": CALLS, "most": MOST, "hopeless": HOPELESS},
        notes=[
            f"Median wall time of warm calls, the answer awaited, of up to {RUNS} runs of each candidate in turn. "
            f"Candidates are the plans whose prior is up to {WITHIN:g} times the shortest. Rows and outputs are where "
            "the session computes. Kernels are named with the layers that they run. The slowest choices come first.",
            "Measuring: the time of the session's first call beyond that of a second session, whose choice was cached; "
            "compilation of candidates is included where their kernels were not cached.",
        ],
    )
    for row in slow:
        print(f"{row['cell']}: {row['ratio']:.2f} times the fastest, at most {row['most']:.2f}", file=sys.stderr)
    print(f"{path}: {len(rows)} cells, {best} of them chosen best, at most {rows[0]['ratio']:.2f} times the fastest")
    return int(failed or bool(slow))


def _rows_before(path: Path) -> list[Row]:
    """Return the rows that the same commit has recorded."""
    if not path.is_file():
        return []
    before = read_results(path)
    return list(before.rows) if before.commit == commit_of_tree() else []


def _rows(recorder: Recorder, path: Path, seconds: float) -> tuple[list[Row], bool]:
    """Record the cells that are missing; return the rows of all, and whether a cell failed."""
    start, failed, rows = time.perf_counter(), False, _rows_before(path)
    recorded = {row["cell"] for row in rows}
    for number, cell in enumerate(GPU_CELLS if recorder.device == "cuda" else CPU_CELLS, start=1):
        if str(cell) in recorded:
            continue
        if time.perf_counter() - start > seconds:
            print(f"out of time before cell {number}; the next run continues", file=sys.stderr)
            break
        begun = time.perf_counter()
        try:
            rows.append(recorder.record(cell))
            shown = "  ".join(column.show(rows[-1][column.key]) for column in COLUMNS)
            print(f"{number}  {shown}  in {time.perf_counter() - begun:.1f} s", flush=True)
        except (SparseNNError, WrongAnswerError) as error:
            print(f"cell {number}, {cell}: {error}", file=sys.stderr)
            failed = True
        except Exception:  # a fault of the program with one cell should not cost what the others found
            traceback.print_exc()
            failed = True
        if recorder.device == "cuda":
            import cupy

            cupy.get_default_memory_pool().free_all_blocks()
    return rows, failed


if __name__ == "__main__":
    sys.exit(main())
