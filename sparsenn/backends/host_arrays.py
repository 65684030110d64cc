"""Arrays on the host: rows from other libraries that become NumPy's, and how large their numbers are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.workers import chunks

__all__ = ["check_rows", "is_on_host", "largest_number", "rows_on_host"]

HOST_DEVICES = (1, 3)
"""DLPack's kDLCPU and kDLCUDAHost."""

PIECE = 1 << 17
"""Numbers that are looked at together: they stay in a core's cache, so that memory is read once."""


def is_on_host(rows: Any) -> bool:
    """Return whether rows are in host memory; what does not tell is taken for host memory."""
    if hasattr(rows, "__cuda_array_interface__"):
        return False
    device = getattr(rows, "__dlpack_device__", None)
    return device is None or int(device()[0]) in HOST_DEVICES


def rows_on_host(rows: Any) -> Array:
    """Return rows as a NumPy array, without a copy where they are one or speak DLPack.

    Raises
    ------
    UsageError
        They are on a GPU.
    ShapeError, InputError
        They are no matrix, or not of real numbers.
    """
    if not is_on_host(rows):
        raise UsageError("the rows are on a GPU: use device cuda, or copy them to the host")
    if isinstance(rows, np.ndarray):
        array: Array = rows
    elif hasattr(rows, "__dlpack__"):
        array = np.from_dlpack(rows)
    else:
        array = np.asarray(rows)
    return check_rows(array)


def check_rows(array: Array) -> Array:
    """Return an array that is a matrix of real numbers, and refuse any other.

    Raises
    ------
    ShapeError, InputError
        It is no matrix, or not of real numbers.
    """
    if array.ndim != 2:
        raise ShapeError(f"the rows have shape {array.shape}; a matrix is needed, a row an input")
    if array.dtype.kind not in "fiub":
        raise InputError(f"the rows are of type {array.dtype}; real numbers are needed")
    return array


def largest_number(numbers: Array) -> tuple[float, bool]:
    """Return the size of the largest finite number, 0 where there is none, and whether all are finite."""
    flat = numbers.reshape(-1)
    found = [_largest_of(flat[slice(*piece)]) for piece in chunks(flat.size, PIECE)]
    return max((size for size, _ in found), default=0.0), all(finite for _, finite in found)


def _largest_of(numbers: Array) -> tuple[float, bool]:
    largest = max(float(numbers.max()), -float(numbers.min()))  # NaN if one is
    if math.isfinite(largest):
        return largest, True
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0)), False
