"""Record how a network on 1, 2, 4, … GPUs of one host speeds up, with rows from host memory.

Usage: python bench/record_devices.py [--devices cuda|cpu] [--neurons N] [--layers L] [--rows R] [--plain-layers L]
[--plain-rows R] [--only CASE ...] [--seconds S] [--runs R] [--machine NAME]

Cases, each with 1, 2, 4, … devices as far as there are: `challenge`, a RadiX-Net of N × L and R digits, as the planner
runs it; `challenge-plain`, one of fewer layers and digits, all of which are computed, each for itself; `random`, 24
layers of 1024, 102 weights an output, and R dense rows. With `--devices cpu` each device is a session on the CPU's
cores, which they share: that checks the answers, and tells no speedup.

Answers must have the bits of one device before they are timed. Writes bench/results/<machine>/devices.json after every
case; what does not fit into S seconds is left out. The exit code is 1 if an answer is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from results_file import Column, results_path, write_results
from wall_timing import timed

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

LAYERS, WIDTH, WEIGHTS = 24, 1024, 102
"""Of the random network: weights an output."""

COUNTS = (1, 2, 4, 8)
"""Devices, as far as there are."""

COLUMNS = (
    Column("case", "case"),
    Column("rows", "rows", "{:,}"),
    Column("device_count", "devices"),
    Column("call_milliseconds", "rows to outputs (ms)", "{:,.2f}"),
    Column("call_speedup", "speedup", "{:.2f}"),
    Column("run_milliseconds", "rows to categories (ms)", "{:,.2f}"),
    Column("run_speedup", "speedup", "{:.2f}"),
    Column("compute_milliseconds", "computing alone (ms)", "{:,.2f}"),
    Column("compute_speedup", "speedup", "{:.2f}"),
    Column("first_seconds", "made and first run (s)", "{:.2f}"),
)

Row = dict[str, Any]
Case = tuple[str, Callable[[argparse.Namespace], tuple[Network, Any]], dict[str, Any]]


class WrongAnswerError(Exception):
    """Several devices gave other bits than one."""


def challenge(options: argparse.Namespace) -> tuple[Network, CSR]:
    """Return a RadiX-Net, and digits."""
    network = radixnet(options.neurons, options.layers, bias=challenge_bias(options.neurons))
    return network, digit_inputs(options.neurons, options.rows)


def challenge_plain(options: argparse.Namespace) -> tuple[Network, CSR]:
    """Return a RadiX-Net of few enough layers for its weights to stay on a device, and fewer digits."""
    network = radixnet(options.neurons, options.plain_layers, bias=challenge_bias(options.neurons))
    return network, digit_inputs(options.neurons, options.plain_rows)


def random(options: argparse.Namespace) -> tuple[Network, Any]:
    """Return a network of random weights, and dense rows."""
    rng = np.random.default_rng(24)
    return Network(tuple(_random_layer(rng) for _ in range(LAYERS))), rng.random((options.rows, WIDTH), np.float32)


def _random_layer(rng: np.random.Generator) -> SparseLinear:
    rows = np.sort(rng.random((WIDTH, WIDTH), np.float32).argpartition(WEIGHTS, axis=1)[:, :WEIGHTS], axis=1)
    values = rng.normal(0, (2 / WEIGHTS) ** 0.5, rows.size).astype(np.float32)
    offsets = np.arange(WIDTH + 1, dtype=np.int64) * WEIGHTS
    weights = CSC((WIDTH, WIDTH), offsets, rows.astype(np.uint16).ravel(), values)
    return SparseLinear(weights, -0.05, ReLU())


CASES: tuple[Case, ...] = (
    ("random", random, {}),
    ("challenge", challenge, {}),
    ("challenge-plain", challenge_plain, {"deduplication": False, "merging": False}),
)


def sessions_on(network: Network, device: str, count: int, options: dict[str, Any]) -> Sessions:
    """Return sessions on the first GPUs, or so many on the CPU."""
    names = gpus()[:count] if device == "cuda" else ("cpu",) * count
    first = Session(network, device=names[0], **options)
    return Sessions.of([first, *map(first.on, names[1:])])


def check(one: Result, found: Result) -> None:
    """Compare what several devices gave with what one did.

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


def record(name: str, network: Network, rows: Any, more: dict[str, Any], options: argparse.Namespace) -> list[Row]:
    """Time a case with each number of devices."""
    there = len(gpus()) if options.devices == "cuda" else options.most
    found: list[Row] = []
    right: Result | None = None
    for count in (count for count in COUNTS if count <= min(there, options.most)):
        start = time.perf_counter()
        with sessions_on(network, options.devices, count, more) as sessions:
            result = sessions.run(rows, statistics=False)
            first = time.perf_counter() - start
            right = right or result
            check(right, result)
            run = _timed(lambda: sessions.run(rows, statistics=False), options)
            call = _timed(lambda: sessions(rows), options) if isinstance(rows, np.ndarray) else None
            compute = computing(sessions, rows, right, options)
        found.append(_row(name, count, result, first, run, call, compute, found))
        print("  ".join(column.show(found[-1][column.key]) for column in COLUMNS), flush=True)
    return found


