"""Calls of a `Session` that callers wait for, warm, through the public API: tables session and sparse-layers.

Each answer is compared with the float64 reference on rows from all over the inputs, or with the true categories, before
it is timed, and must have the same bits after.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from cases import (
    challenge_problem,
    layer_problem,
    lenet86_problem,
    lenet300_problem,
    narrow_problem,
    random_problem,
    trained_problem,
)
from peers import PRECISIONS, Problem, numpy_products, torch, torch_categories, torch_layers, ways
from record import Case, Row, Run, Table, WrongAnswerError
from timing import RUNS, Timing, floor, gpu_wait, no_wait, roofs_in_words

from sparsenn import CSR, Session

__all__ = ["CASES", "TABLES", "case", "check", "exact", "place"]

Make = Callable[[Path], Problem]

ALLOWED = {"float32": 2e-5, "tf32": 5e-3, "float16": 1e-2}
"""Largest difference from float64 after one layer, as a share of the largest output; it may grow with the root of the
number of layers."""

MOST_SAMPLED, CHECKED_WORK = 256, 1e9
"""Rows that the reference computes at most, and multiply-adds."""

PEER_SECONDS = 0.5
"""Of the runs of a peer, at most."""

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

    The answer stays where it is, but for the rows that are compared.

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
            raise WrongAnswerError(f"{wrong} of {numbers.size} inputs that were compared are in the wrong category")
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


def correct_classes(problem: Problem, outputs: Any) -> int | None:
    """Return how many rows' largest output is that of their class; None where there are no classes."""
    if problem.classes is None:
        return None
    found = fetched(outputs.reshape(len(problem.classes), -1).argmax(axis=1))
    return int((found == problem.classes).sum())


@lru_cache(maxsize=1)
def problem_of(make: Make, data: Path) -> tuple[Problem, Exact]:
    """Return a problem and some of the exact outputs; those of the case before where it makes the same."""
    problem = make(data)
    return problem, exact(problem)


# ---- A call -----------------------------------------------------------------------------------------------------


def timed(run: Run, call: Callable[[], Any], wait: Callable[[], None], most_seconds: float | None = None) -> Timing:
    runs = run.options.runs
    least = RUN_SECONDS * runs
    return run.timer.time(call, wait, runs, 5, most_seconds, warm_seconds=WARM_SECONDS, least_seconds=least)


def call_row(
    make: Make,
    precision: str,
    run: Run,
    where: str = "device",
    categories: bool = False,
    merging: bool = True,
) -> Row:
    """Check a call, time it, and time its peers.

    Parameters
    ----------
    make : returns the problem.
    precision : asked of the session. Rows on a GPU are float16 where it is `float16`.
    where : rows are on the `device` or in ordinary memory of the `host`; outputs go there, too.
    categories : whether the categories, on the host, are the answer; else the outputs are.
    merging : whether equal outputs are computed once.

    Raises
    ------
    WrongAnswerError
        The answer is not that of the reference, or not the same each time.
    """
    device = run.options.device
    made, expected = problem_of(make, run.options.data)
    problem = replace(made, device=device, where=where, are_categories=categories)
    wait = gpu_wait() if device == "cuda" else no_wait
    rows = place(problem.rows, problem, precision)
    wait()
    start = time.perf_counter()
    with Session(problem.network, device=device, precision=precision, merging=merging) as session:
        run_once = partial(session.run, rows, statistics=False)
        first = run_once()
        wait()
        first_seconds = time.perf_counter() - start
        call = (lambda: run_once().categories) if categories else partial(session, rows)
        answer = call()
        error = check(problem, precision, answer, expected)
        timing = timed(run, call, wait)
        later = call()
        if later.shape != answer.shape or not bool((later == answer).all()):
            raise WrongAnswerError("a later call gave other bits than the first")
        result = session.run(rows)
    peers = list(peer_rows(problem, precision, expected, run))
    classes = correct_classes(problem, answer)
    best = best_peer(precision, peers, classes)
    work = min(result.performed_edges, problem.rows.shape[0] * problem.network.multiply_adds)
    weights = sum(getattr(layer, "weight_bytes", 0) for layer in problem.network)
    least = floor(device, weights + bytes_of(rows) + answer.nbytes, work, precision)
    return {
        "milliseconds": timing.median,
        "spread_milliseconds": timing.spread,
        "runs": timing.runs,
        "peer": best and best["way"],
        "peer_milliseconds": best and best["milliseconds"],
        "peers": peers,
        "floor_milliseconds": least,
        "floor_share": least / timing.median,
        "first_seconds": first_seconds,
        "plan_seconds": first.seconds.plan,
        "compile_seconds": first.seconds.compile,
        "prepare_seconds": first.seconds.prepare,
        "kernels": ", ".join(dict.fromkeys(kernel.name for kernel in result.plan.kernels)),
        "error": error,
        "right": classes,
        "categories": int(answer.size) if categories else None,
        "multiply_adds": int(work),
    }


