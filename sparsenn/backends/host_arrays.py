"""Rows from other libraries on the host: NumPy's arrays, what becomes one, and whatever speaks DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.formats import Array

__all__ = ["HOST_DEVICES", "check_rows", "is_on_host", "rows_on_host"]

HOST_DEVICES = (1, 3)
"""DLPack's kDLCPU and kDLCUDAHost."""


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
