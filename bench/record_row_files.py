"""Record what rows of a file take that is larger than the memory limit, and the constants that foretell it.

Usage: python bench/record_row_files.py [--devices cuda|cpu] [--most N] [--rows R] [--memory-limit GB] [--folder FOLDER]
[--runs N] [--machine NAME]

R digits, over and over, and a RadiX-Net of 1024 × 120 lie in an HDF5 file. They are streamed to categories in a file,
with 1, 2, 4, … devices as far as there are; on a CPU with one. The file comes from the disk, as one that memory does
not hold, and then from the system's memory, which holds it since it was read before. In the same process and in turn
with that, the constants of the model in docs/many-devices.md are timed, each by itself.

FOLDER has to be on a disk: a file system in memory, such as tmpfs, drops nothing.

Writes row-files.json and scaling.json to bench/results/<machine>; of a CPU, row-files-cpu.json and scaling-cpu.json.
The exit code is 1 if categories are wrong.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from record_devices import COUNTS, sessions_on
from results_file import Column, results_path, write_results
from wall_timing import timed, timed_in_turn, wait_for_nothing

from sparsenn import CSR, Network, Session, Sessions
from sparsenn.backends import gpus
from sparsenn.backends.sizes import parts_of
from sparsenn.datasets import radixnet
from sparsenn.datasets.digits import digit_inputs
from sparsenn.distributed.digests import rows_digest
from sparsenn.distributed.pieces import Piece, opened_pieces
from sparsenn.distributed.streaming import is_read_once, rows_a_piece, stream
from sparsenn.engine import Result
from sparsenn.io import Dataset, read_dataset, write_dataset
from sparsenn.io.challenge.layout import challenge_bias
from sparsenn.io.tables.row_source import opened_rows

NEURONS, LAYERS, IMAGES = 1024, 120, 60_000
"""Of the network, and images that differ from each other."""

HELD_PIECES = 4
"""In memory, to be computed and gathered."""

FEW_ROWS = 64
"""For which a run takes its latency, and next to nothing else."""

UPLOADED_ROWS = 1 << 16
"""To each device, in float32, to see how fast they come there."""

PLACES = ("disk", "memory")
"""Where the file comes from."""

HELD_BYTES = 1 << 24
"""Read at a time, for the system to hold them."""

FILE_COLUMNS = (
    Column("case", "rows"),
    Column("place", "from"),
    Column("device_count", "devices"),
    Column("file_gigabytes", "file (GB)", "{:.2f}"),
    Column("limit_gigabytes", "memory limit (GB)", "{:.2f}"),
    Column("peak_gigabytes", "memory more than before (GB)", "{:.2f}"),
    Column("reading", "reading alone (rows/s)", "{:,.0f}"),
    Column("computing", "computing alone (rows/s)", "{:,.0f}"),
    Column("streaming", "file to file (rows/s)", "{:,.0f}"),
    Column("share", "of the slower", "{:.0%}"),
)

SCALING_COLUMNS = (
    Column("place", "from"),
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
    prepared_gigabytes, upload : weights on a device, and GB a second to each while all copy; None where nothing is
        copied.
    reading, computing, gathering : rows a second: from the file, on one device without latency, and hashed and written.
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
        return once + slowest + parts_of(pieces, devices) * self.latency_milliseconds / 1e3


def record(options: argparse.Namespace, folder: Path) -> tuple[list[Row], list[Row]]:
    """Return what rows of a file take with each number of devices, and the constants."""
    network = radixnet(NEURONS, LAYERS, bias=challenge_bias(NEURONS))
    path = folder / "rows.h5"
    truth = write_repeated(network, digit_inputs(NEURONS, min(options.rows, IMAGES)), options.rows, path)
    there = len(gpus()) if options.devices == "cuda" else 1
    files, scaling = [], []
    counts = [count for count in COUNTS if count <= min(there, options.most)]
    for place, count in itertools.product(PLACES, counts):
        of_file, constants = _measured(path, place, truth, count, options)
        files.append(of_file)
        scaling.append(constants)
        for columns, row in ((FILE_COLUMNS, of_file), (SCALING_COLUMNS, constants)):
            print("  ".join(column.show(row[column.key]) for column in columns), flush=True)
    return files, scaling


def _measured(path: Path, place: str, truth: Any, count: int, options: argparse.Namespace) -> tuple[Row, Row]:
    """Measure with so many devices: all in turn, so that whatever disturbs one disturbs all."""
    limit, network, folder = int(1e9 * options.memory_limit), _network(path), path.parent
    if place == "memory":
        _hold(path)
    names = "cpu" if options.devices == "cpu" else gpus()[:count]

    def whole() -> Result:
        of_file = _network(path)  # what is found out about a network is kept with it
        result = stream(of_file, path, folder / "found.tsv", devices=names, memory_limit=limit, statistics=False)
        if not np.array_equal(result.categories, truth):
            raise WrongAnswerError("the categories differ from those of the rows in memory")
        return result

    with ExitStack() as opened:
        sessions = opened.enter_context(sessions_on(network, options.devices, count, {}))
        first = sessions.sessions[0]
        source = opened.enter_context(opened_rows(path, NEURONS, is_read_once(path, first.backend, limit)))
        size = rows_a_piece(source, network, first.backend, count, limit, outputs=False)
        held = [piece for _, piece in zip(range(HELD_PIECES), source.pieces(size), strict=False)]
        few = held[0].slice_groups(0, min(FEW_ROWS, held[0].shape[0]))
        categories = [first.run(piece, statistics=False).categories.tolist() for piece in held]

        def read() -> None:
            for _ in source.pieces(size):
                pass

        def compute() -> None:
            for piece in held:
                first.run(CSR(piece.shape, *piece.arrays), statistics=False)  # not checked yet, as it is read

        def gather() -> None:
            with opened_pieces(folder / "gathered.tsv", str, size, resume=False) as pieces:
                for number, (piece, found) in enumerate(zip(held, categories, strict=True)):
                    pieces.keep(number, Piece(piece.shape[0], rows_digest(piece), found), None)
                pieces.finish()

        calls = (lambda: _network(path), lambda: first.run(few, statistics=False), read, compute, gather, whole)
        drop = partial(_drop, path) if place == "disk" else wait_for_nothing
        found = timed_in_turn(calls, runs=options.runs, warm_up=1, before=drop)
        network_seconds, latency, reading, computing, gathering, taken = (timing.median / 1e3 for timing in found)
        merging, prepared = zip(*(_made(path, first.options.device, few) for _ in range(options.runs)), strict=True)
        copied = not first.backend.in_host_memory
        held_rows, pieces = sum(piece.shape[0] for piece in held), parts_of(options.rows, size)
        constants = Constants(
            network_seconds,
            statistics.median(merging),
            prepared[0] / 1e9 if copied else None,
            _upload(sessions, options.runs) if copied else None,
            reading=options.rows / reading,
            computing=held_rows / max(computing - len(held) * latency, 1e-9),
            gathering=held_rows / gathering,
            latency_milliseconds=1e3 * latency,
        )
    with Memory() as memory:
        result = whole()
    rates = {"reading": constants.reading, "computing": count * held_rows / computing}
    of_file = {
        "case": f"{options.rows:,} × {NEURONS} × {LAYERS}",
        "place": place,
        "device_count": count,
        "file_gigabytes": path.stat().st_size / 1e9,
        "limit_gigabytes": limit / 1e9,
        "peak_gigabytes": memory.grown / 1e9,
        "piece_rows": size,
        **rates,
        "streaming": options.rows / taken,
        "share": options.rows / taken / min(rates.values()),
        "seconds": vars(result.seconds),
    }
    return of_file, {
        "place": place,
        "device_count": count,
        "pieces": pieces,
        **vars(constants),
        "expected_seconds": constants.expected_seconds(options.rows, pieces, count),
        "taken_seconds": taken,
    }


def _drop(path: Path) -> None:
    """Have the system hold a file in memory no longer."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _hold(path: Path) -> None:
    """Have the system hold a file in memory."""
    with path.open("rb") as file:
        while file.read(HELD_BYTES):
            pass


