"""Numbers on the device from float32 to float16 and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.backends.cuda.device import cupy
from sparsenn.backends.cuda.loader import program
from sparsenn.backends.cuda.recorder import launch
from sparsenn.errors import UsageError
from sparsenn.formats import Array

__all__ = ["to_float", "to_half"]

THREADS = 256
"""Of a block."""

NUMBERS = 8
"""That a thread takes at a time."""

MOST_BLOCKS = 1 << 16
"""They loop over what is left."""

ALIGNMENT = 16
"""Bytes."""

_CONVERT = program("studies/conv2d/direct/kernels/convert.cu", THREADS=(THREADS,))


def to_half(array: Array) -> Array:
    """Return a float32 device array's numbers as float16, rounded to nearest; 65,520 and above become infinite.

    Parameters
    ----------
    array : of any shape, contiguous.

    Raises
    ------
    UsageError
        The array is not float32, or not contiguous.
    """
    return _converted(array, "to_float16", np.float32, np.float16)


def to_float(array: Array) -> Array:
    """Return a float16 device array's numbers as float32, which holds them all; otherwise as `to_half`."""
    return _converted(array, "to_float32", np.float16, np.float32)


def _converted(array: Array, name: str, given: Any, wanted: Any) -> Array:
    if array.dtype != given or not array.flags.c_contiguous:
        raise UsageError(
            f"an array of {array.dtype}, strides {array.strides}, cannot be converted; give "
            f"{np.dtype(given).name} in row-major order"
        )
    pointer: Any = array.data
    if pointer.ptr % ALIGNMENT:
        array = array.copy()
    converted: Array = cupy().empty(array.shape, wanted)
    blocks = min(-(-array.size // (NUMBERS * THREADS)), MOST_BLOCKS)
    launch("conv2d", _CONVERT.kernel(name), (blocks,), (THREADS,), np.int64(array.size), array, converted)
    return converted
