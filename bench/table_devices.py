"""A network on 1, 2, 4, … devices of one host, with rows from host memory: table devices.

`challenge` is a RadiX-Net of many layers and digits; `random`, 24 layers of 1024, 102 weights an output, and dense
rows.
With --devices cpu each device is a session on the CPU's cores, which they share: that checks the answers, and says
nothing of speedup. Answers must have the bits of one device.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from record import Row, Run, Table, WrongAnswerError, count
from timing import Timer

from sparsenn import Network, Session, Sessions
from sparsenn.backends import gpus
from sparsenn.datasets import radixnet
from sparsenn.datasets.digits import digit_inputs
from sparsenn.engine import Result, Seconds
from sparsenn.engine.inputs import read_inputs
from sparsenn.engine.result import concatenate_results
from sparsenn.formats import CSC, CSR
from sparsenn.io.challenge.layout import challenge_bias
from sparsenn.layers import ReLU, SparseLinear
from sparsenn.runtime.workers import chunks

__all__ = ["TABLES", "device_counts", "sessions_on"]

LAYERS, WIDTH, WEIGHTS = 24, 1024, 102
"""Of the random network: weights an output."""


COUNTS = (1, 2, 4, 8)
"""Devices, as far as there are."""

CASE_SHARE = 1 / 24
"""Of the time limit, for the calls of one timing."""


@dataclass(frozen=True)
class Cell:
    """A case with a number of devices."""

    case: str
    devices: int

    def __str__(self) -> str:
        return f"{self.case}-{self.devices}"


@lru_cache(maxsize=1)
def problem(case: str, neurons: int, layers: int, rows: int) -> tuple[Network, Any]:
    """Return a network and its rows: a RadiX-Net and digits, or one of random weights and dense rows."""
    if case != "random":
        return radixnet(neurons, layers, bias=challenge_bias(neurons)), digit_inputs(neurons, rows)
    rng = np.random.default_rng(24)
    return Network(tuple(_random_layer(rng) for _ in range(LAYERS))), rng.random((rows, WIDTH), np.float32)


def _random_layer(rng: np.random.Generator) -> SparseLinear:
    rows = np.sort(rng.random((WIDTH, WIDTH), np.float32).argpartition(WEIGHTS, axis=1)[:, :WEIGHTS], axis=1)
    values = rng.normal(0, (2 / WEIGHTS) ** 0.5, rows.size).astype(np.float32)
    offsets = np.arange(WIDTH + 1, dtype=np.int64) * WEIGHTS
    weights = CSC((WIDTH, WIDTH), offsets, rows.astype(np.uint16).ravel(), values)
    return SparseLinear(weights, -0.05, ReLU())


def device_counts(options: argparse.Namespace) -> list[int]:
    """Return the numbers of devices that are measured."""
    there = len(gpus()) if options.devices == "cuda" else options.most
    return [each for each in COUNTS if each <= min(there, options.most)]


def sessions_on(network: Network, device: str, number: int) -> Sessions:
    """Return sessions on the first GPUs, or as many on the CPU."""
    names = gpus()[:number] if device == "cuda" else ("cpu",) * number
    first = Session(network, device=names[0])
    return Sessions.of([first, *map(first.on, names[1:])])


def check(one: Result, found: Result) -> None:
    """Compare the result of several devices with that of one.

    Raises
    ------
    WrongAnswerError
        A bit differs.
    """
    if not np.array_equal(one.categories, found.categories) or _living(one) != _living(found):
        raise WrongAnswerError("the bits differ from those of one device")


def _living(result: Result) -> bytes:
    """Return the bytes of all final rows that are not dropped, one after the other."""
    rows = []
    for batch in result.batches:
        left = batch.on_host()
        features, owner = left.features, left.row_map.rows
        living = np.arange(batch.inputs) if owner is None else owner[owner >= 0]
        rows.append(features.to_scipy()[living].toarray() if isinstance(features, CSR) else features[living])
    return np.concatenate(rows).tobytes()


def device_row(cell: Cell, run: Run) -> Row:
    """Check the answers of some devices, and time them."""
    options = run.options
    network, rows = problem(cell.case, options.neurons, options.layers, options.rows)
    start = time.perf_counter()
    with sessions_on(network, options.devices, cell.devices) as sessions:
        result = sessions.run(rows, statistics=False)
        first = time.perf_counter() - start
        if run.shared.get("case") != cell.case:
            run.shared |= {"case": cell.case, "expected": result}
        expected = run.shared["expected"]
        check(expected, result)
        whole = _milliseconds(run.timer, lambda: sessions.run(rows, statistics=False), options)
        call = _milliseconds(run.timer, lambda: sessions(rows), options) if isinstance(rows, np.ndarray) else None
        compute = computing(sessions, rows, expected, run)
    return {
        "case": cell.case,
        "rows": result.inputs,
        "device_count": cell.devices,
        "run_milliseconds": whole,
        "call_milliseconds": call,
        "compute_milliseconds": compute,
        "first_seconds": first,
        "plan": str(result.plan),
        "edges_per_second": 1e3 * result.inputs * result.edges / whole,
    }


def set_device_speedups(rows: Sequence[Row]) -> None:
    """Set speedups beside one device."""
    for row in rows:
        one = next(other for other in rows if other["case"] == row["case"])
        for name in ("run", "call", "compute"):
            milliseconds = row[f"{name}_milliseconds"]
            row[f"{name}_speedup"] = one[f"{name}_milliseconds"] / milliseconds if milliseconds else None


def computing(sessions: Sessions, rows: Any, expected: Result, run: Run) -> float:
    """Return the median milliseconds of computing, where each device has its share of the rows.

    Raises
    ------
    WrongAnswerError
        A bit differs from those of the first device.
    """
    ranges = chunks(rows.shape[0], -(-rows.shape[0] // len(sessions.sessions)))
    pairs = list(zip(sessions.sessions, ranges, strict=False))
    shares = [(session, _on_device(session, rows, *ends)) for session, ends in pairs]
    first: Any = sessions.sessions[0]
    if isinstance(rows, np.ndarray) and not first.backend.in_host_memory:
        outputs = [first.backend.fetch(first(_on_device(first, rows, *ends))) for _, ends in pairs]
        return _calls(shares, outputs, run)
    return _runs(shares, expected, run)


def _calls(shares: Sequence[tuple[Session, Any]], outputs: Sequence[Any], run: Run) -> float:
    """Time rows to outputs on GPUs: one thread calls all sessions and then waits, as such calls only queue."""

    def compute() -> list[Any]:
        outputs = [session(share) for session, share in shares]
        for session, _ in shares:
            session.backend.queue.wait()
        return outputs

    for (session, _), found, expected in zip(shares, compute(), outputs, strict=True):
        if np.asarray(session.backend.fetch(found)).tobytes() != expected.tobytes():
            raise WrongAnswerError("the bits differ from those of one device")
    return _milliseconds(run.timer, compute, run.options)


def _runs(shares: Sequence[tuple[Session, Any]], expected: Result, run: Run) -> float:
    """Time rows to categories: a run waits for its device, so there is a thread for each, and all begin together."""
    whole = expected.inputs
    inputs = [replace(read_inputs(session.network, share, session.backend), total=whole) for session, share in shares]
    with ExitStack() as stack:
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in shares]

        def compute() -> list[Result]:
            begun = [
                thread.submit(session._run_rows, share, 0, share.count, share.count, False, _ignore)
                for thread, (session, _), share in zip(threads, shares, inputs, strict=True)
            ]
            return [one.result() for one in begun]

        check(expected, concatenate_results(compute(), expected.plan, Seconds()))
        return _milliseconds(run.timer, compute, run.options)


def _on_device(session: Session, rows: Any, first: int, last: int) -> Any:
    """Return some of the rows on a session's device, as CuPy has them there."""
    backend: Any = session.backend
    some = rows.slice_groups(first, last) if isinstance(rows, CSR) else rows[first:last]
    if backend.in_host_memory:
        return some
    with _device(backend.index):
        return _placed(some)


