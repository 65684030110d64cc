"""Conversions between formats, by histogram, exclusive scan and binning, then a sort within each row.

Histogram counts the entries of each group, the scan turns counts into offsets, and binning moves each entry into
its group's range. Binning keeps the order in which entries come, so converting CSR to CSC (and back) needs no
sort; entries that come in no order (COO) are sorted within their row at the end.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from sparsenn.errors import MatrixError
from sparsenn.formats.arrays import Array, as_floats, collapse_iso, frozen, index_dtype, real_numbers
from sparsenn.formats.compressed import CSC, CSR, Compressed
from sparsenn.formats.coo import COO
from sparsenn.runtime.jit import compiled
from sparsenn.runtime.workers import map_threads

_SORTED_ENTRIES = 1 << 18  # entries that a thread sorts at a time

Target = TypeVar("Target", bound=Compressed)


def histogram(keys: Array, groups: int) -> Array:
    """Count how often each group occurs among `keys`; returns (groups,) int64."""
    counts = np.zeros(groups, np.int64)
    _count(keys, counts)
    return counts


@compiled
def _count(keys: Array, counts: Array) -> None:
    for key in keys:
        counts[key] += 1


def scan(counts: Array) -> Array:
    """Exclusive prefix sum: returns (groups + 1,) int64 offsets that start with 0 and end with the total."""
    offsets = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def binning(keys: Array, payload: Array, values: Array, offsets: Array) -> tuple[Array, Array]:
    """Move each (payload, value) into the range of its key, in the order of arrival.

    keys, payload : (nnz,) group of each entry, and its index within the group.
    values : (nnz,), or (1,) when one value serves all entries: it then stays one value.
    offsets : (groups + 1,) int64, from `scan`.
    """
    binned, moved = np.empty_like(payload), values.copy() if values.size == 1 else np.empty_like(values)
    _bin(keys, payload, values, offsets[:-1].copy(), binned, moved)
    return binned, moved


@compiled
def _bin(keys: Array, payload: Array, values: Array, cursor: Array, binned: Array, moved: Array) -> None:
    """Move entries to where the cursor of their group stands, and that by one; a single value stays."""
    iso = values.size == 1
    for entry in range(keys.size):
        slot = cursor[keys[entry]]
        cursor[keys[entry]] = slot + 1
        binned[slot] = payload[entry]
        if not iso:
            moved[slot] = values[entry]


@compiled
def _sort_groups(offsets: Array, indices: Array, values: Array, start: int, stop: int) -> None:
    """Sort groups `start` to `stop`; see `sort_rows`.

    Index and position are sorted as one 64-bit number: that is stable, and faster than sorting positions.
    """
    iso = values.size == 1
    for group in range(start, stop):
        first, last = offsets[group], offsets[group + 1]
        ordered = True
        for entry in range(first + 1, last):
            if indices[entry] < indices[entry - 1]:
                ordered = False
                break
        if ordered:
            continue
        keys = np.empty(last - first, np.int64)
        for entry in range(first, last):
            keys[entry - first] = (np.int64(indices[entry]) << 32) | (entry - first)
        keys.sort()
        moved = values[first:last].copy()
        for entry in range(first, last):
            key = keys[entry - first]
            indices[entry] = key >> 32
            if not iso:
                values[entry] = moved[key & 0xFFFFFFFF]


def sort_rows(offsets: Array, indices: Array, values: Array) -> None:
    """Sort each group's entries by index, in place, on all threads; sorted groups cost one pass.

    offsets : (groups + 1,) int64. indices : (nnz,); equal ones keep their order. values : (nnz,), or (1,).
    """
    cuts = np.searchsorted(offsets, np.arange(0, offsets[-1], _SORTED_ENTRIES))
    map_threads(
        lambda span: _sort_groups(offsets, indices, values, *span), pairwise(np.unique([*cuts, offsets.size - 1]))
    )


def _group_keys(matrix: Compressed) -> Array:
    """Return each entry's group: the inverse of histogram and scan."""
    return frozen(np.repeat(np.arange(matrix.groups, dtype=index_dtype(matrix.groups)), np.diff(matrix.indptr)))


def _compress(target: type[Target], shape: tuple[int, int], major: Array, minor: Array, values: Array) -> Target:
    offsets = scan(histogram(major, shape[target.major_axis]))
    indices, moved = binning(major, minor, values, offsets)
    sort_rows(offsets, indices, moved)
    return target(shape, frozen(offsets), frozen(indices), frozen(moved))


def coo_to_csr(matrix: COO) -> CSR:
    """Convert to CSR with sorted rows. Indices must be in range; duplicates stay (`CSR.validate` finds them)."""
    return _compress(CSR, matrix.shape, matrix.rows, matrix.columns, matrix.values)


def coo_to_csc(matrix: COO) -> CSC:
    """Convert to CSC with sorted columns. Indices must be in range; duplicates stay (`CSC.validate` finds them)."""
    return _compress(CSC, matrix.shape, matrix.columns, matrix.rows, matrix.values)


def csr_to_coo(matrix: CSR) -> COO:
    """Convert to COO in row-major order."""
    return COO(matrix.shape, _group_keys(matrix), matrix.indices, matrix.values)


def csr_to_csc(matrix: CSR) -> CSC:
    """Convert to CSC; columns come out sorted."""
    return _swap(matrix, CSC)


def csc_to_csr(matrix: CSC) -> CSR:
    """Convert to CSR; rows come out sorted."""
    return _swap(matrix, CSR)


def _swap(matrix: Compressed, target: type[Target]) -> Target:
    offsets = scan(histogram(matrix.indices, matrix.width))
    indices, values = binning(matrix.indices, _group_keys(matrix), matrix.values, offsets)
    return target(matrix.shape, frozen(offsets), frozen(indices), frozen(values))


def from_dense(matrix: Any, dtype: type[np.floating[Any]] = np.float32) -> CSR:
    """Build a CSR matrix of the non-zeros of a two-dimensional array."""
    dense = real_numbers(matrix, "matrix holds", MatrixError)
    if dense.ndim != 2:
        raise MatrixError(f"a matrix has two dimensions, not {dense.ndim}")
    rows, columns = np.nonzero(dense)
    indptr = scan(np.bincount(rows, minlength=dense.shape[0]).astype(np.int64))
    return CSR(
        (dense.shape[0], dense.shape[1]),
        frozen(indptr),
        frozen(columns.astype(index_dtype(dense.shape[1]))),
        frozen(collapse_iso(as_floats(dense[rows, columns], dtype))),
    )
