"""How long calls of a session take for some numbers of rows, beside what else people run the network with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends import backend_for
from sparsenn.engine import Session
from sparsenn.errors import SparseNNError, UsageError, unknown_name
from sparsenn.formats import Array
from sparsenn.formats.named_shapes import cut_columns
from sparsenn.network import Network
from sparsenn.runtime.progress import Progress, silent
from sparsenn.runtime.spans import unwatched
from sparsenn.studies.peers import PEERS, Peer, peer_for

OURS = "sparsenn"
WARM_UP = 3  # calls before the timed ones
FEWEST = 10  # timed calls at least, unless they take `PATIENCE` times as long as they should
PATIENCE = 5
MOST = 20_000  # timed calls at most

ALLOWED = {"float32": 1e-4, "float64": 1e-4, "tf32": 1e-2, "float16": 1e-2}
"""How far a peer's float32 outputs may be from ours, in parts of our largest, by the precision that we multiply in."""

SEED = 0


@dataclass(frozen=True)
class Calls:
    """Warm calls with so many rows, the answer awaited."""

    rows: int  # of a call
    way: str  # `OURS`, or a peer's name
    runs: int  # calls timed
    median: float  # seconds, as the next two
    p95: float
    p99: float
    error: float  # largest difference from our outputs, in parts of the largest of these; 0 for ours
    kernels: tuple[str, ...] = ()  # the plan's, for ours

    @property
    def rows_per_second(self) -> float:
        """Rows a second at the median."""
        return self.rows / self.median


@dataclass(frozen=True)
class BenchmarkResult:
    """What a benchmark found."""

    device: str  # in words
    precision: str  # that we multiply in
    allowed: float  # error that a peer's outputs may have
    calls: tuple[Calls, ...]  # by rows, ours first
    left_out: tuple[tuple[str, str], ...]  # (peer, why it was not timed)

    def ours(self, rows: int) -> Calls:
        """Return our calls with so many rows."""
        return next(call for call in self.calls if (call.rows, call.way) == (rows, OURS))


def run_benchmark(
    network: Network,
    rows: Sequence[int],
    inputs: Array | None = None,
    *,
    against: Sequence[str] = tuple(PEERS),
    seconds: float = 2.0,
    progress: Progress = silent,
    **options: Any,
) -> BenchmarkResult:
    """Time calls of a session and of peers, whose answers are held against ours first.

    Rows are on the session's device, and outputs stay there; for peers that compute on a GPU, too. Inputs and
    outputs go by their names where they have any; peers take one matrix.

    Parameters
    ----------
    rows : of the calls; they are random, between 0 and 1 and seeded, unless given.
    inputs : (any number, network.inputs), rows that are taken in place of random ones, over and over if they are fewer.
    against : names of `PEERS`.
    seconds : for each way and number of rows, about.
    options : of `Session`.

    Raises
    ------
    UsageError
        A peer is unknown, or there are no rows or no time.
    SparseNNError
        As `Session` does.
    """
    for name in against:
        if name not in PEERS:
            raise unknown_name("peer", name, PEERS)
    if not rows or min(rows) < 1 or not seconds > 0:
        raise UsageError(f"{list(rows)} rows and {seconds} seconds measure nothing; take at least 1 row, and some time")
    calls: list[Calls] = []
    left_out: dict[str, str] = {}
    with Session(network, **options) as session:
        backend, device = session.backend, "cpu" if session.backend.in_host_memory else "cuda"
        precision = session.options.precision
        peers: dict[str, Peer] = {}
        for name in against:
            try:
                peers[name] = peer_for(name, network, device)
            except SparseNNError as error:
                left_out[name] = str(error)
        steps = len(rows) * (1 + len(peers))
        for count in rows:
            given = _rows(network, count, inputs)
            placed: Any = given if backend.in_host_memory else backend.place(given)
            right = np.asarray(backend.fetch(session(placed, form="dense")), np.float32)
            if network.named_inputs is not None:
                named = cut_columns(network.named_inputs, placed)
                placed = {name: columns.copy() for name, columns in named.items()}

            def ours(placed: Any = placed) -> Any:
                outputs = session(placed) if network.named_outputs else session(placed, form="dense")
                backend.queue.wait()
                return outputs

            kernels = tuple(dict.fromkeys(kernel.name for kernel in session.plan(placed).kernels))
            calls.append(_timed(count, OURS, ours, seconds, 0.0, kernels))
            progress("ways timed", len(calls), steps)
            for name, peer in peers.items():
                lying = peer.place(given)
                off = _error(peer.fetch(peer.run(lying)), right)
                if off > ALLOWED[precision]:
                    left_out[name] = f"its outputs are off by {off:.1e} of the largest, for {count:,} samples"
                    continue
                calls.append(_timed(count, name, partial(peer.run, lying), seconds, off))
                progress("ways timed", len(calls), steps)
        description = backend_for(options.get("device", "auto")).description
    progress("ways timed", steps, steps)
    return BenchmarkResult(description, precision, ALLOWED[precision], tuple(calls), tuple(left_out.items()))


def _rows(network: Network, count: int, inputs: Array | None) -> Array:
    if inputs is None:
        return np.random.default_rng(SEED).random((count, network.inputs), np.float32)
    return np.ascontiguousarray(np.resize(inputs, (count, network.inputs)), np.float32)


def _error(found: Array, right: Array) -> float:
    if found.shape != right.shape:
        return float("inf")
    with np.errstate(all="ignore"):
        largest = float(np.abs(right).max(initial=0.0))
        error = float(np.abs(found - right).max(initial=0.0)) / (largest or 1.0)
    return error if np.isfinite(error) else float("inf")


def _timed(
    rows: int, way: str, call: Callable[[], Any], seconds: float, error: float, kernels: tuple[str, ...] = ()
) -> Calls:
    taken: list[float] = []
    with unwatched():
        begun = time.perf_counter()
        for _ in range(WARM_UP):
            call()
            if time.perf_counter() - begun > seconds:
                break
        begun = time.perf_counter()
        while _goes_on(len(taken), time.perf_counter() - begun, seconds):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    median, p95, p99 = (float(found) for found in np.percentile(taken, (50, 95, 99)))
    return Calls(rows, way, len(taken), median, p95, p99, error, kernels)


def _goes_on(runs: int, passed: float, seconds: float) -> bool:
    if runs < FEWEST:
        return not runs or passed < PATIENCE * seconds
    return runs < MOST and passed < seconds
