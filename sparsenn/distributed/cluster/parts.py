"""Rows in parts: what a task is given of them, which is the rows themselves or a file's name and which rows to read."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from sparsenn.distributed.digests import check_unchanged, content_digest, file_stamp, file_state
from sparsenn.errors import ShapeError, UsageError, WorkerError
from sparsenn.formats import CSR, Array
from sparsenn.io.tables.row_source import checked, faults_reported, opened_rows
from sparsenn.printable import kind_of
from sparsenn.runtime.workers import chunks

__all__ = ["FilePart", "FileRows", "HeldRows", "Rows", "rows_of"]


class Rows(ABC):
    """Rows of inputs, wherever they are."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """How many rows, and the shape of one."""

    @property
    @abstractmethod
    def sparse(self) -> bool:
        """Whether they are sparse."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """What they are known by."""

    @abstractmethod
    def part(self, first: int, last: int) -> Any:
        """Return what a task is given of rows `first` to `last`."""

    def edges(self, most: int) -> list[tuple[int, int]]:
        """Return the parts that they are cut into, of at most so many rows each: (first, last)."""
        return chunks(self.shape[0], most)

    def cut(self, size: int) -> Rows:
        """Return the same rows, such that each part but the last has so many rows."""
        return self

    def check_unchanged(self) -> None:  # noqa: B027  nothing to be done for most
        """Refuse rows that others have changed since they were looked at, as far as that can be detected."""

    def submitter(self, client: Any, compute: Callable[..., Any], first: int, last: int) -> Callable[..., Any]:
        """Return what gives rows `first` to `last` to a cluster, to be computed, and returns the future."""
        return lambda **where: client.submit(compute, self.part(first, last), pure=False, **where)


@dataclass(frozen=True, eq=False)
class HeldRows(Rows):
    """Rows in memory."""

    rows: CSR | Array

    @property
    def shape(self) -> tuple[int, ...]:
        """As of the array."""
        return tuple(map(int, self.rows.shape))

    @property
    def sparse(self) -> bool:
        """Whether the rows are sparse."""
        return isinstance(self.rows, CSR)

    @property
    def digest(self) -> str:
        """Of shape and content."""
        return content_digest(self.rows)

    def part(self, first: int, last: int) -> CSR | Array:
        """Return the rows."""
        return self.rows.slice_groups(first, last) if isinstance(self.rows, CSR) else self.rows[first:last]


@dataclass(frozen=True)
class FilePart:
    """Rows `first` to `last` of a file, which the worker reads.

    Parameters
    ----------
    path : absolute.
    width : numbers of a row.
    """

    path: str
    width: int
    first: int
    last: int

    def read(self) -> CSR | Array:
        """Return the rows.

        Raises
        ------
        WorkerError
            The file is not there, or has fewer rows there.
        InputError, ResourceError
            It does not hold such rows, or cannot be read.
        """
        if not Path(self.path).exists():
            raise WorkerError(f"{self.path}: no such file there; copy it there, or put it on a shared disk")
        with opened_rows(self.path, self.width) as source:
            if source.rows is None or source.rows < self.last:
                raise WorkerError(f"{self.path}: has {source.rows} rows there, not {self.last:,} or more; copy it")
            with faults_reported(self.path, self.first):
                return checked(next(source.pieces(self.last - self.first, self.first)))


@dataclass(frozen=True, eq=False)
class FileRows(Rows):
    """Rows of a file that can be read from any row on.

    Parameters
    ----------
    path : absolute.
    rows : how many.
    width : numbers of one.
    of_csr : whether they are sparse.
    row_bytes : what a row takes in memory, on average.
    state : the file's size and time of change.
    """

    path: Path
    rows: int
    width: int
    of_csr: bool
    row_bytes: float
    state: tuple[int, int]

    @property
    def shape(self) -> tuple[int, ...]:
        """As the file declares."""
        return self.rows, self.width

    @property
    def sparse(self) -> bool:
        """Whether they are stored as CSR."""
        return self.of_csr

    @property
    def digest(self) -> str:
        """Of the file's size, time of change and ends."""
        return file_stamp(self.path)

    def part(self, first: int, last: int) -> FilePart:
        """Return what reads the rows."""
        return FilePart(os.fspath(self.path), self.width, first, last)

    def check_unchanged(self) -> None:
        """Refuse a file that has changed since it was opened, or is gone, on this machine.

        Raises
        ------
        InputError
            It has.
        """
        check_unchanged(self.path, self.state)


def rows_of(given: Any, width: int) -> Rows:
    """Return rows in parts.

    Parameters
    ----------
    given : a NumPy array, a SciPy sparse matrix, `CSR`, or the path of a file that
        `sparsenn.io.tables.row_source` reads.
    width : numbers of a row that the network takes.

    Raises
    ------
    ShapeError
        The rows are of another width.
    InputError, ResourceError
        The file is not there, or does not hold rows.
    UsageError
        They are none of these.
    """
    rows = _rows(given, width)
    shape = rows.shape
    if len(shape) < 2 or prod(shape[1:]) != width:
        raise ShapeError(f"the rows have shape {shape}; the network takes {width:,} numbers a row")
    return rows


def _rows(given: Any, width: int) -> Rows:
    if isinstance(given, CSR | np.ndarray):
        return HeldRows(given)
    if hasattr(given, "tocsr"):
        return HeldRows(CSR.from_scipy(given, np.float64 if given.dtype == np.float64 else np.float32))
    if not isinstance(given, str | os.PathLike):
        raise UsageError(
            f"the rows are {kind_of(given)}; give a NumPy array, a SciPy matrix, CSR, a Dask array or a path"
        )
    path = Path(os.path.abspath(given))  # noqa: PTH100  not resolved: workers may have other links
    with opened_rows(path, width) as source:
        if source.rows is None:
            raise UsageError(f"{path}: can only be read from its beginning; convert it (sparsenn convert) first")
        return FileRows(path, source.rows, width, source.sparse, source.row_bytes, file_state(path))
