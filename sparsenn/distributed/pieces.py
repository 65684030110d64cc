"""Pieces of an output that are done, in a folder beside it: the next run resumes where one was cut short.

::

    OUTPUT.pieces/run.jsonl     the run's key and the rows of a piece; then a line for each piece that is done
    OUTPUT.pieces/output.npy    the output, as far as it is there; OUTPUT itself in the end

The run that writes locks `run.jsonl`. A piece's line is written when its outputs are on disk. Whatever ends the run, a
kill or a power cut included, leaves pieces that are whole and the rest undone.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np

from sparsenn.errors import ResourceError, UsageError
from sparsenn.formats import Array
from sparsenn.io.challenge.tsv import write_categories
from sparsenn.io.hdf5.writing import created
from sparsenn.runtime.storage import check_replaceable, link_target, same_file
from sparsenn.runtime.storage.atomic import explained

PIECE_SUFFIXES = (".tsv", ".npy", ".h5", ".hdf5")
"""What the name of an output may end in: the categories in text, or the outputs as a matrix."""

_LOG = "run.jsonl"  # the first file that is made, and the last that is removed

_OWN_NAMES = re.compile(r"run\.jsonl|output\.(begun|npy|h5|hdf5)")
"""Names of all files that runs write."""

_NO_LINKS: int = getattr(os, "O_NOFOLLOW", 0)

_DATASET = "outputs"  # name of the matrix in HDF5


@dataclass(frozen=True)
class Piece:
    """Rows that are done.

    categories : those of them, counted from 0 from the first row of the run on, that end with a non-zero.
    """

    rows: int
    categories: list[int]


class Pieces:
    """What is done of an output, and where more of it goes. Made by `opened_pieces`.

    Attributes
    ----------
    size : rows of each piece but the last.
    done : pieces by number, counted from 0.
    """

    def __init__(self, output: Path, folder: Path, log: IO[bytes], size: int, key: Callable[[], str]) -> None:
        self._output, self._folder, self._log = output, folder, log
        self.size, self._key = size, key
        self.done: dict[int, Piece] = {}
        self._is_described = False
        self._kernels: list[str] | None = None
        self._matrix: IO[bytes] | None = None
        self._offset, self._dtype = 0, np.dtype(np.float32)

    def resume(self, is_wanted: bool) -> None:
        """Take what the log says of an earlier run, and refuse it unless it is wanted, and of the same key."""
        lines = self._log.read().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]  # the last one may have been cut
        self._log.truncate(sum(map(len, whole)))
        self._log.seek(0, os.SEEK_END)
        if not whole:
            return
        try:
            described, *pieces = map(json.loads, whole)
            earlier, self._kernels = described["key"], described["kernels"]
            size, done = int(described["size"]), {number: Piece(rows, found) for number, rows, found in pieces}
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{self._folder / _LOG} is damaged; remove its folder") from error
        if not is_wanted:
            raise UsageError(
                f"{self._folder} holds the work of an earlier run: resume it (--resume), or remove that folder"
            )
        if earlier != self._key():
            raise UsageError(
                f"{self._folder} belongs to a run of another network, other options or other samples, or with "
                f"another scaling; remove it, or choose another --output"
            )
        self.size = size
        if self.takes_matrix and not _matrix_path(self._folder, self._output).exists():
            self._log.truncate(0)  # a run whose end was cut, when its output had gone to its place
            self._log.seek(0)
        else:
            self.done, self._is_described = done, True

    @property
    def takes_matrix(self) -> bool:
        """Whether the output is the matrix of all outputs."""
        return self._output.suffix.lower() != ".tsv"

    def require_kernels(self, kernels: Sequence[str]) -> None:
        """Note the kernels of a run's layers; refuse others than those of the earlier run, whose sums may differ."""
        if self._is_described and self._kernels not in (None, list(kernels)):
            raise UsageError(
                f"{self._folder} belongs to a run with other kernels, which round differently; remove it, "
                "or choose another --output"
            )
        self._kernels = list(kernels)

    def prepare(self, shape: tuple[int, ...], dtype: Any, files: ExitStack) -> None:
        """Make room on disk for the matrix of all outputs, unless an earlier run has done so."""
        path, self._dtype = _matrix_path(self._folder, self._output), np.dtype(dtype)
        with explained(self._output):
            self._describe()
            if not path.exists():
                begun = path.with_suffix(".begun")
                begun.unlink(missing_ok=True)
                _make(begun, path.suffix, shape, self._dtype)
                begun.replace(path)
            self._offset = _place(path, path.suffix)
            self._matrix = files.enter_context(_opened(path))

    def keep(self, number: int, piece: Piece, outputs: Array | None) -> None:
        """Write a piece to disk, where it stays once this has returned."""
        with explained(self._output):
            self._describe()
            if outputs is not None and self._matrix is not None:
                data = np.ascontiguousarray(outputs, self._dtype)
                item = data.nbytes // max(1, len(data))
                self._matrix.seek(self._offset + number * self.size * item)
                self._matrix.write(data.reshape(-1).view(np.uint8).data)
                _flush(self._matrix)
            self._note([number, piece.rows, piece.categories])
        self.done[number] = piece

    def _describe(self) -> None:
        if not self._is_described:
            self._note({"key": self._key(), "size": self.size, "kernels": self._kernels})
            self._is_described = True

    def _note(self, record: Any) -> None:
        self._log.write(json.dumps(record).encode() + b"\n")
        _flush(self._log)

    @property
    def categories(self) -> Array:
        """Categories of all pieces that are done: sorted int64, counted from 0."""
        found = (self.done[number].categories for number in sorted(self.done))
        return np.fromiter(chain.from_iterable(found), np.int64)

    def finish(self) -> None:
        """Have the output take its place, and remove the folder."""
        with explained(self._output):
            if self._matrix is None:
                write_categories(self._output, self.categories)
            else:
                self._matrix.close()
                _matrix_path(self._folder, self._output).replace(link_target(self._output))
        _remove(self._folder)


