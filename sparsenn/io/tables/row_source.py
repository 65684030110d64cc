"""Rows that are read from a file some at a time: what is larger than memory can be run all the same.

==================  =================================================================================================
`.npy`              (rows, inputs), stored row by row
`.h5`, `.hdf5`      dataset `inputs`, (rows, inputs); or the inputs of a dataset of this package, which are sparse
`.parquet`          a column an input
`.tsv`, `.tsv.gz`   the challenge's images, line by line: image, pixel, value, in the order of the images
==================  =================================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sparsenn.errors import FileFormatError, MatrixError, ShapeError, UsageError
from sparsenn.formats import CSR, Array, coo_to_csr, index_dtype
from sparsenn.formats.arrays import frozen
from sparsenn.io.arrays.npy import stored_matrix
from sparsenn.io.arrays.stored import Stored
from sparsenn.io.bounded import Source, check_length, open_plain, reading
from sparsenn.io.challenge.text import Columns, parse_lines
from sparsenn.io.challenge.triples import gather
from sparsenn.io.hdf5.reading import Hdf5Source, opened
from sparsenn.io.tables.columns import Batch, batches
from sparsenn.runtime.memory import check_memory

if TYPE_CHECKING:
    from sparsenn.io.tables.parquet import ParquetTable

__all__ = ["ROW_SUFFIXES", "RowSource", "checked", "faults_reported", "opened_rows"]

ROW_SUFFIXES = (".npy", ".h5", ".hdf5", ".parquet", ".tsv", ".tsv.gz")
"""What the name of a file of rows may end in."""

_ENTRIES = 1 / 10
"""Part of a row's pixels that are taken to be stored in text, of which it is not known before it is read."""


class RowSource(Protocol):
    """Rows in a file."""

    @property
    def rows(self) -> int | None:
        """How many there are; None where that is known at the end only."""
        ...

    @property
    def row_bytes(self) -> float:
        """What a row takes in memory, on average, as far as that is known."""
        ...

    @property
    def sparse(self) -> bool:
        """Whether they are `CSR`, or else arrays."""
        ...

    def pieces(self, size: int, first: int = 0) -> Iterator[CSR | Array]:
        """Yield the rows from one number on, counted from 0, so many at a time; the last time what is left.

        Entries of sparse ones are not looked at: whatever runs them does so, on its device; else see `checked`.
        """
        ...


def opened_rows(path: str | os.PathLike[str], width: int, once: bool = False) -> AbstractContextManager[RowSource]:
    """Open a file of rows; its name says its kind.

    Parameters
    ----------
    path : the file.
    width : numbers in a row.
    once : whether the system is to let go of what has been read, but for what it held before; of NumPy's files and
        HDF5.
    """
    name = Path(path).name.lower()
    kinds: dict[str, Callable[[str | os.PathLike[str], int], AbstractContextManager[RowSource]]] = {
        ".npy": partial(_npy, once=once),
        ".h5": partial(_hdf5, once=once),
        ".hdf5": partial(_hdf5, once=once),
        ".parquet": _parquet,
        ".tsv": _text,
        ".tsv.gz": _text,
    }
    for suffix, kind in kinds.items():
        if name.endswith(suffix):
            return kind(path, width)
    raise UsageError(f"{os.fspath(path)}: rows are streamed from {', '.join(ROW_SUFFIXES)}")


def checked(rows: CSR | Array) -> CSR | Array:
    """Return rows of which sparse ones have had every entry checked."""
    return rows.checked() if isinstance(rows, CSR) else rows


@contextmanager
def faults_reported(path: str | os.PathLike[str], first: int) -> Iterator[None]:
    """Have faults of rows that a block runs name the file that they are from."""
    try:
        yield
    except MatrixError as error:
        raise FileFormatError(path, f"rows from {first + 1:,} on: {error}") from error


def _ranges(rows: int, size: int, first: int) -> Iterator[tuple[int, int]]:
    for start in range(first, rows, size):
        yield start, min(start + size, rows)


class _Dense:
    """A matrix that is stored row by row."""

    sparse = False

    def __init__(self, matrix: Stored) -> None:
        self._matrix = matrix

    @property
    def rows(self) -> int:
        return self._matrix.shape[0]

    @property
    def row_bytes(self) -> float:
        return float(self._matrix.item_bytes)

    def pieces(self, size: int, first: int = 0) -> Iterator[Array]:
        for start, stop in _ranges(self.rows, size, first):
            yield self._matrix.read(start, stop)


