"""Rows of a file that is larger than the memory limit: tables row-files and scaling.

Digits, over and over, and a RadiX-Net of 1024 × 120 lie in an HDF5 file. They are streamed to categories in a file,
with 1, 2, 4, … devices as far as there are; on a CPU with one. The file comes from the disk, as one that memory does
not hold, and then from the system's memory, which holds it since it was read before. In the same process and in turn
with that, the constants of the model in docs/many-devices.md are timed, each by itself. Both tables show the same runs.
The folder has to be on a disk: a file system in memory, such as tmpfs, drops nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from record import Row, Run, Table, WrongAnswerError, count
from table_devices import device_counts, sessions_on
from timing import Timer, no_wait

from sparsenn import CSR, Network, Session, Sessions
from sparsenn.backends import gpus
from sparsenn.backends.sizes import parts_of
from sparsenn.datasets import radixnet
from sparsenn.datasets.digits import digit_inputs
from sparsenn.distributed.pieces import Piece, opened_pieces
from sparsenn.distributed.streaming import rows_a_piece, stream
from sparsenn.engine import Result
from sparsenn.io import Dataset, read_dataset, write_dataset
from sparsenn.io.challenge.layout import challenge_bias
from sparsenn.io.tables.row_source import opened_rows

__all__ = ["IMAGES", "LAYERS", "NEURONS", "TABLES", "write_repeated"]

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


@dataclass(frozen=True)
class Cell:
    """Where the file comes from, and a number of devices."""

    place: str
    devices: int

    def __str__(self) -> str:
        return f"{self.place}-{self.devices}"


@dataclass(frozen=True)
class Constants:
    """Constants of the model of a run's time, as the page has it.

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
        """Return the seconds that a run is expected to take."""
        once = self.read_seconds + self.merge_seconds
        if self.upload is not None and self.prepared_gigabytes is not None:
            once += self.prepared_gigabytes / self.upload
        slowest = max(rows / self.reading, rows / (devices * self.computing), rows / self.gathering)
        return once + slowest + parts_of(pieces, devices) * self.latency_milliseconds / 1e3


def file_of(run: Run) -> tuple[Path, np.ndarray]:
    """Write the file of rows once; return it, and the true categories."""
    if "file" not in run.shared:
        options = run.options
        folder = run.stack.enter_context(TemporaryDirectory(dir=options.folder))
        network = radixnet(NEURONS, LAYERS, bias=challenge_bias(NEURONS))
        path = Path(folder) / "rows.h5"
        images = digit_inputs(NEURONS, min(options.rows, IMAGES))
        run.shared["file"] = path, write_repeated(network, images, options.rows, path)
    return run.shared["file"]  # type: ignore[no-any-return]


