"""Rows as a Dask array, each block of which is the rows themselves, or a file and the rows' numbers in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from sparsenn.distributed.cluster.library import dask_module
from sparsenn.distributed.cluster.work import FileRows
from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats import CSR
from sparsenn.io.tables.row_source import opened_rows
from sparsenn.printable import kind_of
from sparsenn.runtime.workers import chunks


class Rows(NamedTuple):
    """Rows of inputs, wherever they are.

    lazy : returns them as a Dask array, in blocks of a number of rows; a Dask array stays in its own.
    """

    is_sparse: bool
    lazy: Callable[[int], Any]


def rows_of(rows: Any, width: int) -> Rows:
    """Return rows that can be cut for tasks.

    rows : a NumPy array, a SciPy sparse matrix, `CSR`, a Dask array, or the path of a file that
        `sparsenn.io.tables.row_source` reads.
    width : numbers of a row that the network takes.
    """
    dask_array = sys.modules.get("dask.array")  # which takes long to import, and has been where rows are of it
    if dask_array is not None and isinstance(rows, dask_array.Array):
        _check_shape(rows.shape, width)
        whole = rows.rechunk(dict.fromkeys(range(1, rows.ndim), -1))
        array = whole if rows.ndim == 2 else whole.reshape(rows.shape[0], width)
        return Rows(not isinstance(array._meta, np.ndarray), lambda size: array)
    if hasattr(rows, "tocsr"):
        rows = CSR.from_scipy(rows, np.float64 if rows.dtype == np.float64 else np.float32)
    if isinstance(rows, CSR | np.ndarray):
        _check_shape(rows.shape, width)
        cut = rows.slice_groups if isinstance(rows, CSR) else lambda first, last: rows[first:last]
        return Rows(isinstance(rows, CSR), lambda size: _in_blocks(cut, rows.shape[0], width, size))
    if not isinstance(rows, str | os.PathLike):
        raise UsageError(
            f"the rows are {kind_of(rows)}; give a NumPy array, a SciPy matrix, CSR, a Dask array or a path"
        )
    path = Path(os.path.abspath(rows))  # noqa: PTH100  not resolved: workers may have other links
    with opened_rows(path, width) as source:
        count, is_sparse = source.rows, source.sparse
    if count is None:
        raise UsageError(f"{path}: can only be read from its beginning; convert it (challenge convert) first")

    def named(first: int, last: int) -> FileRows:
        return FileRows(os.fspath(path), width, first, last)

    return Rows(is_sparse, lambda size: _in_blocks(named, count, width, size))


def _in_blocks(cut: Callable[[int, int], Any], rows: int, width: int, size: int) -> Any:
    edges = chunks(rows, size) or [(0, 0)]
    name = f"sparsenn-rows-{uuid4().hex}"
    graph = {(name, number, 0): cut(*edge) for number, edge in enumerate(edges)}
    lengths = tuple(last - first for first, last in edges)
    return dask_module("dask.array").Array(graph, name, (lengths, (width,)), meta=np.zeros((0, 0), np.float32))


def _check_shape(shape: tuple[Any, ...], width: int) -> None:
    if len(shape) < 2 or prod(shape[1:]) != width:
        raise ShapeError(f"the rows have shape {shape}; the network takes {width:,} numbers a row")
