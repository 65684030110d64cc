"""The challenge on a CPU: sessions with savings of work and without, beside the loop that a SciPy user writes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from cases import challenge_problem
from record import Case, Row, Run, Table, WrongAnswerError
from timing import roofs_in_words

from sparsenn import infer
from sparsenn.runtime.workers import thread_count

LOOP = "SciPy loop"
SWITCHES: dict[str, tuple[str, ...]] = {
    "engine": (),
    "engine, equal outputs not merged": ("merging",),
    "engine, equal rows not merged": ("deduplication",),
    "engine, dead rows kept": ("compaction",),
    "engine, dead and equal rows kept": ("compaction", "deduplication"),
    "engine, nothing saved": ("compaction", "deduplication", "merging"),
}
"""Options of a session that are off."""

METHODS = {
    1024: {LOOP: 20, **dict.fromkeys(SWITCHES, 20), "engine, nothing saved": 5},
    4096: {LOOP: 3, "engine": 20, "engine, equal outputs not merged": 5},
}
"""How many times each is run, by neurons."""


@cache
def problem(neurons: int, data: Path) -> tuple[Any, Any, np.ndarray]:
    """Return a network, its inputs and their categories, which SciPy finds.

    Raises
    ------
    WrongAnswerError
        They are not as many as the official ones.
    """
    made = challenge_problem(neurons, data)
    categories = scipy_loop(made.network, made.rows)
    if categories.size != made.categories:
        raise WrongAnswerError(f"SciPy finds {categories.size} categories, not {made.categories}")
    return made.network, made.rows, categories


def scipy_loop(network: Any, rows: Any) -> np.ndarray:
    """CSR x CSR, bias on the non-zeros, clip, drop the zeros; return the categories."""
    features = rows.to_scipy()
    for layer in network:
        features = features @ layer.weights.to_scipy().tocsr()
        features.data += np.float32(layer.bias)
        np.clip(features.data, 0, 32, out=features.data)
        features.eliminate_zeros()
    return np.flatnonzero(np.diff(features.indptr))


def method_row(neurons: int, name: str, runs: int, run: Run) -> Row:
    """Check the categories, and time a method.

    Raises
    ------
    WrongAnswerError
        They are other ones than SciPy's.
    """
    network, rows, expected = problem(neurons, run.options.data)
    performed = None
    if name == LOOP:
        call, found = partial(scipy_loop, network, rows), expected
    else:
        call = partial(infer, network, rows, device="cpu", **dict.fromkeys(SWITCHES[name], False))
        result = call()
        found, performed = result.categories, result.performed_edges / 1e9
    if not np.array_equal(found, expected):
        raise WrongAnswerError(f"{run.case}: {found.size} categories, not {expected.size}")
    timing = run.timer.time(call, runs=runs, warm_up=1)
    seconds = timing.median / 1e3
    shape = f"{neurons} × {len(network)}"
    loops = {row["problem"]: row["seconds"] for row in run.rows if row["method"] == LOOP}
    loop = loops.get(shape, seconds if name == LOOP else None)
    return {
        "problem": shape,
        "seconds": seconds,
        "spread": timing.spread / 1e3,
        "runs": timing.runs,
        "loop_seconds": loop,
        "speedup": loop and loop / seconds,
        "rate": rows.shape[0] * network.edges / seconds / 1e12,
        "performed": performed,
    }


def cases(options: argparse.Namespace) -> Iterator[Case]:
    for neurons, methods in METHODS.items():
        for name, runs in methods.items():
            yield Case(f"{neurons}-{name}", {"method": name}, partial(method_row, neurons, name, runs))


TABLES = {
    "network": Table(
        title="The whole Sparse DNN Graph Challenge problem, 60,000 inputs, on the CPU",
        columns=[
            ("problem", "neurons × layers"),
            ("method", "method"),
            ("seconds", "median (s)", "{:.3f}"),
            ("spread", "spread (s)", "{:.3f}"),
            ("speedup", "× SciPy loop", "{:.0f}"),
            ("rate", "rate (TeraEdges/s)", "{:.3f}"),
            ("performed", "multiply-adds done (10⁹)", "{:.2f}"),
        ],
        cases=cases,
        notes=[
            "Inputs and weights are in memory; planning is included. Every method finds the official number of "
            "categories. Spread: interquartile range of 20 runs, of 3 or 5 for the slowest methods.",
        ],
        configuration=lambda options: {"inputs": 60_000, "threads": thread_count(), **roofs_in_words("cpu")},
    )
}
