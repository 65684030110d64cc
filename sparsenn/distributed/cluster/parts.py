"""Rows in parts: what a task is given of them, which is the rows themselves or a file's name and which rows to read."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from sparsenn.distributed.cluster.digests import content_digest, file_stamp
from sparsenn.errors import FileFormatError, InputError, ShapeError, UsageError, WorkerError
from sparsenn.formats import CSR, Array, index_dtype
from sparsenn.formats.arrays import frozen
from sparsenn.io.hdf5_source import opened
from sparsenn.workers import chunks

__all__ = ["FilePart", "FileRows", "HeldRows", "Rows", "rows_of"]

_SUFFIXES = (".npy", ".h5", ".hdf5")
_FLOATS = ("<f4", "<f8", "|u1")
_OFFSETS = "inputs/indptr"


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

    def submitter(self, client: Any, compute: Callable[..., Any], first: int, last: int) -> Callable[..., Any]:
        """Return what gives rows `first` to `last` to a cluster, to be computed, and returns the future."""
        return lambda **where: client.submit(compute, self.part(first, last), pure=False, **where)


@dataclass(frozen=True, eq=False)
class HeldRows(Rows):
    """Rows in memory: an array, CSR, or SciPy's CSR."""

    rows: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """As of the array."""
        return tuple(map(int, self.rows.shape))

    @property
    def sparse(self) -> bool:
        """Whether the rows are sparse."""
        return not isinstance(self.rows, np.ndarray)

    @property
    def digest(self) -> str:
        """Of shape and content."""
        rows = self.rows
        if isinstance(rows, CSR | np.ndarray):
            return content_digest(rows)
        return content_digest(rows.shape, rows.indptr, rows.indices, rows.data)

    def part(self, first: int, last: int) -> Any:
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
            raise WorkerError(f"{self.path}: no such file there; put it there, or on a disk that all share")
        rows = FileRows(Path(self.path), self.width)
        if rows.shape[0] < self.last:
            raise WorkerError(f"{self.path}: has {rows.shape[0]:,} rows there, not {self.last:,} or more; copy it")
        return rows.read(self.first, self.last)


@dataclass(frozen=True, eq=False)
class FileRows(Rows):
    """Rows of a file that is read in parts: `.npy`, or HDF5 with the rows in `inputs`, as a matrix or as CSR.

    Parameters
    ----------
    path : absolute.
    width : numbers of a row.
    """

    path: Path
    width: int

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """As the file declares."""
        if self._is_npy:
            return tuple(self._mapped().shape)
        with opened(self.path) as source:
            if self.sparse:
                return source.length(_OFFSETS) - 1, self.width
            return source.shape("inputs")

    @cached_property
    def sparse(self) -> bool:
        """Whether they are stored as CSR."""
        if self._is_npy:
            return False
        with opened(self.path) as source:
            return source.has(_OFFSETS)

    @property
    def digest(self) -> str:
        """Of the file's size, time of change and ends."""
        return file_stamp(self.path)

    def part(self, first: int, last: int) -> FilePart:
        """Return what reads the rows."""
        return FilePart(os.fspath(self.path), self.width, first, last)

    def read(self, first: int, last: int) -> CSR | Array:
        """Read rows.

        Raises
        ------
        InputError, ResourceError
            The file does not hold them, or cannot be read.
        """
        if self._is_npy:
            return np.array(self._mapped()[first:last])
        with opened(self.path) as source:
            if not self.sparse:
                return source.part("inputs", first, last, *_FLOATS)
            offsets = source.part(_OFFSETS, first, last + 1, "<i8")
            begin, end = int(offsets[0]), int(offsets[-1])
            one = source.length("inputs/values") == 1
            arrays = (
                offsets - begin,
                source.part("inputs/indices", begin, end, index_dtype(self.width)),
                source.part("inputs/values", *((0, 1) if one else (begin, end)), "<f4", "<f8"),
            )
        for array in arrays:
            frozen(array)
        return CSR((last - first, self.width), *arrays)

    @property
    def _is_npy(self) -> bool:
        return self.path.suffix.lower() == ".npy"

    def _mapped(self) -> Array:
        try:
            return open_memmap(self.path, mode="r")
        except (OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise FileFormatError(self.path, f"not NumPy's, or damaged ({reason})") from error


def rows_of(given: Any, width: int) -> Rows:
    """Return rows in parts.

    Parameters
    ----------
    given : a NumPy array, a SciPy sparse matrix, `CSR`, or the path of a file, `.npy` or HDF5.
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
        return HeldRows(given.tocsr())
    if not isinstance(given, str | os.PathLike):
        raise UsageError(
            f"the rows are a {type(given).__name__}; give a NumPy array, a SciPy matrix, CSR, a Dask array or a path"
        )
    path = Path(os.path.abspath(given))  # noqa: PTH100  not resolved: workers may have other links
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"{path}: rows are read in parts from {', '.join(_SUFFIXES)}; read it, and give an array")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    return FileRows(path, width)
