"""Rows cut for tasks: a task gets the rows themselves, a file's name and the numbers of the rows, or a Dask chunk."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from sparsenn.distributed.cluster.library import dask_module
from sparsenn.distributed.digests import check_unchanged, content_digest, file_stamp, file_state
from sparsenn.errors import ShapeError, UsageError, WorkerError
from sparsenn.formats import CSR, Array
from sparsenn.io.tables.row_source import checked, faults_reported, opened_rows
from sparsenn.printable import kind_of
from sparsenn.runtime.workers import chunks


@dataclass(frozen=True)
class FileRows:
    """Rows `first` to `last` of a file, which a worker reads.

    path : absolute.
    first, last : numbers of rows.
    """

    path: str
    width: int
    first: int
    last: int

    def read(self) -> CSR | Array:
        """Return the rows."""
        if not Path(self.path).exists():
            raise WorkerError(f"{self.path}: no such file there; copy it there, or put it on a shared disk")
        with opened_rows(self.path, self.width) as source:
            if source.rows is None or source.rows < self.last:
                raise WorkerError(f"{self.path}: has {source.rows} rows there, not {self.last:,} or more; copy it")
            with faults_reported(self.path, self.first):
                return checked(next(source.pieces(self.last - self.first, self.first)))


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of inputs, wherever they are.

    shape : of all rows; how many a Dask array has may be unknown, NaN.
    digest : returns a digest of the rows, or of the file or Dask array that they come from.
    part : returns what a task is given of rows `first` to `last`.
    chunked : a Dask array of two dimensions, of which each chunk holds whole rows; None for other rows.
    check_unchanged : refuses a file that others have changed since.
    """

    shape: tuple[Any, ...]
    is_sparse: bool
    digest: Callable[[], str]
    part: Callable[[int, int], Any]
    chunked: Any = None
    check_unchanged: Callable[[], None] = lambda: None

    def cut(self, size: int) -> Rows:
        """Return the same rows; chunks of a Dask array have `size` rows then, but for the last one."""
        if self.chunked is None:
            return self
        if math.isnan(self.shape[0]):
            raise UsageError("how long the Dask array's chunks are is not known; call its compute_chunk_sizes() first")
        *others, last = self.chunked.chunks[0] or (0,)
        fits = last <= size and all(rows == size for rows in others)
        return self if fits else _chunked(self.chunked.rechunk({0: size}))

    def edges(self, size: int) -> list[tuple[int, int]]:
        """Return (first, last) of each part, of at most `size` rows."""
        if self.chunked is None:
            return chunks(self.shape[0], size)
        ends = np.cumsum([0, *self.chunked.chunks[0]]).tolist()
        return [(first, last) for first, last in pairwise(ends) if first < last]

    def as_dask(self, size: int) -> Any:
        """Return a Dask array whose blocks are what tasks are given, of at most `size` rows."""
        if self.chunked is not None:
            return self.chunked
        edges = self.edges(size) or [(0, 0)]
        name = f"sparsenn-rows-{uuid4().hex}"
        graph = {(name, number, 0): self.part(*edge) for number, edge in enumerate(edges)}
        lengths, width = tuple(last - first for first, last in edges), prod(self.shape[1:])
        return dask_module("dask.array").Array(graph, name, (lengths, (width,)), meta=np.zeros((0, 0), np.float32))


def rows_of(given: Any, width: int) -> Rows:
    """Return rows that can be cut for tasks.

    given : a NumPy array, a SciPy sparse matrix, `CSR`, a Dask array, or the path of a file that
        `sparsenn.io.tables.row_source` reads.
    width : numbers of a row that the network takes.
    """
    rows = _rows(given, width)
    if len(rows.shape) < 2 or prod(rows.shape[1:]) != width:
        raise ShapeError(f"the rows have shape {rows.shape}; the network takes {width:,} numbers a row")
    if rows.chunked is None:
        return rows
    whole = given.rechunk(dict.fromkeys(range(1, given.ndim), -1))
    return _chunked(whole if given.ndim == 2 else whole.reshape(given.shape[0], width))


def _rows(given: Any, width: int) -> Rows:
    dask_array = sys.modules.get("dask.array")  # which takes long to import, and has been where rows are of it
    if dask_array is not None and isinstance(given, dask_array.Array):
        return _chunked(given)
    if hasattr(given, "tocsr"):
        given = CSR.from_scipy(given, np.float64 if given.dtype == np.float64 else np.float32)
    if isinstance(given, CSR):
        return Rows(tuple(map(int, given.shape)), True, lambda: content_digest(given), given.slice_groups)
    if isinstance(given, np.ndarray):
        return Rows(given.shape, False, lambda: content_digest(given), lambda first, last: given[first:last])
    if not isinstance(given, str | os.PathLike):
        raise UsageError(
            f"the rows are {kind_of(given)}; give a NumPy array, a SciPy matrix, CSR, a Dask array or a path"
        )
    path = Path(os.path.abspath(given))  # noqa: PTH100  not resolved: workers may have other links
    with opened_rows(path, width) as source:
        if source.rows is None:
            raise UsageError(f"{path}: can only be read from its beginning; convert it (challenge convert) first")
        state = file_state(path)
        return Rows(
            (source.rows, width),
            source.sparse,
            lambda: file_stamp(path),
            lambda first, last: FileRows(os.fspath(path), width, first, last),
            check_unchanged=lambda: check_unchanged(path, state),
        )


def _chunked(array: Any) -> Rows:
    blocks: dict[int, Any] = {}

    def part(first: int, last: int) -> Any:
        if not blocks:
            firsts = np.cumsum([0, *array.chunks[0]]).tolist()
            blocks.update(zip(firsts, array.to_delayed()[:, 0], strict=False))
        return blocks[first]

    is_sparse = not isinstance(array._meta, np.ndarray)
    # Dask derives an array's name from the computation
    return Rows(tuple(array.shape), is_sparse, lambda: content_digest(array.name, array.chunks), part, array)
