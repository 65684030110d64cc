"""Incoming rows: sparse ones checked and converted, and conversions between dense and sparse, on all threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsenn.backends.chains import SparseRows
from sparsenn.errors import MatrixError, UnsortedError
from sparsenn.formats import CSR, Array, from_dense, index_dtype
from sparsenn.formats.arrays import as_floats, check_shape, collapse_iso, read_only
from sparsenn.runtime.jit import compiled, example
from sparsenn.runtime.workers import NUMBERS, TASKS, chunks, map_threads, thread_count

GOOD, OFFSETS, RANGE, ORDER = range(4)
"""What is wrong with a row: nothing; its offsets; an index; the order of its indices, or one is there twice."""

_INDEX_TYPES = (np.uint16, np.int32, np.int64)
_VALUE_TYPES = (np.float32, np.float64)  # types that the compiled functions take; others are converted by NumPy first


@compiled
def _check_indices(
    indptr: Array, indices: Array, width: int, converted: Array, start: int, stop: int
) -> tuple[int, int, int]:
    """Check rows, convert indices unless `converted` is empty; return what is wrong first, or -1s: (code, row, entry).

    `indptr` is int64, of any numbers. Indices that are out of order are a fault only where nothing else is wrong.
    """
    keeps = converted.size == 0
    unsorted_row: Any = np.int64(-1)
    unsorted_entry: Any = np.int64(-1)
    for row in range(start, stop):
        first, last = indptr[row], indptr[row + 1]
        if first < 0 or first > last or last > indices.size:
            return OFFSETS, row, -1
        previous = np.int64(-1)
        for entry in range(first, last):
            index = np.int64(indices[entry])
            if index < 0 or index >= width:
                return RANGE, row, entry
            if index <= previous and unsorted_row < 0:
                unsorted_row, unsorted_entry = row, entry
            previous = index
            if not keeps:
                converted[entry] = index
    return (GOOD if unsorted_row < 0 else ORDER), unsorted_row, unsorted_entry


@compiled
def _check_values(values: Array, converted: Array, start: int, stop: int) -> tuple[int, bool]:
    """Convert values unless `converted` is empty; return (the first that is not finite or -1, whether all equal)."""
    keeps = converted.size == 0
    equal, first = True, np.float32(values[0])
    for entry in range(start, stop):
        value = np.float32(values[entry])
        if not np.isfinite(value):
            return entry, False
        equal = equal and value == first
        if not keeps:
            converted[entry] = value
    return -1, equal


def check_rows(rows: SparseRows) -> CSR:
    """Check every entry of sparse rows in host memory, and return them as float32 CSR, one value if all are equal.

    Indices and values that the offsets do not reach are not checked. Rows whose indices do not increase raise
    UnsortedError if nothing else is wrong, else any fault raises MatrixError.
    """
    height, width = check_shape(rows.shape)
    indptr = _offsets(rows.indptr, height)
    nnz = int(indptr[-1])
    if not 0 <= nnz <= rows.indices.size:
        raise MatrixError(f"indptr must rise from 0 and never fall, up to no more than {rows.indices.size:,} entries")
    indices, unsorted = _checked_indices(indptr, _vector("indices", rows.indices)[:nnz], height, width)
    if rows.values.size != 1 and rows.values.size < nnz:
        raise MatrixError(f"{rows.values.size:,} values for {nnz:,} entries; give one per entry, or one for all (iso)")
    given = _vector("values", rows.values)
    values = _checked_values(given if given.size == 1 else given[:nnz])
    if unsorted is not None:
        raise unsorted
    return CSR((height, width), indptr, indices, values)


def _vector(name: str, array: Array) -> Array:
    if array.ndim != 1 or array.dtype.kind not in ("iu" if name != "values" else "biuf"):
        wanted = "real numbers" if name == "values" else "integers"
        raise MatrixError(f"{name} must be a vector of {wanted}, not {array.dtype} with shape {array.shape}")
    return read_only(np.ascontiguousarray(array))


def _offsets(indptr: Array, height: int) -> Array:
    """Return offsets as int64 that begin with 0; whether they rise is not looked at."""
    offsets = _vector("indptr", indptr)
    if offsets.size != height + 1:
        raise MatrixError(f"indptr has {offsets.size:,} offsets; {height:,} rows take {height + 1:,}")
    offsets = offsets.astype(np.int64, copy=False)
    return read_only(offsets if offsets[0] == 0 else offsets - offsets[0])


def _in_pieces(run: Callable[[tuple[int, int]], Any], total: int, entries: int) -> list[Any]:
    pieces = min(TASKS * thread_count(), max(1, entries // NUMBERS))
    return map_threads(run, chunks(total, max(1, -(-total // pieces))))


def _checked_indices(indptr: Array, indices: Array, height: int, width: int) -> tuple[Array, UnsortedError | None]:
    """Return indices of the type that the width takes, and the error if they are in no order."""
    if indices.dtype not in _INDEX_TYPES:
        indices = read_only(indices.astype(np.int64))  # what is beyond int64 becomes negative
    wanted = index_dtype(width)
    converted = np.empty(0 if indices.dtype == wanted else indices.size, wanted)
    found = _in_pieces(
        lambda piece: _check_indices(indptr, indices, width, converted, *piece), height, indices.size + height
    )
    for fault, row, entry in found:
        if fault == OFFSETS:
            raise MatrixError(
                f"row {row}: indptr goes from {indptr[row]} to {indptr[row + 1]}; it must rise from 0 to "
                f"{indices.size:,} and never fall"
            )
        if fault == RANGE:
            raise MatrixError(f"row {row}, entry {entry}: index {indices[entry]} is outside 0..{width - 1}")
    unsorted = next((_unsorted(row, entry, indices) for fault, row, entry in found if fault == ORDER), None)
    return converted if converted.size else indices.astype(wanted, copy=False), unsorted


def _unsorted(row: int, entry: int, indices: Array) -> UnsortedError:
    index, before = int(indices[entry]), int(indices[entry - 1])
    follows = "occurs twice" if index == before else f"follows {before}; a row's indices must increase"
    return UnsortedError(f"row {row}, entry {entry}: index {index} {follows}")


def _checked_values(values: Array) -> Array:
    if values.dtype not in _VALUE_TYPES:
        values = read_only(as_floats(values, np.float32))
    if not values.size:
        return values.astype(np.float32, copy=False)
    converted = np.empty(0 if values.dtype == np.float32 else values.size, np.float32)
    found = _in_pieces(lambda piece: _check_values(values, converted, *piece), values.size, values.size)
    for entry, _ in found:
        if entry >= 0:
            raise MatrixError(f"entry {entry}: the value {values[entry]} is not finite in float32")
    floats = converted if converted.size else values
    return collapse_iso(floats) if all(equal for _, equal in found) else floats


@compiled
def _count_rows(matrix: Array, counts: Array, start: int, stop: int) -> None:
    zero = matrix.dtype.type(0)
    for row in range(start, stop):
        found = np.int32(0)
        for column in range(matrix.shape[1]):
            found += np.int32(1) if matrix[row, column] != zero else np.int32(0)
        counts[row] = found


@compiled
def _gather_rows(matrix: Array, indptr: Array, indices: Array, values: Array, start: int, stop: int) -> None:
    """Write the non-zeros of rows start to stop to their places.

    Each element is written after those that are not zero; whether the next one comes over it or after it costs no
    branch. This takes room for one more than there are, so it goes to a row's own memory first.
    """
    zero, width = matrix.dtype.type(0), matrix.shape[1]
    columns, numbers = np.empty(width + 1, indices.dtype), np.empty(width + 1, values.dtype)
    for row in range(start, stop):
        found = np.uintp(0)
        for column in range(width):
            value = matrix[row, column]
            columns[found] = column
            numbers[found] = value
            found += np.uintp(1) if value != zero else np.uintp(0)
        first = np.uintp(indptr[row])
        for entry in range(found):
            indices[first + entry] = columns[entry]
            values[first + entry] = numbers[entry]


@compiled
def _spread_rows(indptr: Array, indices: Array, values: Array, matrix: Array, start: int, stop: int) -> None:
    iso = values.size == 1
    for row in range(start, stop):
        matrix[row, :] = np.float32(0)
        for entry in range(indptr[row], indptr[row + 1]):
            matrix[row, np.intp(indices[entry])] = values[0] if iso else values[entry]


def dense_to_sparse(matrix: Array) -> CSR:
    """Return the non-zeros of a matrix, as float32 or the float64 that it is of; equal values are stored once."""
    if matrix.ndim != 2 or matrix.dtype not in _VALUE_TYPES:
        return from_dense(matrix)
    rows, width = matrix.shape
    full, counts = read_only(np.ascontiguousarray(matrix)), np.empty(rows, np.int64)
    _in_pieces(lambda piece: _count_rows(full, counts, *piece), rows, full.size)
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    indices, values = np.empty(int(indptr[-1]), index_dtype(width)), np.empty(int(indptr[-1]), matrix.dtype)
    _in_pieces(lambda piece: _gather_rows(full, indptr, indices, values, *piece), rows, full.size)
    return CSR((rows, width), indptr, indices, collapse_iso(values))


def sparse_to_dense(rows: CSR) -> Array:
    """Return CSR as a float32 matrix."""
    matrix = np.empty(rows.shape, np.float32)
    if matrix.size:
        values = read_only(rows.values.astype(np.float32, copy=False))
        _in_pieces(
            lambda piece: _spread_rows(rows.indptr, rows.indices, values, matrix, *piece), rows.shape[0], matrix.size
        )
    return matrix


@example
def _convert_examples() -> None:
    offsets = np.array([0, 1])
    for width in (1, 1 << 17):
        for kind in _INDEX_TYPES:
            indices = np.zeros(1, kind)
            for floats in _VALUE_TYPES:
                sparse_to_dense(check_rows(SparseRows((1, width), offsets, indices, np.ones(1, floats))))
        dense_to_sparse(np.ones((1, width), np.float32))
    dense_to_sparse(np.ones((1, 1), np.float64))