def computing(sessions: Sessions, rows: Any, right: Result, options: argparse.Namespace) -> float:
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
        expected = [first.backend.fetch(first(_on_device(first, rows, *ends))) for _, ends in pairs]
        return _calls(shares, expected, options)
    return _runs(shares, right, options)


def _calls(shares: Sequence[tuple[Session, Any]], right: Sequence[Any], options: argparse.Namespace) -> float:
    """Time rows to outputs on GPUs: one thread calls all sessions and then waits, as such calls only queue."""

    def compute() -> list[Any]:
        outputs = [session(share) for session, share in shares]
        for session, _ in shares:
            session.backend.queue.wait()
        return outputs

    for (session, _), found, expected in zip(shares, compute(), right, strict=True):
        if np.asarray(session.backend.fetch(found)).tobytes() != expected.tobytes():
            raise WrongAnswerError("the bits differ from those of one device")
    return _timed(compute, options)


def _runs(shares: Sequence[tuple[Session, Any]], right: Result, options: argparse.Namespace) -> float:
    """Time rows to categories: a run waits for its device, so there is a thread for each, and all begin together."""
    whole = right.inputs
    given = [replace(read_inputs(session.network, share, session.backend), total=whole) for session, share in shares]
    with ExitStack() as stack:
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in shares]

        def compute() -> list[Result]:
            begun = [
                thread.submit(session._run_rows, share, 0, share.count, share.count, False, _untold)
                for thread, (session, _), share in zip(threads, shares, given, strict=True)
            ]
            return [one.result() for one in begun]

        check(right, concatenate_results(compute(), right.plan, Seconds()))
        return _timed(compute, options)


def _on_device(session: Session, rows: Any, first: int, last: int) -> Any:
    """Return some of the rows on a session's device, as CuPy has them there."""
    backend: Any = session.backend
    part = rows.slice_groups(first, last) if isinstance(rows, CSR) else rows[first:last]
    if backend.in_host_memory:
        return part
    with _device(backend.index):
        return _placed(part)


def _device(index: int) -> Any:
    import cupy

    return cupy.cuda.Device(index)


def _placed(rows: Any) -> Any:
    """Return rows on the current GPU, as CuPy has them."""
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    return csr_matrix(rows.to_scipy()) if isinstance(rows, CSR) else cupy.asarray(rows)


def _untold(first: int, last: int, layers: int) -> None:
    """Tell nobody of layers done."""


def _timed(call: Callable[[], Any], options: argparse.Namespace) -> float:
    """Return the median milliseconds of a call."""
    return timed(call, runs=options.runs, most_seconds=options.case_seconds).median


def _row(
    name: str,
    count: int,
    result: Result,
    first: float,
    run: float,
    call: float | None,
    compute: float,
    before: Sequence[Row],
) -> Row:
    row: Row = {
        "case": name,
        "rows": result.inputs,
        "device_count": count,
        "run_milliseconds": run,
        "call_milliseconds": call,
        "compute_milliseconds": compute,
        "first_seconds": first,
        "plan": str(result.plan),
        "edges_per_second": 1e3 * result.inputs * result.edges / run,
    }
    one = before[0] if before else row
    for part in ("run", "call", "compute"):
        milliseconds = row[f"{part}_milliseconds"]
        row[f"{part}_speedup"] = one[f"{part}_milliseconds"] / milliseconds if milliseconds else None
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Record all cases; return the exit code."""
    options = _parsed(arguments)
    start, rows, notes = time.perf_counter(), [], []
    options.case_seconds = options.seconds / 24
    for name, make, more in CASES:
        if options.only and name not in options.only:
            continue
        if time.perf_counter() - start > options.seconds:
            notes.append(f"{name}: left out, time was up.")
            if rows:
                _write(rows, notes, options)
            continue
        try:
            rows += record(name, *make(options), more, options)
        except WrongAnswerError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        _write(rows, notes, options)
    return 0 if rows else 1


def _write(rows: Sequence[Row], notes: Sequence[str], options: argparse.Namespace) -> None:
    write_results(
        results_path("devices" if options.devices == "cuda" else "devices-cpu", folder=options.machine),
        table="devices",
        title="Rows from host memory shared by several devices of one host",
        columns=COLUMNS,
        rows=rows,
        configuration={
            name: getattr(options, name)
            for name in ("devices", "neurons", "layers", "rows", "plain_layers", "plain_rows", "runs", "seconds")
        },
        notes=[
            "Wall time, medians. Results had the bits of one device's before they were timed. Computing alone: each "
            "device has its share of the rows already. On GPUs, dense ones become outputs there: one thread calls the "
            "sessions in turn, and then waits for all. Else categories are found, in a thread for each device.",
            *(
                [
                    f"The case challenge-plain has {options.plain_layers} layers and {options.plain_rows:,} rows: so "
                    "few that its weights stay on the devices, and a run is short."
                ]
                if any(row["case"] == "challenge-plain" for row in rows)
                else []
            ),
            *notes,
        ],
    )


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--most", type=int, default=8, help="devices at most")
    parser.add_argument("--neurons", type=int, default=65536)
    parser.add_argument("--layers", type=int, default=1920)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--plain-layers", type=int, default=120, help="of the case challenge-plain")
    parser.add_argument("--plain-rows", type=int, default=8192, help="of the case challenge-plain")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--machine")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
