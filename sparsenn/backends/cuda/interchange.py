"""Rows from other libraries on a GPU: CuPy's arrays, and whatever speaks DLPack or CUDA's array interface."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.backends.cuda.device import cupy
from sparsenn.backends.host_arrays import check_rows, is_on_host, rows_on_host
from sparsenn.errors import UsageError
from sparsenn.formats import Array

__all__ = ["rows_on_device"]


def rows_on_device(rows: Any, index: int, keep_half: bool) -> Array:
    """Return rows as a row-major CuPy array on the current device, float32; without a copy where they are that.

    Parameters
    ----------
    rows : on the host, or on the device `index`, which must be the current one.
    keep_half : whether float16 stays float16.

    Raises
    ------
    UsageError
        They are on another GPU.
    ShapeError, InputError
        They are no matrix, or not of real numbers.
    """
    cp = cupy()
    if is_on_host(rows):
        array: Any = rows_on_host(rows)
    else:
        array = cp.from_dlpack(rows) if hasattr(rows, "__dlpack__") else cp.asarray(rows)
        if array.device.id != index:
            raise UsageError(f"the rows are on cuda:{array.device.id}, the network on cuda:{index}")
        array = check_rows(array)
    half = keep_half and array.dtype == np.float16
    placed: Array = cp.ascontiguousarray(cp.asarray(array, dtype=np.float16 if half else np.float32))
    return placed