class _Sparse:
    """The three arrays of a CSR matrix of some width."""

    sparse = True

    def __init__(self, path: str | os.PathLike[str], width: int, indptr: Stored, indices: Stored, values: Stored):
        self._path, self._width = path, width
        self._indptr, self._indices, self._values = indptr, indices, values
        self._most = 0
        if self._values.shape[0] not in (1, indices.shape[0]) or indptr.shape[0] < 1:
            raise FileFormatError(path, "the arrays of the inputs do not fit together")

    @property
    def rows(self) -> int:
        return self._indptr.shape[0] - 1

    @property
    def row_bytes(self) -> float:
        entry = self._indices.dtype.itemsize + (0 if self._one_value else self._values.dtype.itemsize)
        return 8 + entry * self._indices.shape[0] / max(1, self.rows)

    @property
    def _one_value(self) -> bool:
        return self._values.shape[0] == 1

    def pieces(self, size: int, first: int = 0) -> Iterator[CSR]:
        for start, stop in _ranges(self.rows, size, first):
            yield self._piece(start, stop)

    def _piece(self, start: int, stop: int) -> CSR:
        indptr = self._indptr.read(start, stop + 1)
        begin, end = int(indptr[0]), int(indptr[-1])
        if not 0 <= begin <= end <= self._indices.shape[0]:
            raise FileFormatError(self._path, f"inputs/indptr goes from {begin:,} to {end:,}, beyond the entries")
        if end - begin > self._most:  # asking for the free memory opens files: not for every piece
            check_memory(6 * (end - begin), f"{os.fspath(self._path)}: {stop - start:,} rows")
            self._most = end - begin
        indices = self._indices.read(begin, end)
        values = self._values.read(0, 1) if self._one_value else self._values.read(begin, end)
        indptr -= begin
        return CSR((stop - start, self._width), *map(frozen, (indptr, indices, values)))


class _Text:
    """Lines of image, pixel and value, in the order of the images."""

    rows, sparse = None, True

    def __init__(self, path: str | os.PathLike[str], width: int) -> None:
        self._path, self._width = path, width

    @property
    def row_bytes(self) -> float:
        return 8 + 40 * _ENTRIES * self._width

    def pieces(self, size: int, first: int = 0) -> Iterator[CSR]:
        columns = Columns(("image", "pixel"), (None, self._width), "value")
        held: list[list[Array]] = []
        begin, last, lines = 0, -1, 0
        with Source(self._path) as source:
            for chunk in parse_lines(source, self._path, columns):
                images = chunk[0]
                if images.size and (int(images[0]) < last or bool((np.diff(images) < 0).any())):
                    raise FileFormatError(
                        self._path, "the images are not in order and cannot be streamed; convert the file first"
                    )
                if images.size:
                    last, lines = int(images[-1]), lines + images.size
                    check_length(self._path, "images", last + 1, lines, lines - int((images == last).sum()) + 1)
                held.append(chunk)
                while last >= begin + size:
                    piece, held = self._cut(held, begin, size)
                    if begin >= first:
                        yield piece
                    begin += size
        if last >= begin and begin >= first:
            yield self._cut(held, begin, last + 1 - begin)[0]

    def _cut(self, held: list[list[Array]], begin: int, count: int) -> tuple[CSR, list[list[Array]]]:
        """Return so many rows, of those that begin with this one, and the lines behind them."""
        images, pixels, values = (np.concatenate(parts) for parts in zip(*held, strict=True))
        cut = int(np.searchsorted(images, begin + count))
        rows = gather(iter([[images[:cut] - begin, pixels[:cut], values[:cut]]]), (count, self._width))
        return coo_to_csr(rows), [[images[cut:], pixels[cut:], values[cut:]]]


class _Columns:
    """A table of numbers, one column per input."""

    sparse = False

    def __init__(self, table: ParquetTable) -> None:
        self._table, self.rows = table, table.size

    @property
    def row_bytes(self) -> float:
        return 4.0 * len(self._table.names)

    def pieces(self, size: int, first: int = 0) -> Iterator[Array]:
        blocks = self._table.blocks(range(len(self._table.names)), first=first)
        matrices = (Batch(block.table.matrix(), None, block.position) for block in blocks)
        return (batch.rows for batch in batches(matrices, size))


@contextmanager
def _npy(path: str | os.PathLike[str], width: int, once: bool) -> Iterator[RowSource]:
    with open_plain(path) as file, reading(path):
        matrix = stored_matrix(path, file, once)
        _check_width(path, matrix.shape, width)
        yield _Dense(matrix)


@contextmanager
def _hdf5(path: str | os.PathLike[str], width: int, once: bool) -> Iterator[RowSource]:
    with opened(path) as source, open_plain(path) as file:
        places = _places(source, width)
        if len(places) == 1:
            _check_width(path, places[0][1], width)
        arrays = [Stored(path, file, *place, once) for place in places]
        yield _Dense(*arrays) if len(arrays) == 1 else _Sparse(path, width, *arrays)


def _places(source: Hdf5Source, width: int) -> list[tuple[int, tuple[int, ...], np.dtype[Any]]]:
    """Return where the arrays are in the file, their shapes and types: one of a matrix, or three of CSR."""
    if not source.has("inputs/indptr"):
        return [source.place("inputs", 2, "<f4", "<f8", "|u1")]
    return [
        source.place("inputs/indptr", 1, "<i8"),
        source.place("inputs/indices", 1, index_dtype(width)),
        source.place("inputs/values", 1, "<f4", "<f8"),
    ]


@contextmanager
def _parquet(path: str | os.PathLike[str], width: int) -> Iterator[RowSource]:
    from sparsenn.io.tables.parquet import ParquetTable

    with ParquetTable(path) as table:
        _check_width(path, (table.size, len(table.names)), width)
        yield _Columns(table)


@contextmanager
def _text(path: str | os.PathLike[str], width: int) -> Iterator[RowSource]:
    with open_plain(path):
        yield _Text(path, width)


def _check_width(path: str | os.PathLike[str], shape: tuple[int, ...], width: int) -> None:
    if len(shape) != 2 or shape[1] != width:
        raise ShapeError(
            f"{os.fspath(path)}: holds {' × '.join(map(str, shape))} numbers; needed are rows of {width:,}"
        )