def peer_rows(problem: Problem, precision: str, expected: Exact, run: Run) -> Iterator[Row]:
    """Yield the times of the other ways that give the answer, too."""
    # where classes are counted, a lower precision that finds as many of them is a fair peer
    several = problem.device == "cuda" and problem.classes is not None
    wait = torch.cuda.synchronize if problem.device == "cuda" and torch is not None else no_wait
    peers = (torch_categories,) if problem.are_categories else (numpy_products, torch_layers)
    for each in PRECISIONS if several else (precision,):
        for way in ways(peers, problem, each):
            try:
                outputs = way.outputs(way.run())
                timing = timed(run, way.run, wait, PEER_SECONDS)
                check(problem, way.precision, outputs, expected)
            except (RuntimeError, WrongAnswerError) as error:  # memory does not suffice, or the answer is another one
                print(f"{way.name} in {way.precision}: {error}: left out", file=sys.stderr)
                continue
            yield {
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


# ---- The tables -------------------------------------------------------------------------------------------------


def case(name: str, call: str, make: Make, precision: str = "float32", **options: Any) -> Case:
    """Return the case of a call, which `call` describes; further options are those of `call_row`."""
    return Case(name, {"call": call, "precision": precision}, partial(call_row, make, precision, **options))


def each_precision(name: str, call: str, make: Make, precisions: Sequence[str] = PRECISIONS) -> list[Case]:
    return [case(f"{name}-{precision}", call, make, precision) for precision in precisions]


def random_layers(width: int, degree: int, layers: int, rows: int, *precisions: str) -> list[Case]:
    call = f"{layers} × {width}, {degree} weights an output, {rows:,} rows"
    make = partial(random_problem, width, degree, layers, rows)
    return each_precision(f"{width}-{degree}", call, make, precisions)


def one_layer(name: str, width: int, density: float, rows: int) -> list[Case]:
    call = f"one layer {width} wide, {density:.0%} of the weights, {rows:,} rows"
    return each_precision(name, call, partial(layer_problem, width, density, rows, 1))


SMALL, LARGE = partial(challenge_problem, 1024), partial(challenge_problem, 65536)
WHOLE, PRUNED = partial(lenet86_problem, "lenet86.h5"), partial(lenet86_problem, "lenet86-pruned.h5")
TRAINED = "784 → 128 → 18 × (128, 60 % of the weights) → 10, 10,000 rows"
LENET300 = "LeNet-300-100 with 1.9 % of its weights"
LENET86 = "LeNet86, 10,000 images"
OFFICIAL, ON_HOST = "official inputs on the device → categories", "official inputs in SciPy's CSR → categories"

CASES: dict[tuple[str, str], list[Case]] = {
    ("session", "cuda"): [
        case("challenge-1024", f"1024 × 120, {OFFICIAL}", SMALL, categories=True),
        case("challenge-1024-host", f"1024 × 120, {ON_HOST}", SMALL, where="host", categories=True),
        *each_precision("trained", TRAINED, trained_problem),
        *each_precision("lenet300", f"{LENET300}, 10,000 rows", partial(lenet300_problem, 10_000)),
        *random_layers(1024, 32, 24, 60_000, "float32"),
        *random_layers(1024, 102, 24, 60_000, "float32", "tf32"),
        *random_layers(4096, 32, 12, 20_000, "float32"),
        *random_layers(16384, 32, 6, 10_000, "float32"),
        case("lenet86-host", f"{LENET86} in NumPy → probabilities in NumPy", WHOLE, where="host"),
        case("lenet86", f"{LENET86} on the device", WHOLE),
        *each_precision("lenet86", f"{LENET86} on the device", WHOLE, PRECISIONS[1:]),
        case("lenet86-pruned", f"pruned {LENET86} on the device", PRUNED),
        case("narrow-1", "72-64-64-4, one row on the device", partial(narrow_problem, 1)),
        case("narrow-128", "72-64-64-4, 128 rows on the device", partial(narrow_problem, 128)),
        case("challenge-65536", f"65536 × 120, {OFFICIAL}", LARGE, categories=True),
    ],
    ("session", "cpu"): [
        case("cpu-lenet300-1", f"{LENET300}, one row", partial(lenet300_problem, 1), where="host"),
        case("cpu-trained", TRAINED, trained_problem, where="host"),
        case("cpu-challenge-1024", f"1024 × 120, {ON_HOST}", SMALL, where="host", categories=True),
    ],
    ("sparse-layers", "cuda"): [
        *one_layer("layer-1024", 1024, 0.10, 60_000),
        *one_layer("layer-4096", 4096, 0.05, 60_000),
        *one_layer("layer-16384", 16384, 0.01, 10_000),
        *one_layer("layer-4096-denser", 4096, 0.20, 60_000),
        case(
            "blocks-4096",
            "one layer 4096 wide, 5% of the weights in blocks of 16 outputs, 60,000 rows",
            partial(layer_problem, 4096, 0.05, 60_000, 16),
        ),
        *(
            case(
                f"unmerged-{neurons}",
                f"{neurons} × 120, no outputs merged, {OFFICIAL}",
                partial(challenge_problem, neurons),
                categories=True,
                merging=False,
            )
            for neurons in (1024, 4096, 16384, 65536)
        ),
    ],
}
"""By table and device."""


NOTES = (
    "Latency of warm calls of a session until the outputs are available: medians and interquartile ranges of at least "
    f"{RUNS} runs and {RUN_SECONDS * RUNS:g} s (slow peers: fewer). All calls have the same rows. Outputs stay where "
    "the rows are. Answers were first compared with the float64 reference, or with the true categories.",
    "Fastest peer: the fastest in the same precision, of PyTorch (launch by launch, in a CUDA graph, with ReLU in the "
    "product, sparse times dense) and, on a CPU, NumPy's dense products; where correct classes are counted, in any "
    "precision that finds as many.",
    "Floor: the longer time of two, weights, rows and outputs moved once at the measured copy bandwidth, and the "
    "multiply-adds at the measured rate of that precision (float32 on a GPU: a third of TF32's rate, as its kernels "
    "issue three TF32 products). Data in caches may move faster.",
    "Made and first called: from the network to the first answer, in a process that may have loaded kernels before.",
)


def session_table(name: str, title: str) -> Table:
    return Table(
        title=lambda options, rows: f"{title} on {'a GPU' if options.device == 'cuda' else 'a CPU'}",
        columns=[
            ("call", "call"),
            ("precision", "precision"),
            ("milliseconds", "time (ms)", "{:,.3f}"),
            ("spread_milliseconds", "spread (ms)", "{:.3f}"),
            ("peer_milliseconds", "fastest peer (ms)", "{:,.3f}"),
            ("peer", "its name"),
            ("floor_milliseconds", "floor (ms)", "{:,.3f}"),
            ("floor_share", "% of roofline", "{:.0%}"),
            ("first_seconds", "made and first called (s)", "{:.3f}"),
            ("compile_seconds", "of these, kernels (s)", "{:.3f}"),
            ("prepare_seconds", "weights, buffers, graphs (s)", "{:.3f}"),
            ("kernels", "kernels"),
        ],
        cases=lambda options: CASES.get((name, options.device), []),
        notes=NOTES,
        options={"runs": RUNS},
        configuration=lambda options: {
            **roofs_in_words(options.device),
            "torch": None if torch is None else torch.__version__,
        },
        device="cuda",
    )


TABLES = {
    "session": session_table("session", "Warm calls of a session"),
    "sparse-layers": session_table(
        "sparse-layers",
        "Warm calls of a session for single sparse layers, and the challenge with no outputs merged,",
    ),
}
