"""Calls of a `Session` that callers wait for, warm, through the public API: tables session, sparse-layers, and models.

Each answer is compared with the float64 reference on rows from all over the inputs, or with the true categories, before
it is timed, and must have the same bits after. Limits and aims of `cases.py` are relative to peers in the same run.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from cases import CASES, Case, add_source_options, sources_of
from ceilings import Peaks, gpu_peaks, host_peaks
from peers import PRECISIONS, Problem, Way, numpy_products, torch, torch_categories, torch_layers, ways
from record import Row, Run, Table, WrongAnswerError, count
from timing import RUNS, Timing, gpu_wait, no_wait

from sparsenn import CSR, Session

__all__ = ["TABLES", "check", "exact", "place"]

ALLOWED = {"float32": 2e-5, "tf32": 5e-3, "float16": 1e-2}
"""Largest difference from float64 after one layer, in parts of the largest output; it may grow with the root of the
number of layers."""

MOST_SAMPLED, CHECKED_WORK = 256, 1e9
"""Rows that the reference computes at most, and multiply-adds."""

PEER_SECONDS = 0.5
"""Of the runs of a peer that sets no limit, at most."""

WARM_SECONDS = 0.2
"""Calls before the timed ones: processors at rest take a while to run at their clock."""

RUN_SECONDS = 0.01
"""Calls that are shorter are timed more often, for as long as if they took that: a processor that others use, too, may
be slow for longer than a few of them take."""

Exact = tuple[np.ndarray, np.ndarray]
"""Numbers of some rows, and their float64 outputs."""


# ---- Rows and answers -------------------------------------------------------------------------------------------


def place(rows: np.ndarray | CSR, problem: Problem, precision: str) -> Any:
    """Return rows as a caller has them: NumPy's or SciPy's on the host, CuPy's on the device."""
    on_host = rows.to_scipy() if isinstance(rows, CSR) else rows
    if problem.where == "host":
        return on_host
    import cupy

    if isinstance(rows, CSR):
        import cupyx.scipy.sparse

        return cupyx.scipy.sparse.csr_matrix(on_host)
    return cupy.asarray(on_host, np.float16 if precision == "float16" else np.float32)


def fetched(answer: Any) -> np.ndarray:
    """Return an answer in host memory."""
    return np.asarray(answer.get() if hasattr(answer, "get") else answer)


def bytes_of(rows: Any) -> int:
    """Return the memory that rows take."""
    arrays = (rows.indptr, rows.indices, rows.data) if hasattr(rows, "indptr") else (rows,)
    return sum(int(array.nbytes) for array in arrays)


def exact(problem: Problem) -> Exact:
    """Return some rows' numbers, spread over all, and their float64 outputs by the reference."""
    network, rows = problem.network, problem.rows
    count = int(rows.shape[0])
    affordable = max(16, min(MOST_SAMPLED, int(CHECKED_WORK / max(1, network.multiply_adds))))
    numbers = np.unique(np.linspace(0, count - 1, min(count, affordable)).astype(np.int64))
    sample = rows.to_scipy()[numbers].toarray() if isinstance(rows, CSR) else rows[numbers]
    with Session(network, device="reference") as reference:
        return numbers, np.asarray(reference(sample), np.float64)


