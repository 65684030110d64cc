"""Record the constants by which docs/many-devices.md tells what a run takes, and hold that against what one took.

Usage: python bench/record_scaling.py [--devices cuda|cpu] [--most N] [--rows R] [--memory-limit GB] [--folder FOLDER]
[--runs N] [--machine NAME]

R digits, over and over, and a RadiX-Net of 1024 × 120 lie in an HDF5 file. They are streamed to categories in a file,
with 1, 2, 4, … devices as far as there are; each constant is timed by itself, in the same process. On a CPU there is
one device, and nothing is uploaded.

Writes bench/results/<machine>/scaling.json; of a CPU, scaling-cpu.json. The exit code is 1 if categories are wrong.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from record_devices import COUNTS, FILE_LAYERS, FILE_NEURONS, sessions_on, write_repeated
from results_file import Column, results_path, write_results
from wall_timing import timed, timed_in_turn

from sparsenn import Network, Session, Sessions
from sparsenn.backends import gpus
from sparsenn.datasets import radixnet
from sparsenn.datasets.digits import digit_inputs
from sparsenn.distributed.digests import rows_digest
from sparsenn.distributed.pieces import Piece, opened_pieces
from sparsenn.distributed.streaming import rows_a_piece, stream
from sparsenn.io import read_dataset
from sparsenn.io.layout import challenge_bias
from sparsenn.io.row_source import opened_rows

IMAGES = 60_000
"""That differ from each other."""

HELD_PIECES = 4
"""In memory, to be computed and gathered."""

FEW_ROWS = 64
"""For which a run takes its latency, and next to nothing else."""

UPLOADED_ROWS = 1 << 16
"""To each device, in float32, to see how fast they come there."""

COLUMNS = (
    Column("device_count", "devices"),
    Column("read_seconds", "read (s)", "{:.3f}"),
    Column("merge_seconds", "merge (s)", "{:.3f}"),
    Column("prepared_gigabytes", "*W* (GB)", "{:.3f}"),
    Column("upload", "upload (GB/s)", "{:.1f}"),
    Column("reading", "reading (rows/s)", "{:,.0f}"),
    Column("computing", "computing (rows/s)", "{:,.0f}"),
    Column("gathering", "gathering (rows/s)", "{:,.0f}"),
    Column("latency_milliseconds", "latency (ms)", "{:.1f}"),
    Column("pieces", "pieces"),
    Column("expected_seconds", "expected (s)", "{:.2f}"),
    Column("taken_seconds", "taken (s)", "{:.2f}"),
)

Row = dict[str, Any]


class WrongAnswerError(Exception):
    """Categories differ from those of the rows in memory."""


@dataclass(frozen=True)
class Constants:
    """What the time of a run is made of, as the page has it.

    Parameters
    ----------
    read_seconds, merge_seconds : for the network: from its file, and to look for equal outputs.
    prepared_gigabytes, upload : weights and buffers on a device, and GB a second to each while all copy; None where
        nothing is copied.
    reading, computing, gathering : rows a second: from the file, on one device, and hashed and written.
    latency_milliseconds : of a piece.
    """

    read_seconds: float
    merge_seconds: float
    prepared_gigabytes: float | None
    upload: float | None
    reading: float
    computing: float
    gathering: float
    latency_milliseconds: float

    def expected_seconds(self, rows: int, pieces: int, devices: int) -> float:
        """Return what a run is expected to take."""
        once = self.read_seconds + self.merge_seconds
        if self.upload is not None and self.prepared_gigabytes is not None:
            once += self.prepared_gigabytes / self.upload
        slowest = max(rows / self.reading, rows / (devices * self.computing), rows / self.gathering)
        return once + slowest + -(-pieces // devices) * self.latency_milliseconds / 1e3


def record(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Measure with each number of devices."""
    network = radixnet(FILE_NEURONS, FILE_LAYERS, bias=challenge_bias(FILE_NEURONS))
    path = folder / "rows.h5"
    truth = write_repeated(network, digit_inputs(FILE_NEURONS, min(options.rows, IMAGES)), options.rows, path)
    there = len(gpus()) if options.devices == "cuda" else 1
    found = []
    for count in (count for count in COUNTS if count <= min(there, options.most)):
        found.append(_measured(path, truth, count, options, folder))
        print("  ".join(column.show(found[-1][column.key]) for column in COLUMNS), flush=True)
    return found


