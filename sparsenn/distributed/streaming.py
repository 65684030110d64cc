"""Rows that are larger than memory, from a file to a file: read, computed and written side by side, in pieces."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from sparsenn.backends import Backend
from sparsenn.backends.sizes import parts_of
from sparsenn.distributed.devices import Devices, Sessions, device_names, session_on, wall_seconds
from sparsenn.distributed.digests import check_unchanged, content_digest, file_stamp, file_state, prepare_key
from sparsenn.distributed.pieces import Piece, Pieces, opened_pieces, target_of
from sparsenn.distributed.sharing import Stopping, ahead
from sparsenn.engine import Result, Seconds, Session
from sparsenn.engine.compiled_network import choose_kernels
from sparsenn.engine.inputs import Inputs
from sparsenn.engine.options import StreamOptions, read_options, resolve_precision
from sparsenn.engine.plan import Plan, with_inputs
from sparsenn.engine.result import concatenate_results
from sparsenn.errors import ResourceError, UsageError
from sparsenn.formats import CSR, Array
from sparsenn.io.tables.row_source import RowSource, checked, faults_reported, opened_rows
from sparsenn.network import Network
from sparsenn.runtime.memory import bytes_of, free_memory
from sparsenn.runtime.progress import Progress, ProgressOption, shown_progress

USUAL_MEMORY = 2 << 30
"""Bytes for rows, unless a limit is given, or a quarter of what is free is less."""

MOST_PIECE_ROWS = 1 << 20
"""Of a piece: so that a run that ends early has not much to do again."""

LEAST_PIECES = 4
"""A device, where rows suffice: so that reading, computing and writing go on side by side."""

LEAST_ROWS = 4096
"""Of a piece, where memory holds them: kernels take fewer less efficiently."""

SPARE_PIECES = 3
"""In memory beside one a device: one that is read, one that waits, and one that is written."""

WAITING_PIECES = 16
"""For a GPU, instead of the one: it computes faster than files are read, and reading does not wait until it begins."""

MAX_MEASURED_ROWS = 8192
"""Rows that are read first, to plan for the run; kernels are timed on them."""

_FREE_OPTIONS = ("device", "memory_limit", "weight_memory", "batch_size")
"""Options that may differ when a run resumes: results are the same."""


class _Work(NamedTuple):
    """A piece of rows: its number, counted from 0, and the rows as read."""

    number: int
    rows: CSR | Array


class _Done(NamedTuple):
    """A piece that a device has computed; with its outputs where they are wanted."""

    result: Result
    outputs: Array | None


def stream(
    network: Network,
    rows: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    devices: Devices | None = None,
    resume: bool = False,
    memory_limit: int | str | None = None,
    prepare: Callable[[Any], Any] | None = None,
    classes: bool = False,
    statistics: bool = True,
    progress: ProgressOption = None,
    **options: Unpack[StreamOptions],
) -> Result:
    """Run a network on the rows of a file that need not fit into memory, and write outputs as they come.

    Where a run ends early, what it has done stays in the folder `OUTPUT.pieces`, and `resume` goes on from there: what
    comes out is the same, bit for bit, as of a run that was not cut.

    Parameters
    ----------
    network : Network
        The layers.
    rows : str or path-like
        A file of rows of the network's width: `.npy`; HDF5 with a matrix or CSR as `inputs`, such as a dataset;
        Parquet; or the official text, `.tsv` or `.tsv.gz`, in the order of the images.
    output : str or path-like, optional
        `.tsv` for the categories in the official form; `.npy`, or `.h5` as dataset `outputs`, for the outputs of all
        rows; nothing is written unless given.
    devices : str or iterable of str, optional
        Several, as `Sessions` takes them; unless given, the one that the options say.
    resume : bool, default False
        Whether to resume an earlier run, if there was one.
    memory_limit : int or str, optional
        Bytes of the host's memory, or a text such as "2G", for rows read, in flight and to be written. The network
        comes on top. On a CPU, the system's cache keeps nothing of a larger `.npy` or HDF5 file that it did not hold.
    prepare : callable, optional
        What is done to rows first, such as scaling. A run can be resumed only if this is a method of a dataclass, such
        as `Scaling.apply`, or a dataclass that can be called: it is known by its fields, functions by nothing.
    classes : bool, default False
        Write the number of the largest output of each row, counted from 0, instead of the outputs.
    statistics : bool, default True
        Whether layers are counted and timed.
    progress : callable or bool, optional
        As `Session.run` takes it.
    **options : Options
        As `Session` takes them, but the memory limit.

    Returns
    -------
    Result
        Without outputs: these are in the file. Seconds of reading are those in which devices waited for rows. Without
        statistics where part of it was done by an earlier run.

    Raises
    ------
    UsageError
        The name of a file says of no kind, or the output is the file of rows; there are pieces of an earlier run, and
        `resume` is not set, or of another network, options, rows or preparation, or it is not known of which; or an
        option is wrong.
    InputError
        The file of rows changes while it is read.
    ResourceError
        The output cannot be written, or another run writes it; memory does not hold the rows of a piece; or the disk is
        full.
    SparseNNError
        As reading, and `Session.run`, do.
    """
    if output is None and resume:
        raise UsageError("without an output there is nothing to resume; name it, or leave out resume")
    target = None if output is None else target_of(output, classes, rows)
    key = prepare_key(prepare, resume)
    limit = bytes_of(memory_limit, "the memory limit") if isinstance(memory_limit, str) else memory_limit
    asked = resolve_precision(read_options(options), network.needs_float64)
    names = (asked.device,) if devices is None else device_names(devices)
    backend, _ = choose_kernels(network, replace(asked, device=names[0]))
    with ExitStack() as files:
        source = files.enter_context(opened_rows(rows, network.inputs, is_read_once(rows, backend, limit)))
        matrix = target is not None and target.suffix.lower() != ".tsv"
        size = rows_a_piece(source, network, backend, len(names), limit, matrix)
        pieces = None
        if target is not None:
            stamp = file_stamp(Path(rows))
            # what results may depend on, besides network and rows
            free = (getattr(asked, field.name) for field in fields(asked) if field.name not in _FREE_OPTIONS)
            known = [backend.device, *free], network.nodes, stamp, target.suffix.lower(), classes, key
            pieces = files.enter_context(opened_pieces(target, lambda: content_digest(*known), size, resume))
            size = pieces.size
        reading = _Reading(source, Path(rows), size, {} if pieces is None else pieces.done, _waiting(backend), files)
        session = session_on(network, devices=devices, **options)  # equal outputs are looked for while rows are read
        sessions = _within(session if isinstance(session, Sessions) else Sessions.of([session]), limit)
        files.callback(sessions.close)
        report = files.enter_context(shown_progress(progress))
        run = _Run(sessions, reading, pieces, prepare, classes, statistics, report)
        result = run.result(files)
        if pieces is not None:
            pieces.finish()
        return result


def _within(sessions: Sessions, limit: int | None) -> Sessions:
    """Return sessions whose rows in flight take no more than half of a limit of the host's memory."""
    if limit is None or not sessions.sessions[0].backend.in_host_memory:
        return sessions
    half = max(1, limit // 2)
    return Sessions.of([session.on(session.options.device, memory_limit=half) for session in sessions.sessions])


def _waiting(backend: Backend) -> int:
    return 1 if backend.in_host_memory else WAITING_PIECES


def is_read_once(rows: str | os.PathLike[str], backend: Backend, limit: int | None) -> bool:
    """Whether the system is to let go of what has been read of a file: of one that exceeds what memory may take of it.

    On a CPU: it computes for longer than the disk takes to read, so that the next run is no faster for what is held.

    rows : the file; opening it says what is wrong with it.
    backend : of the first device.
    limit : bytes; None for half of what is free.
    """
    if not backend.in_host_memory:
        return False
    free = free_memory()
    most = limit or (free // 2 if free else math.inf)
    try:
        return Path(rows).stat().st_size > most
    except (OSError, ValueError):
        return False


def rows_a_piece(
    source: RowSource, network: Network, backend: Backend, devices: int, limit: int | None, outputs: bool
) -> int:
    """Return how many rows a piece has: as many as memory holds of all pieces that are in it at a time."""
    free, held = free_memory(), devices + SPARE_PIECES
    room = limit or min(USUAL_MEMORY, USUAL_MEMORY if free is None else free // 4)
    row = 2 * source.row_bytes + (8 * network.outputs if outputs else 0) + 64
    computing = held * row if backend.in_host_memory else 0  # takes half of the memory
    needed = held * row + (_waiting(backend) - 1) * source.row_bytes + computing
    fitting = min(int(room / needed), MOST_PIECE_ROWS)
    if fitting < 1:
        raise ResourceError(
            f"a memory limit of {room:,} bytes does not hold {held} rows at a time, which take {int(needed):,} with "
            "what they become"
        )
    if not source.rows:
        return fitting
    most = min(fitting, max(LEAST_ROWS, parts_of(source.rows, LEAST_PIECES * devices)))
    return parts_of(source.rows, parts_of(source.rows, most))  # all alike: a smaller one would be planned anew


class _Reading:
    """Rows of a file that a thread reads ahead, in pieces.

    source, path : the rows, and where they are.
    size : rows of each piece but the last.
    earlier : pieces that an earlier run has done, by number.
    waiting : how many pieces may wait.
    files : ends the thread.

    Attributes
    ----------
    first : the first rows, by which it is planned how all run; None where there are none, or once that is done.
    work : pieces that are to be done.
    """

    def __init__(
        self, source: RowSource, path: Path, size: int, earlier: Mapping[int, Piece], waiting: int, files: ExitStack
    ) -> None:
        self.rows, self.path, self.size, self.earlier = source.rows, path, size, dict(earlier)
        self._state = file_state(path)
        self.first = next(source.pieces(min(size, MAX_MEASURED_ROWS)), None)
        self.work = files.enter_context(ahead(self._pieces(source), waiting))

    def _pieces(self, source: RowSource) -> Iterator[_Work]:
        begin = 0
        while begin in self.earlier:
            begin += 1
        for number, rows in enumerate(source.pieces(self.size, begin * self.size), start=begin):
            check_unchanged(self.path, self._state)
            if number not in self.earlier:
                yield _Work(number, rows)


@dataclass(frozen=True, eq=False)
class _Run:
    """One run over a file."""

    _sessions: Sessions
    _reading: _Reading
    _pieces: Pieces | None
    _prepare: Callable[[Any], Any] | None
    _classes: bool
    _statistics: bool
    _progress: Progress

    def result(self, files: ExitStack) -> Result:
        """Run all that is not done."""
        start, reading = time.perf_counter(), self._reading
        plan, planned = self._planned(files)
        results: dict[int, Result] = {}
        spent = Seconds()
        done, task = sum(piece.rows for piece in reading.earlier.values()), f"run {reading.path.name}"
        with self._sessions.shared(self._worker, reading.work, 1) as finished:
            for piece, (result, outputs) in finished:
                if self._pieces is not None:
                    categories = (piece.number * reading.size + result.categories).tolist()
                    self._pieces.keep(piece.number, Piece(result.inputs, categories), outputs)
                results[piece.number], spent, done = result, spent + result.seconds, done + result.inputs
                self._progress(task, done, reading.rows or done + 1)
        self._progress(task, done, done)
        wall = time.perf_counter() - start - planned.total
        spent = wall_seconds(spent, len(self._sessions.devices), wall, "read")
        return self._concatenated(results, plan, planned + spent, done)

    def _planned(self, files: ExitStack) -> tuple[Plan, Seconds]:
        """Have all devices know how rows run, by the first of them; make room for the outputs."""
        first, *others = self._sessions.sessions
        begun, count = self._reading.first, self._reading.rows
        self._reading.first = None
        with faults_reported(self._reading.path, 0):
            rows = np.zeros((0, first.network.inputs), np.float32) if begun is None else self._prepared(begun)
            _, plan, seconds = first._begin_shared(rows, count)
        for session in others:
            session._learn(first)
        if self._pieces is not None and not first.backend.in_host_memory:
            self._pieces.require_kernels([kernel.name for kernel in plan.kernels])
        if self._pieces is not None and self._pieces.takes_matrix:
            if count is None:
                raise UsageError(
                    f"{self._reading.path}: its number of rows is known only at its end; write .tsv instead"
                )
            width = () if self._classes else (first.network.outputs,)
            kind = np.int64 if self._classes else np.float64 if first.backend.doubles else np.float32
            self._pieces.prepare((count, *width), kind, files)
        return plan, seconds

    def _prepared(self, rows: CSR | Array) -> Inputs:
        return rows if self._prepare is None else self._prepare(checked(rows))

    def _worker(self, session: Session) -> Callable[[_Work, Stopping], _Done]:
        wanted = self._pieces is not None and self._pieces.takes_matrix

        def run(piece: _Work, stopping: Stopping) -> _Done:
            with faults_reported(self._reading.path, piece.number * self._reading.size):
                rows, _, _ = session._begin_shared(self._prepared(piece.rows), self._reading.rows)
                count = rows.count
                result = session._run_rows(rows, 0, count, count, self._statistics, stopping.check)
            outputs = result.dense if wanted else None
            if outputs is not None and self._classes:
                outputs = outputs.argmax(axis=1)
            return _Done(replace(result, batches=()), outputs)

        return run

    def _concatenated(self, results: dict[int, Result], plan: Plan, seconds: Seconds, count: int) -> Result:
        ordered = [results[number] for number in sorted(results)]
        plan = with_inputs(ordered[0].plan if ordered else plan, count, None)
        result = concatenate_results(ordered, plan, seconds)
        notes = [*result.notes]
        if len(self._sessions.devices) > 1:
            notes.append(f"Samples were shared by {', '.join(self._sessions.devices)}.")
        if not self._reading.earlier:
            return replace(result, notes=tuple(notes))
        assert self._pieces is not None
        earlier = sum(piece.rows for piece in self._reading.earlier.values())
        notes.append(f"{earlier:,} of {count:,} rows were done by an earlier run; times and counts refer to the rest.")
        return replace(result, inputs=count, categories=self._pieces.categories, statistics=(), notes=tuple(notes))