def file_row(cell: Cell, run: Run) -> Row:
    """Measure with some devices: all in turn, so that a disturbance affects all.

    Raises
    ------
    WrongAnswerError
        Categories differ from those of the rows in memory.
    """
    options = run.options
    path, truth = file_of(run)
    limit, network, folder = int(1e9 * options.memory_limit), _network(path), path.parent
    if cell.place == "memory":
        _hold(path)
    names = "cpu" if options.devices == "cpu" else gpus()[: cell.devices]

    def whole() -> Result:
        of_file = _network(path)  # a new one: merging is cached with a network
        result = stream(of_file, path, folder / "found.tsv", devices=names, memory_limit=limit, statistics=False)
        if not np.array_equal(result.categories, truth):
            raise WrongAnswerError("the categories differ from those of the rows in memory")
        return result

    with ExitStack() as opened:
        sessions = opened.enter_context(sessions_on(network, options.devices, cell.devices))
        first = sessions.sessions[0]
        source = opened.enter_context(opened_rows(path, NEURONS))
        size = rows_a_piece(source, network, first.backend, cell.devices, limit, outputs=False)
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
                    pieces.keep(number, Piece(piece.shape[0], found), None)
                pieces.finish()

        calls = (lambda: _network(path), lambda: first.run(few, statistics=False), read, compute, gather, whole)
        drop = partial(_drop, path) if cell.place == "disk" else no_wait
        found = run.timer.in_turn(calls, runs=options.runs, warm_up=1, before=drop)
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
    rates = {"reading": constants.reading, "computing": cell.devices * held_rows / computing}
    return {
        "case": f"{options.rows:,} × {NEURONS} × {LAYERS}",
        "place": cell.place,
        "device_count": cell.devices,
        "file_gigabytes": path.stat().st_size / 1e9,
        "limit_gigabytes": limit / 1e9,
        "peak_gigabytes": memory.grown / 1e9,
        "piece_rows": size,
        "streaming": options.rows / taken,
        "share": options.rows / taken / min(rates.values()),
        "seconds": vars(result.seconds),
        "pieces": pieces,
        "file_reading": rates["reading"],
        "file_computing": rates["computing"],
        **vars(constants),
        "expected_seconds": constants.expected_seconds(options.rows, pieces, cell.devices),
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
    """Return the seconds in which equal outputs are found, and bytes of weights on the device."""
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
        copied = Timer().time(lambda: list(threads.map(copy, sessions.sessions)), runs=runs, warm_up=1)
    return rows.nbytes / 1e6 / copied.median


class Memory:
    """Measures by how much this process's memory grows at most while a block runs, every few milliseconds.

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
    """Write a dataset of images, over and over; return the categories of all."""
    times = parts_of(rows, images.shape[0])
    lengths = np.tile(np.diff(images.indptr), times)[:rows]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.tile(images.indices, times)[: indptr[-1]]
    repeated = CSR((rows, images.shape[1]), indptr, indices, images.values)
    found = Session(network).run(images, statistics=False).categories
    truth = np.concatenate([found + number * images.shape[0] for number in range(times)])
    write_dataset(Dataset("repeated", network, repeated, None), path)
    return truth[truth < rows]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--devices", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--most", type=count, default=8, help="devices at most")
    parser.add_argument("--rows", type=count, default=6_000_000)
    parser.add_argument("--memory-limit", type=float, default=1.0, help="in 10⁹ bytes")
    parser.add_argument("--folder", help="where the file of rows is written, on a disk; the system's unless given")
    parser.add_argument("--runs", type=count, default=7)


def cells(options: argparse.Namespace) -> list[Cell]:
    return [
        Cell(place, each) for place in PLACES for each in (device_counts(options) if options.devices == "cuda" else [1])
    ]


def files_table(title: Any, columns: Any, note: str, figure: str, other: str) -> Table:
    return Table(
        title=title,
        columns=columns,
        cells=cells,
        measure=file_row,
        notes=lambda options, rows: [f"{note} Medians of {options.runs} runs each, alternately."],
        options=add_options,
        configuration=("devices", "rows", "memory_limit", "runs"),
        figure=figure,
        also=[other],
        file=lambda options: "" if options.devices == "cuda" else "-cpu",
    )


TABLES = {
    "row-files": files_table(
        "Rows of an HDF5 file larger than the memory limit, to categories in a file",
        [
            ("case", "rows"),
            ("place", "from"),
            ("device_count", "devices"),
            ("file_gigabytes", "file (GB)", "{:.2f}"),
            ("limit_gigabytes", "memory limit (GB)", "{:.2f}"),
            ("peak_gigabytes", "added memory (GB)", "{:.2f}"),
            ("file_reading", "reading alone (rows/s)", "{:,.0f}"),
            ("file_computing", "computing alone (rows/s)", "{:,.0f}"),
            ("streaming", "file to file (rows/s)", "{:,.0f}"),
            ("share", "% of the slower", "{:.0%}"),
        ],
        "From disk: the page cache is emptied of the file before each run; from memory: it holds the file. File to "
        "file: reading the network from its file, and all that `stream` does, making sessions and preparing weights "
        "included. Categories were compared with those of the rows in memory. Computing alone: one device on pieces of "
        "the same size from memory, times the number of devices.",
        "streaming",
        "scaling",
    ),
    "scaling": files_table(
        lambda options, rows: f"{options.rows:,} rows of a file through a RadiX-Net of {NEURONS} × {LAYERS}",
        [
            ("place", "from"),
            ("device_count", "devices"),
            ("read_seconds", "read (s)", "{:.3f}"),
            ("merge_seconds", "merge (s)", "{:.3f}"),
            ("prepared_gigabytes", "*W* (GB)", "{:.3f}"),
            ("upload", "upload (GB/s)", "{:.1f}"),
            ("reading", "reading (rows/s)", "{:,.0f}"),
            ("computing", "computing (rows/s)", "{:,.0f}"),
            ("gathering", "gathering (rows/s)", "{:,.0f}"),
            ("latency_milliseconds", "latency (ms)", "{:.1f}"),
            ("pieces", "pieces"),
            ("expected_seconds", "expected (s)", "{:.2f}"),
            ("taken_seconds", "measured (s)", "{:.2f}"),
        ],
        "Measured: reading the network from its file, and all that `stream` does, to categories in a file. Latency: a "
        f"run of {FEW_ROWS} rows, which computing does not include. *W*: weights, and buffers for these rows.",
        "taken_seconds",
        "row-files",
    ),
}
