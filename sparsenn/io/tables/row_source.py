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
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

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

ROW_SUFFIXES = (".npy", ".h5", ".hdf5", ".parquet", ".tsv", ".tsv.gz")
"""What the name of a file of rows may end in."""

_ENTRIES = 1 / 10
"""Part of a row's pixels that are taken to be stored in text, of which it is not known before it is read."""


class _Pieces(Protocol):
    def __call__(self, size: int, first: int = 0) -> Iterator[CSR | Array]: ...


class RowSource(NamedTuple):
    """Rows in a file.

    rows : how many there are; None where that is known at the end only.
    row_bytes : of a row in memory, on average, as far as that is known.
    sparse : whether they are `CSR`, or else arrays.
    pieces : yields the rows from the number `first` on, counted from 0, `size` at a time; the last time what is left.
        Entries of sparse ones are not checked: whatever runs them does so, on its device; else see `checked`.
    """

    rows: int | None
    row_bytes: float
    sparse: bool
    pieces: _Pieces


def opened_rows(path: str | os.PathLike[str], width: int, once: bool = False) -> AbstractContextManager[RowSource]:
    """Open a file of rows; its name says its kind.

    once : whether the system is to let go of what has been read, but for what it held before; of NumPy's files and
        HDF5.
    """
    name = Path(path).name.lower()
    if name.endswith(".npy"):
        return _npy(path, width, once)
    if name.endswith((".h5", ".hdf5")):
        return _hdf5(path, width, once)
    if name.endswith(".parquet"):
        return _parquet(path, width)
    if name.endswith((".tsv", ".tsv.gz")):
        return _text(path, width)
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


def _dense(matrix: Stored) -> RowSource:
    """Return the rows of a matrix that is stored row by row."""
    rows = matrix.shape[0]

    def pieces(size: int, first: int = 0) -> Iterator[Array]:
        return (matrix.read(*span) for span in _ranges(rows, size, first))

    return RowSource(rows, float(matrix.item_bytes), False, pieces)


def _sparse(path: str | os.PathLike[str], width: int, indptr: Stored, indices: Stored, values: Stored) -> RowSource:
    """Return the rows of a CSR matrix by its three arrays."""
    rows, entries, one_value = indptr.shape[0] - 1, indices.shape[0], values.shape[0] == 1
    if values.shape[0] not in (1, entries) or rows < 0:
        raise FileFormatError(path, "the arrays of the inputs do not fit together")
    entry_bytes = indices.dtype.itemsize + (0 if one_value else values.dtype.itemsize)

    def pieces(size: int, first: int = 0) -> Iterator[CSR]:
        most = 0
        for start, stop in _ranges(rows, size, first):
            offsets = indptr.read(start, stop + 1)
            begin, end = int(offsets[0]), int(offsets[-1])
            if not 0 <= begin <= end <= entries:
                raise FileFormatError(path, f"inputs/indptr goes from {begin:,} to {end:,}, beyond the entries")
            if end - begin > most:  # asking for the free memory opens files: not for every piece
                most = end - begin
                check_memory(6 * most, f"{os.fspath(path)}: {stop - start:,} rows")
            numbers = values.read(0, 1) if one_value else values.read(begin, end)
            offsets -= begin
            yield CSR((stop - start, width), *map(frozen, (offsets, indices.read(begin, end), numbers)))

    return RowSource(rows, 8 + entry_bytes * entries / max(1, rows), True, pieces)


@contextmanager
def _text(path: str | os.PathLike[str], width: int) -> Iterator[RowSource]:
    """Yield the rows of lines of image, pixel and value, in the order of the images."""

    def cut(held: list[list[Array]], begin: int, count: int) -> tuple[CSR, list[list[Array]]]:
        """Return `count` rows from `begin` on, and the lines behind them."""
        images, pixels, values = (np.concatenate(parts) for parts in zip(*held, strict=True))
        end = int(np.searchsorted(images, begin + count))
        rows = gather(iter([[images[:end] - begin, pixels[:end], values[:end]]]), (count, width))
        return coo_to_csr(rows), [[images[end:], pixels[end:], values[end:]]]

    def pieces(size: int, first: int = 0) -> Iterator[CSR]:
        columns = Columns(("image", "pixel"), (None, width), "value")
        held: list[list[Array]] = []
        begin, last, lines = 0, -1, 0
        with Source(path) as source:
            for chunk in parse_lines(source, path, columns):
                images = chunk[0]
                if images.size and (int(images[0]) < last or bool((np.diff(images) < 0).any())):
                    raise FileFormatError(
                        path, "the images are not in order and cannot be streamed; convert the file first"
                    )
                if images.size:
                    last, lines = int(images[-1]), lines + images.size
                    check_length(path, "images", last + 1, lines, lines - int((images == last).sum()) + 1)
                held.append(chunk)
                while last >= begin + size:
                    piece, held = cut(held, begin, size)
                    if begin >= first:
                        yield piece
                    begin += size
        if last >= begin and begin >= first:
            yield cut(held, begin, last + 1 - begin)[0]

    with open_plain(path):
        yield RowSource(None, 8 + 40 * _ENTRIES * width, True, pieces)


@contextmanager
def _parquet(path: str | os.PathLike[str], width: int) -> Iterator[RowSource]:
    """Yield the rows of a table of numbers, one column per input."""
    from sparsenn.io.tables.parquet import ParquetTable

    with ParquetTable(path) as table:
        columns = len(table.names)
        _check_width(path, (table.size, columns), width)

        def pieces(size: int, first: int = 0) -> Iterator[Array]:
            blocks = table.blocks(range(columns), first=first)
            matrices = (Batch(block.table.matrix(), None, block.position) for block in blocks)
            return (batch.rows for batch in batches(matrices, size))

        yield RowSource(table.size, 4.0 * columns, False, pieces)


@contextmanager
def _npy(path: str | os.PathLike[str], width: int, once: bool) -> Iterator[RowSource]:
    with open_plain(path) as file, reading(path):
        matrix = stored_matrix(path, file, once)
        _check_width(path, matrix.shape, width)
        yield _dense(matrix)


@contextmanager
def _hdf5(path: str | os.PathLike[str], width: int, once: bool) -> Iterator[RowSource]:
    with opened(path) as source, open_plain(path) as file:
        places = _places(source, width)
        if len(places) == 1:
            _check_width(path, places[0][1], width)
        arrays = [Stored(path, file, *place, once) for place in places]
        yield _dense(*arrays) if len(arrays) == 1 else _sparse(path, width, *arrays)


def _places(source: Hdf5Source, width: int) -> list[tuple[int, tuple[int, ...], np.dtype[Any]]]:
    """Return where the arrays are in the file, their shapes and types: one of a matrix, or three of CSR."""
    if not source.has("inputs/indptr"):
        return [source.place("inputs", 2, "<f4", "<f8", "|u1")]
    return [
        source.place("inputs/indptr", 1, "<i8"),
        source.place("inputs/indices", 1, index_dtype(width)),
        source.place("inputs/values", 1, "<f4", "<f8"),
    ]


def _check_width(path: str | os.PathLike[str], shape: tuple[int, ...], width: int) -> None:
    if len(shape) != 2 or shape[1] != width:
        raise ShapeError(
            f"{os.fspath(path)}: holds {' × '.join(map(str, shape))} numbers; needed are rows of {width:,}"
        )
