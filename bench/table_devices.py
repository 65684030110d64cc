"""A network on 1, 2, 4, … devices of one host, with rows from host memory: table devices.

`challenge` is a RadiX-Net of many layers and digits; `random`, 24 layers of 1024, 102 weights an output, and dense
rows. With --device cpu each device is a session on the CPU's cores, which they share: that checks the answers, and says
nothing of speedup. Answers must have the bits of one device.
"""

from __future__ import annotations

import argparse
import time
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
from cases import random_rows, stratified
from record import Row, Run, Table, WrongAnswerError, cases_of

from sparsenn import Network, Session, Sessions
from sparsenn.backends import gpus
from sparsenn.datasets import radixnet
from sparsenn.datasets.digits import digit_inputs
from sparsenn.io import CHALLENGE_BIAS
from sparsenn.runtime.workers import chunks

LAYERS, WIDTH, WEIGHTS = 24, 1024, 102
"""Of the random network: weights an output."""

COUNTS = (1, 2, 4, 8)
"""Devices, as far as there are."""

MOST_SECONDS = 7.5
"""Of the calls of one timing."""


@lru_cache(maxsize=1)
def problem(case: str, neurons: int, layers: int, rows: int) -> tuple[Network, Any]:
    """Return a network and its rows: a RadiX-Net and digits, or one of random weights and dense rows."""
    if case == "random":
        return stratified((WIDTH,) * (LAYERS + 1), (WEIGHTS,) * LAYERS), random_rows(rows, WIDTH)
    return radixnet(neurons, layers, bias=CHALLENGE_BIAS[neurons]), digit_inputs(neurons, rows)


@lru_cache(maxsize=1)
def answer_of_one(case: str, device: str, *sizes: int) -> np.ndarray:
    """Return the categories, or outputs of dense rows, on one device."""
    network, rows = problem(case, *sizes)
    with Session(network, device=device) as session:
        return answer(session, rows)


def answer(sessions: Session | Sessions, rows: Any) -> np.ndarray:
    return sessions(rows) if isinstance(rows, np.ndarray) else sessions.run(rows, statistics=False).categories


def device_row(case: str, count: int, run: Run) -> Row:
    """Check the answers of some devices, and time them.

    Raises
    ------
    WrongAnswerError
        A bit differs from those of one device.
    """
    options = run.options
    sizes = options.neurons, options.layers, options.rows
    network, rows = problem(case, *sizes)
    expected = answer_of_one(case, options.device, *sizes)
    names = gpus()[:count] if options.device == "cuda" else ("cpu",) * count
    start = time.perf_counter()
    first = Session(network, device=names[0])
    with Sessions.of([first, *map(first.on, names[1:])]) as sessions:
        found = answer(sessions, rows)
        seconds = time.perf_counter() - start
        if found.tobytes() != expected.tobytes():
            raise WrongAnswerError("the bits differ from those of one device")
        times = {"run": milliseconds(partial(sessions.run, rows, statistics=False), run)}
        if isinstance(rows, np.ndarray):
            times |= {"call": milliseconds(partial(sessions, rows), run), "compute": computing(sessions, rows, run)}
    one = next((row for row in run.rows if (row["case"], row["device_count"]) == (case, 1)), None)
    row: Row = {"rows": options.rows, "first_seconds": seconds}
    for name in ("run", "call", "compute"):
        own = row[f"{name}_milliseconds"] = times.get(name)
        row[f"{name}_speedup"] = own and (one[f"{name}_milliseconds"] if one else own) / own
    return row


def computing(sessions: Sessions, rows: np.ndarray, run: Run) -> float:
    """Time rows to outputs where each device already has its share: one thread queues all calls, then waits."""
    ranges = chunks(len(rows), -(-len(rows) // len(sessions.sessions)))
    shares: list[tuple[Any, Any]] = [
        (session, session.backend.place(rows[first:last]))
        for session, (first, last) in zip(sessions.sessions, ranges, strict=False)
    ]

    def compute() -> None:
        for session, share in shares:
            session(share)
        for session, _ in shares:
            session.backend.queue.wait()

    return milliseconds(compute, run)


def milliseconds(call: Any, run: Run) -> float:
    return run.timer.time(call, runs=run.options.runs, most_seconds=MOST_SECONDS).median


def counts(options: argparse.Namespace) -> list[int]:
    """Return the numbers of devices that are measured."""
    there = len(gpus()) if options.device == "cuda" else options.most
    return [count for count in COUNTS if count <= min(there, options.most)]


TABLES = {
    "devices": Table(
        title="Rows from host memory shared by several devices of one host",
        columns=[
            ("case", "case"),
            ("rows", "rows", "{:,}"),
            ("device_count", "devices"),
            ("call_milliseconds", "rows to outputs (ms)", "{:,.2f}"),
            ("call_speedup", "speedup", "{:.2f}"),
            ("run_milliseconds", "rows to categories (ms)", "{:,.2f}"),
            ("run_speedup", "speedup", "{:.2f}"),
            ("compute_milliseconds", "computing alone (ms)", "{:,.2f}"),
            ("compute_speedup", "speedup", "{:.2f}"),
            ("first_seconds", "made and first run (s)", "{:.2f}"),
        ],
        cases=lambda options: cases_of(
            device_row, "case device_count", product(("random", "challenge"), counts(options))
        ),
        notes=[
            "Median wall times. Before they were timed, results had the same bits as those of one device. Computing "
            "alone: each device already has its share of the dense rows; one thread starts all sessions, then waits "
            "for all."
        ],
        options={"most": 8, "neurons": 65536, "layers": 1920, "rows": 60_000, "runs": 20},
        device="cuda",
    )
}