def check(problem: Problem, precision: str, answer: Any, expected: Exact) -> float | None:
    """Return the difference of the outputs from float64, None where categories are the answer.

    The answer stays where it is, but for the rows that are looked at.

    Raises
    ------
    WrongAnswerError
        The outputs are too far off or not finite, or the categories are not the true ones.
    """
    numbers, outputs = expected
    if problem.are_categories:
        alive = (outputs != 0).any(axis=1)
        wrong = int((np.isin(numbers, fetched(answer)) != alive).sum())
        if wrong:
            raise WrongAnswerError(f"{wrong} of {numbers.size} inputs that were looked at are in the wrong category")
        if problem.categories is not None and answer.size != problem.categories:
            raise WrongAnswerError(f"{answer.size} categories, not {problem.categories}")
        return None
    if not bool((abs(answer) < np.inf).all()):
        raise WrongAnswerError("an output is not finite")
    found = _rows(answer, numbers).reshape(outputs.shape).astype(np.float64)
    error = float(np.abs(found - outputs).max()) / (float(np.abs(outputs).max()) or 1.0)
    layers = sum(layer.edges > 0 for layer in problem.network)
    if not error <= ALLOWED[precision] * math.sqrt(max(1, layers)):
        raise WrongAnswerError(f"outputs are off by {error:.1e} of the largest")
    return error


def _rows(answer: Any, numbers: np.ndarray) -> np.ndarray:
    if isinstance(answer, np.ndarray):
        return answer[numbers]
    import cupy

    return fetched(answer[cupy.asarray(numbers)])


def call_of(problem: Problem, session: Session, rows: Any) -> Callable[[], Any]:
    """Return the call that a case times."""
    if problem.are_categories:
        return lambda: session.run(rows, statistics=False).categories
    return lambda: session(rows)


def correct_classes(problem: Problem, outputs: Any) -> int | None:
    """Return how many rows' largest output is that of their class; None where there are no classes."""
    if problem.classes is None:
        return None
    found = fetched(outputs.reshape(len(problem.classes), -1).argmax(axis=1))
    return int((found == problem.classes).sum())


# ---- Cases ------------------------------------------------------------------------------------------------------


def problem_of(case: Case, run: Run) -> tuple[Problem, Exact]:
    """Return a case's problem and some of the exact outputs; those of the case before where they are the same."""
    if run.shared.get("make") is not case.make:
        run.shared.pop("problem", None)  # the one before goes first: both may not fit
        problem = case.make(sources_of(run.options))
        run.shared |= {"make": case.make, "problem": (problem, exact(problem))}
    problem, expected = run.shared["problem"]
    where = {"device": case.device, "where": case.where, "are_categories": case.categories}
    return replace(problem, **where), expected


def peaks_of(run: Run) -> Peaks:
    """Return what the device can do, measured once a run."""
    measure = partial(gpu_peaks, link=True) if run.options.device == "cuda" else host_peaks
    return run.shared_value("peaks", measure)  # type: ignore[no-any-return]


def timed(run: Run, call: Callable[[], Any], wait: Callable[[], None], most_seconds: float | None = None) -> Timing:
    runs = run.options.runs
    least = RUN_SECONDS * runs
    return run.timer.time(call, wait, runs, 5, most_seconds, warm_seconds=WARM_SECONDS, least_seconds=least)