def target_of(output: str | os.PathLike[str], classes: bool, *read: Any) -> Path:
    """Return the file that an output goes to, once it is known that it can be written.

    classes : whether it is the class of each row, which only `.npy` holds.
    read : what the run reads; paths among it are those of files that must stay.
    """
    path = Path(output)
    if path.suffix.lower() not in PIECE_SUFFIXES or (classes and path.suffix.lower() != ".npy"):
        known = ".npy" if classes else ", ".join(PIECE_SUFFIXES)
        raise UsageError(f"{path}: rows are streamed to {known}")
    for source in read:
        if isinstance(source, str | os.PathLike) and same_file(path, source):
            raise UsageError(f"{path} would overwrite {os.fspath(source)}, which is read; choose another output")
    check_replaceable(path)
    return path


@contextmanager
def opened_pieces(output: Path, key: Callable[[], str], size: int, resume: bool) -> Iterator[Pieces]:
    """Open the folder of an output's pieces for this run alone; where none is done in the end, it is removed.

    output : the file that is to be written; its name ends in one of `PIECE_SUFFIXES`.
    key : returns what the run is known by: a digest of the network, the options and the rows. Where there is no earlier
        run it is not called before there is work to be noted: rows are read meanwhile.
    size : rows a piece; where an earlier run is resumed, it is that run's.
    resume : whether to resume an earlier run, if there is one.
    """
    folder = output.with_name(f"{output.name}.pieces")
    with ExitStack() as files:
        with explained(output):
            folder.mkdir(mode=0o700, exist_ok=True)
            _check_own(folder)
            log = files.enter_context(_opened(folder / _LOG, os.O_CREAT))
            _lock(log, output)
            pieces = Pieces(output, folder, log, size, key)
            pieces.resume(resume)
        try:
            yield pieces
        finally:
            if not pieces.done:
                _remove(folder)


def _check_own(folder: Path) -> None:
    """Refuse a folder that is not one of pieces: what it holds would be overwritten, or links in it followed."""
    if folder.is_symlink():
        raise UsageError(f"{folder} is a link: move it away, or choose another output")
    with os.scandir(folder) as entries:
        found = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    foreign = [name for name, is_file in found.items() if not (is_file and _OWN_NAMES.fullmatch(name))]
    if foreign or (found and _LOG not in found):
        name = (foreign or sorted(found))[0]
        raise UsageError(f"{folder} holds {name}, which no run wrote: move it away, or choose another output")


def _remove(folder: Path) -> None:
    with suppress(OSError):
        for path in sorted(folder.iterdir(), key=lambda path: path.name == _LOG):
            if _OWN_NAMES.fullmatch(path.name):
                path.unlink()
        folder.rmdir()


def _opened(path: Path, flags: int = 0) -> IO[bytes]:
    """Open a file for reading and writing as it is; a link is not followed."""
    return os.fdopen(os.open(path, os.O_RDWR | _NO_LINKS | flags, 0o600), "r+b")


def _lock(file: IO[bytes], output: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ResourceError(
            f"{output}: another run is writing it; wait until it ends, or choose another file"
        ) from error
    except OSError:  # a file system without locks
        return


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _matrix_path(folder: Path, output: Path) -> Path:
    return folder / f"output{output.suffix.lower()}"


def _make(path: Path, suffix: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Make a file that holds an array, of which nothing is written yet."""
    path.touch(exist_ok=False)
    if suffix == ".npy":
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    else:
        with created(path) as target:
            how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            how.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            how.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            how.set_obj_track_times(False)  # equal outputs are equal files, whenever they are written
            kind, space = h5py.h5t.py_create(dtype), h5py.h5s.create_simple(shape)
            h5py.h5d.create(target.id, _DATASET.encode(), kind, space, how)
    with path.open("r+b") as file:
        file.truncate(max(path.stat().st_size, _place(path, suffix) + math.prod(shape) * dtype.itemsize))


def _place(path: Path, suffix: str) -> int:
    """Return where in a file its array begins."""
    if suffix == ".npy":
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
            return file.tell()
    with h5py.File(path, "r", locking=False) as file:
        return int(file[_DATASET].id.get_offset() or 0)  # an array of no rows is nowhere
