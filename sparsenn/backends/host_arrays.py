"""Arrays on the host: whether rows are there, and how large their numbers are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsenn.errors import InputError
from sparsenn.formats import CSR, Array
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
