"""Numbers on the device from float32 to float16."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.errors import UsageError
from sparsenn.formats import Array

THREADS = 256  # of a block
NUMBERS = 8  # that a thread takes at a time
MOST_BLOCKS = 1 << 16  # they loop over what is left
ALIGNMENT = 16  # bytes

_CONVERT = program("studies/conv2d/direct/kernels/convert.cu", THREADS=(THREADS,))


def to_half(array: Array) -> Array:
    """Return a float32 device array's numbers as float16, rounded to nearest; 65,520 and above become infinite.

    `array`: of any shape, contiguous.
    """
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        raise UsageError(
            f"an array of {array.dtype}, strides {array.strides}, cannot be converted; give float32 in row-major order"
        )
    pointer: Any = array.data
    if pointer.ptr % ALIGNMENT:
        array = array.copy()
    converted: Array = cupy().empty(array.shape, np.float16)
    blocks = min(-(-array.size // (NUMBERS * THREADS)), MOST_BLOCKS)
    launch("conv2d", _CONVERT.kernel("to_float16"), (blocks,), (THREADS,), np.int64(array.size), array, converted)
    return converted