def _measured(path: Path, truth: Any, count: int, options: argparse.Namespace, folder: Path) -> Row:
    """Measure constants, and a run, with so many devices: in turn, so that whatever disturbs one disturbs all."""
    limit, network = int(1e9 * options.memory_limit), _network(path)
    names = "cpu" if options.devices == "cpu" else gpus()[:count]
    with sessions_on(network, options.devices, count, {}) as sessions, opened_rows(path, FILE_NEURONS) as source:
        first = sessions.sessions[0]
        size = rows_a_piece(source, network, first.backend, count, limit, outputs=False)
        held = [piece for _, piece in zip(range(HELD_PIECES), source.pieces(size), strict=False)]
        few = held[0].slice_groups(0, min(FEW_ROWS, held[0].shape[0]))
        results = [first.run(piece, statistics=False) for piece in held]

        def read() -> None:
            for _ in source.pieces(size):
                pass

        def compute() -> None:
            for piece in held:
                first.run(piece, statistics=False)

        def gather() -> None:
            with opened_pieces(folder / "gathered.tsv", "", size, resume=False) as pieces:
                for number, (piece, result) in enumerate(zip(held, results, strict=True)):
                    pieces.keep(number, Piece(piece.shape[0], rows_digest(piece), result.categories.tolist()), None)
                pieces.finish()

        def whole() -> None:
            given = {"devices": names, "memory_limit": limit, "statistics": False}
            if not np.array_equal(stream(_network(path), path, folder / "found.tsv", **given).categories, truth):
                raise WrongAnswerError("the categories differ from those of the rows in memory")

        calls = (lambda: _network(path), lambda: first.run(few, statistics=False), read, compute, gather, whole)
        found = timed_in_turn(calls, runs=options.runs, warm_up=1)
        network_seconds, latency, reading, computing, gathering, taken = (each / 1e3 for each in found)
        held_rows, pieces = sum(piece.shape[0] for piece in held), -(-options.rows // size)
        constants = Constants(
            network_seconds,
            statistics.median(_merge_seconds(path, first.options.device, few) for _ in range(options.runs)),
            *((None, None) if first.backend.in_host_memory else (first.nbytes / 1e9, _upload(sessions, options.runs))),
            reading=options.rows / reading,
            computing=held_rows / max(computing - len(held) * latency, 1e-9),
            gathering=held_rows / gathering,
            latency_milliseconds=1e3 * latency,
        )
    return {
        "device_count": count,
        "rows": options.rows,
        "pieces": pieces,
        **vars(constants),
        "expected_seconds": constants.expected_seconds(options.rows, pieces, count),
        "taken_seconds": taken,
    }


def _network(path: Path) -> Network:
    return read_dataset(path, limit_inputs=1).network


def _merge_seconds(path: Path, device: str, rows: Any) -> float:
    with Session(_network(path), device=device) as session:
        return session.run(rows, statistics=False).seconds.plan


def _upload(sessions: Sessions, runs: int) -> float:
    """Return GB a second from the host to each device, while all copy at once."""
    rows = np.ones((UPLOADED_ROWS, FILE_NEURONS), np.float32)
    together = threading.Barrier(len(sessions.sessions))

    def copy(session: Session) -> None:
        together.wait()
        session.backend.place(rows)
        session.backend.wait()

    with ThreadPoolExecutor(len(sessions.sessions)) as threads:
        copied = timed(lambda: list(threads.map(copy, sessions.sessions)), runs=runs, warm_up=1)
    return rows.nbytes / 1e6 / copied.median


def main(arguments: Sequence[str] | None = None) -> int:
    """Record; return the exit code."""
    options = _parsed(arguments)
    with TemporaryDirectory(dir=options.folder) as folder:
        try:
            rows = record(options, Path(folder))
        except WrongAnswerError as error:
            print(f"scaling: {error}", file=sys.stderr)
            return 1
    write_results(
        results_path("scaling" if options.devices == "cuda" else "scaling-cpu", folder=options.machine),
        table="scaling",
        title=f"{options.rows:,} rows of a file through a RadiX-Net of {FILE_NEURONS} × {FILE_LAYERS}",
        columns=COLUMNS,
        rows=rows,
        configuration={name: getattr(options, name) for name in ("devices", "rows", "memory_limit", "runs")},
        notes=[
            f"Medians of {options.runs} runs of each, in turn. Taken: the network from its file, then all that "
            "`stream` does, to categories in a file. *W*: weights and buffers. Latency: a run of "
            f"{FEW_ROWS} rows; it is not part of computing.",
        ],
    )
    return 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--most", type=int, default=8, help="devices at most")
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--memory-limit", type=float, default=1.0, help="in 10⁹ bytes")
    parser.add_argument("--folder", help="where the file of rows goes meanwhile; the system's unless given")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--machine")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
