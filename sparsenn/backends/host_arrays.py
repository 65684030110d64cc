"""Arrays on the host: whether rows are there, what is wrong with sparse ones, and how large their numbers are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsenn.backends.chains import SparseRows
from sparsenn.errors import InputError, MatrixError, UnsortedError
from sparsenn.formats import CSR, Array
from sparsenn.formats.arrays import falls
from sparsenn.printable import kind_of
from sparsenn.runtime.workers import NUMBERS, chunks, map_threads

HOST_DEVICES = (1, 3)  # DLPack's kDLCPU and kDLCUDAHost


def is_on_host(rows: Any) -> bool:
    """Return whether rows, a matrix of any kind, are in host memory; what does not tell is taken for host memory."""
    source = rows
    if isinstance(rows, CSR):
        rows = rows.indptr
    elif hasattr(rows, "tocsr"):
        rows = getattr(rows, "data", None)
    device = getattr(rows, "__dlpack_device__", None)
    if device is not None:
        try:
            return int(device()[0]) in HOST_DEVICES
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(f"the rows, {kind_of(source)}, cannot be read: {error}") from error
    return not hasattr(rows, "__cuda_array_interface__")


def fault_of(rows: SparseRows) -> MatrixError | None:
    """Return the first fault of sparse rows on the host, in the words of `CSR.validate`; None where they have none.

    Values count as float32: what is beyond its range is infinite. The fault is an `UnsortedError` where sorting each
    row, and adding up duplicates, would mend all that is wrong.
    """
    entries, width = rows.indices.size, rows.shape[1]
    offsets = rows.indptr.astype(np.int64)
    if falls(offsets) or int(offsets[-1]) - int(offsets[0]) != entries:
        return MatrixError(f"indptr must rise from 0 to {entries:,} and never fall")
    offsets -= offsets[0]
    with np.errstate(over="ignore"):
        values = rows.values.astype(np.float32)
    infinite = np.flatnonzero(~np.isfinite(values))
    outside = (rows.indices < 0) | (rows.indices >= width)
    not_above = np.zeros(entries, np.bool_)
    not_above[1:] = rows.indices[1:] <= rows.indices[:-1]
    not_above[offsets[offsets < entries]] = False  # they begin a row
    faults = np.flatnonzero(outside | not_above)
    if faults.size:
        at = int(faults[0])
        where, found = f"row {int(np.searchsorted(offsets, at, 'right')) - 1}, entry {at}", int(rows.indices[at])
        if outside[at]:
            return MatrixError(f"{where}: index {found} is outside 0..{width - 1}")
        before = int(rows.indices[at - 1])
        fault = "occurs twice" if found == before else f"follows {before}; a row's indices must increase"
        kind = MatrixError if infinite.size or outside.any() else UnsortedError
        return kind(f"{where}: index {found} {fault}")
    if infinite.size:
        at = int(infinite[0])
        value = rows.values[at]
        return MatrixError(f"entry {at}: the value {value} is not finite{' in float32' * bool(np.isfinite(value))}")
    return None


def all_finite(numbers: Array) -> bool:
    """Return whether all numbers of a contiguous array are finite."""
    if numbers.dtype.char in "fd" and math.isfinite(np.vdot(numbers, numbers)):
        return True
    if numbers.size <= NUMBERS:
        return bool(np.isfinite(numbers).all())
    flat = numbers.reshape(-1)
    return all(map_threads(lambda piece: all_finite(flat[slice(*piece)]), chunks(flat.size, NUMBERS)))


def largest_number(numbers: Array) -> tuple[float, bool]:
    """Return the size of the largest finite number, 0 where there is none, and whether all are finite."""
    flat = numbers.reshape(-1)
    found = [_largest_of(flat[slice(*piece)]) for piece in chunks(flat.size, NUMBERS)]
    return max((size for size, _ in found), default=0.0), all(finite for _, finite in found)


def _largest_of(numbers: Array) -> tuple[float, bool]:
    largest = max(float(numbers.max()), -float(numbers.min()))  # NaN if one is
    if math.isfinite(largest):
        return largest, True
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0)), False