def session_row(case: Case, run: Run) -> Row:
    """Check a case, time it, and time its peers.

    Raises
    ------
    WrongAnswerError
        The answer is not that of the reference, or not the same each time.
    """
    problem, expected = problem_of(case, run)
    wait = gpu_wait() if case.device == "cuda" else no_wait
    rows = place(problem.rows, problem, case.precision)
    wait()
    start = time.perf_counter()
    with Session(problem.network, device=case.device, precision=case.precision, merging=case.merging) as session:
        first = session.run(rows, statistics=False)
        wait()
        first_seconds = time.perf_counter() - start
        call = call_of(problem, session, rows)
        answer = call()
        error = check(problem, case.precision, answer, expected)
        timing = timed(run, call, wait)
        later = call()
        if later.shape != answer.shape or not bool((later == answer).all()):
            raise WrongAnswerError("a later call gave other bits than the first")
        result = session.run(rows)
        plan, held = result.plan, session.nbytes
    peers = list(peer_rows(case, problem, expected, run))
    classes = correct_classes(problem, answer)
    best = best_peer(case.precision, peers, classes)
    beside = time_beside(case, best, peers, rows, run)
    work = min(result.performed_edges, problem.rows.shape[0] * problem.network.multiply_adds)
    moved = bytes_of(rows) + answer.nbytes
    weights = sum(getattr(layer, "weight_bytes", 0) for layer in problem.network)
    over_link = moved if case.device == "cuda" and case.where == "host" else 0
    floor = 1e3 * peaks_of(run).floor(weights + moved, work, case.precision, over_link)
    return {
        "key": case.key,
        "call": case.call,
        "device": case.device,
        "precision": case.precision,
        "milliseconds": timing.median,
        "spread_milliseconds": timing.spread,
        "runs": timing.runs,
        "limit_milliseconds": scaled(case.limit, beside, case.beside),
        "aim_milliseconds": scaled(case.aim, beside, case.beside),
        "beside": case.beside,
        "beside_milliseconds": beside,
        "peer": best and best["way"],
        "peer_milliseconds": best and best["milliseconds"],
        "peers": peers,
        "floor_milliseconds": floor,
        "floor_share": floor / timing.median,
        "first_seconds": first_seconds,
        "plan_seconds": first.seconds.plan,
        "compile_seconds": first.seconds.compile,
        "prepare_seconds": first.seconds.prepare,
        "kernels": ", ".join(dict.fromkeys(kernel.name for kernel in plan.kernels)),
        "plan": str(plan),
        "estimate_milliseconds": None if plan.estimate is None else 1e3 * plan.estimate,
        "error": error,
        "right": classes,
        "categories": int(answer.size) if case.categories else None,
        "multiply_adds": int(work),
        "session_bytes": int(held),
    }


def peer_rows(case: Case, problem: Problem, expected: Exact, run: Run) -> Iterator[Row]:
    """Yield the times of the other ways that give the answer, too."""
    # where classes are counted, a lower precision that finds as many of them is a fair peer
    several = case.device == "cuda" and problem.classes is not None
    most = None if case.beside in ("peer", "numpy") else PEER_SECONDS
    wait = torch.cuda.synchronize if case.device == "cuda" and torch is not None else no_wait
    peers = (torch_categories,) if problem.are_categories else (numpy_products, torch_layers)
    time_call = partial(timed, run, wait=wait, most_seconds=most)
    for precision in PRECISIONS if several else (case.precision,):
        for way in ways(peers, problem, precision):
            row = peer_row(case, problem, expected, way, time_call)
            if row is not None:
                yield row


def peer_row(case: Case, problem: Problem, expected: Exact, way: Way, time_call: Callable[..., Timing]) -> Row | None:
    """Return the time of a way; None where memory does not suffice, PyTorch refuses, or the answer is another one."""
    try:
        outputs = way.outputs(way.run())
        timing = time_call(way.run)
        check(problem, way.precision, outputs, expected)
    except (RuntimeError, WrongAnswerError) as error:
        print(f"{case}: {way.name} in {way.precision}: {error}: left out", file=sys.stderr)
        return None
    return {
        "way": way.name,
        "precision": way.precision,
        "milliseconds": timing.median,
        "spread_milliseconds": timing.spread,
        "runs": timing.runs,
        "right": correct_classes(problem, outputs),
    }


def best_peer(precision: str, peers: Sequence[Row], classes: int | None) -> Row | None:
    """Return the fastest way of the same precision, or, where classes are counted, that finds as many of them."""
    fair = [
        peer for peer in peers if peer["precision"] == precision or (classes is not None and peer["right"] >= classes)
    ]
    return min(fair, key=lambda peer: peer["milliseconds"], default=None)


def time_beside(case: Case, best: Row | None, peers: Sequence[Row], rows: Any, run: Run) -> float | None:
    """Return the milliseconds that limit and aim are relative to; None where they were not measured."""
    if case.beside == "peer":
        return best and best["milliseconds"]
    if case.beside == "numpy":
        return min((peer["milliseconds"] for peer in peers if peer["way"].startswith("NumPy")), default=None)
    if case.beside == "copy":
        import cupy

        return timed(run, lambda: cupy.asarray(rows), gpu_wait()).median
    return next((float(row["milliseconds"]) for row in run.rows if row["key"] == case.beside), None)