def _network(path: Path) -> Network:
    return read_dataset(path, limit_inputs=1).network


def _made(path: Path, device: str, few: CSR) -> tuple[float, int]:
    """Return the seconds in which equal outputs are found, and bytes of weights on the device, few rows beside them."""
    with Session(_network(path), device=device) as session:
        return session.run(few, statistics=False).seconds.plan, session.nbytes


def _upload(sessions: Sessions, runs: int) -> float:
    """Return GB a second from the host to each device, while all copy at once."""
    rows = np.ones((UPLOADED_ROWS, NEURONS), np.float32)
    together = threading.Barrier(len(sessions.sessions))

    def copy(session: Session) -> None:
        together.wait()
        session.backend.place(rows)
        session.backend.queue.wait()

    with ThreadPoolExecutor(len(sessions.sessions)) as threads:
        copied = timed(lambda: list(threads.map(copy, sessions.sessions)), runs=runs, warm_up=1)
    return rows.nbytes / 1e6 / copied.median


class Memory:
    """By how much this process's memory has grown at most while a block runs, looked at every few milliseconds.

    Attributes
    ----------
    grown : bytes.
    """

    def __enter__(self) -> Memory:
        self.grown, self._before, self._over = 0, _resident(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.003):
            self.grown = max(self.grown, _resident() - self._before)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _resident() -> int:
    """Return the memory that this process has, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def write_repeated(network: Network, images: CSR, rows: int, path: Path) -> Any:
    """Write images, over and over, as a dataset; return the categories of all."""
    times = parts_of(rows, images.shape[0])
    lengths = np.tile(np.diff(images.indptr), times)[:rows]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.tile(images.indices, times)[: indptr[-1]]
    repeated = CSR((rows, images.shape[1]), indptr, indices, images.values)
    found = Session(network).run(images, statistics=False).categories
    truth = np.concatenate([found + number * images.shape[0] for number in range(times)])
    write_dataset(Dataset("repeated", network, repeated, None), path)
    return truth[truth < rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Record; return the exit code."""
    options = _parsed(arguments)
    with TemporaryDirectory(dir=options.folder) as folder:
        try:
            files, scaling = record(options, Path(folder))
        except WrongAnswerError as error:
            print(f"rows of a file: {error}", file=sys.stderr)
            return 1
    _write(
        "row-files",
        "Rows of an HDF5 file larger than the memory limit, to categories in a file",
        FILE_COLUMNS,
        files,
        "From disk: the system drops the file before each run; from memory: it holds the file. File to file: the "
        "network from its file, and all that `stream` does, sessions made and weights prepared included. Categories "
        "were those of the rows in memory. Computing alone: pieces of the same size from memory on one device, times "
        "the devices.",
        options,
    )
    _write(
        "scaling",
        f"{options.rows:,} rows of a file through a RadiX-Net of {NEURONS} × {LAYERS}",
        SCALING_COLUMNS,
        scaling,
        "Taken: the network from its file, and all that `stream` does, to categories in a file. Latency: a run of "
        f"{FEW_ROWS} rows; it is not part of computing. *W*: weights, and buffers for so many rows.",
        options,
    )
    return 0


def _write(
    table: str, title: str, columns: Sequence[Column], rows: Sequence[Row], note: str, options: argparse.Namespace
) -> None:
    write_results(
        results_path(table if options.devices == "cuda" else f"{table}-cpu", folder=options.machine),
        table=table,
        title=title,
        columns=columns,
        rows=rows,
        configuration={name: getattr(options, name) for name in ("devices", "rows", "memory_limit", "runs")},
        notes=[f"{note} Medians of {options.runs} runs of each, in turn."],
    )


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--most", type=int, default=8, help="devices at most")
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--memory-limit", type=float, default=1.0, help="in 10⁹ bytes")
    parser.add_argument("--folder", help="where the file of rows goes meanwhile, on a disk; the system's unless given")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--machine")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