def _device(index: int) -> Any:
    import cupy

    return cupy.cuda.Device(index)


def _placed(rows: Any) -> Any:
    """Return rows on the current GPU, as CuPy has them."""
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    return csr_matrix(rows.to_scipy()) if isinstance(rows, CSR) else cupy.asarray(rows)


def _ignore(first: int, last: int, layers: int) -> None:
    """Report nothing of layers done."""


def _milliseconds(timer: Timer, call: Callable[[], Any], options: argparse.Namespace) -> float:
    return timer.time(call, runs=options.runs, most_seconds=CASE_SHARE * options.limit).median


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--devices", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--most", type=count, default=8, help="devices at most")
    parser.add_argument("--neurons", type=count, default=65536)
    parser.add_argument("--layers", type=count, default=1920)
    parser.add_argument("--rows", type=count, default=60_000)
    parser.add_argument("--runs", type=count, default=20)


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
        cells=lambda options: [Cell(case, each) for case in ("random", "challenge") for each in device_counts(options)],
        measure=device_row,
        relate=set_device_speedups,
        notes=[
            "Median wall times. Before they were timed, results had the same bits as those of one device. Computing "
            "alone: each device already has its share of the rows. Dense rows on GPUs become outputs there: one thread "
            "starts all sessions, then waits for all. Other rows become categories, with a thread for each device."
        ],
        options=add_options,
        configuration=("devices", "neurons", "layers", "rows", "runs", "limit"),
        limit=180.0,
        figure="run_milliseconds",
    )
}
