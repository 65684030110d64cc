"""Copies of matrices on the device to other types and layouts, by one kernel.

CuPy would compile a kernel of its own for each pair of types, and for each kind of layout.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.sizes import parts_of

THREADS = 256  # threads of a block
PIECE = 1024  # numbers of a row that a warp takes at a time, as in the kernel
MOST_BLOCKS = 1 << 14  # blocks that fill any device; they go on in strides
_FROM = ("f4", "f2", "f8", "?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")  # in the order of the kernel's numbers

_NUMBERS = {np.dtype(kind): np.int32(number) for number, kind in enumerate(_FROM)}
_TO = {np.dtype(np.float32): "float", np.dtype(np.float16): "half_bits", np.dtype(np.int64): "int64"}

_COPY = program("rows/copy.cu", TO=tuple(_TO.values()))


def copy_rows(source: Any, target: Any) -> None:
    """Queue a copy of a matrix or vector of any real type and layout to one of float32, float16 or int64."""
    (rows, width), matrices = (1, *source.shape)[-2:], (source, target)
    steps = [[np.int64(step // each.itemsize) for step in (0, *each.strides)[-2:]] for each in matrices]
    blocks = min(MOST_BLOCKS, parts_of(rows * parts_of(width, PIECE) * 32, THREADS))
    sizes = _NUMBERS[source.dtype], np.int64(rows), np.int64(width)
    kernel = _COPY.kernel("copy_rows", TO=_TO[target.dtype])
    launch("copy", kernel, (blocks,), (THREADS,), *sizes, source, *steps[0], target, *steps[1])


def as_rows(array: Any, kind: Any) -> Any:
    """Return a matrix or vector contiguous and in float32, float16 or int64; the array itself where it is so."""
    if array.dtype == kind and array.flags.c_contiguous:
        return array
    target = cupy().empty(array.shape, np.dtype(kind))
    copy_rows(array, target)
    return target