def scaled(factor: float | None, beside: float | None, name: str | None) -> float | None:
    """Return milliseconds: the factor itself where it is relative to nothing."""
    if factor is None or name is None:
        return factor
    return None if beside is None else factor * beside


def slower_than_limit(row: Row) -> str | None:
    limit = row["limit_milliseconds"]
    if not limit or row["milliseconds"] <= limit:
        return None
    return f"{row['key']}: {row['milliseconds']:.3f} ms, limit {limit:.3f}"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_source_options(parser)
    parser.add_argument("--runs", type=count, default=RUNS)


def session_notes(options: argparse.Namespace, rows: Sequence[Row]) -> list[str]:
    return [
        "Latency of warm calls of a session until the outputs are available: medians and interquartile ranges of "
        f"{options.runs} runs, or of more within {RUN_SECONDS * options.runs:g} s (slow peers: fewer). All calls have "
        "the same rows. Outputs stay where the rows are. Answers were first compared with the float64 reference, or "
        "with the true categories.",
        "Fastest peer: the fastest in the same precision, of PyTorch (launch by launch, in a CUDA graph, with ReLU in "
        "the product, sparse times dense) and, on a CPU, NumPy's dense products; where correct classes are counted, "
        "in any precision that finds as many.",
        "Floor: the longer time of two, weights, rows and outputs moved once at the measured copy bandwidth (to and "
        "from the host: that of pinned memory), and the multiply-adds at the measured rate of a product in that "
        "precision (float32 on a GPU: a third of TF32's rate, as float32 kernels issue three TF32 products). Data in "
        "caches may move faster.",
        "Made and first called: from the network to the first answer, in a process that may have loaded kernels for "
        "the cases above.",
        *(["PyTorch was not installed."] if torch is None else []),
    ]


def session_table(name: str, title: str) -> Table:
    return Table(
        title=lambda options, rows: f"{title} on {'a GPU' if options.device == 'cuda' else 'a CPU'}",
        columns=[
            ("call", "call"),
            ("precision", "precision"),
            ("milliseconds", "time (ms)", "{:,.3f}"),
            ("spread_milliseconds", "spread (ms)", "{:.3f}"),
            ("limit_milliseconds", "limit (ms)", "{:,.3f}"),
            ("aim_milliseconds", "aim (ms)", "{:,.3f}"),
            ("peer_milliseconds", "fastest peer (ms)", "{:,.3f}"),
            ("peer", "its name"),
            ("floor_milliseconds", "floor (ms)", "{:,.3f}"),
            ("floor_share", "% of roofline", "{:.0%}"),
            ("first_seconds", "made and first called (s)", "{:.3f}"),
            ("compile_seconds", "of these, kernels (s)", "{:.3f}"),
            ("prepare_seconds", "weights, buffers, graphs (s)", "{:.3f}"),
            ("kernels", "kernels"),
        ],
        cells=lambda options: [case for case in CASES if (case.table, case.device) == (name, options.device)],
        measure=session_row,
        notes=session_notes,
        options=add_options,
        configuration=lambda run: {
            "runs": run.options.runs,
            "copy_bytes_per_second": peaks_of(run).copied,
            "link_bytes_per_second": peaks_of(run).link,
            "multiply_adds_per_second": peaks_of(run).rates,
            "torch": None if torch is None else torch.__version__,
        },
        fault=slower_than_limit,
        device="cuda",
        limit=540.0,
    )


TABLES = {
    "session": session_table("session", "Warm calls of a session"),
    "sparse-layers": session_table(
        "sparse-layers",
        "Warm calls of a session for single sparse layers, and the challenge with no outputs merged,",
    ),
}
