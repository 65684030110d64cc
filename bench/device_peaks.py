"""What a GPU can do at most: a copy of its memory, and cuBLAS's products in each precision."""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy as cp
import numpy as np
from ceilings import Peaks
from cupy._core import _routines_linalg as products
from event_timing import timed

__all__ = ["cublas_precision", "peaks"]

SIDE = 8192
"""Of the square matrices whose product tells how fast a precision is."""


def peaks() -> Peaks:
    """Measure this device: a copy of 2 GB, and square products by cuBLAS."""
    source = cp.ones(1 << 29, np.float32)
    target = cp.empty_like(source)
    copied = 2 * source.nbytes / timed(partial(cp.copyto, target, source)).median
    del source, target
    rates = {}
    for precision, kind in (("float32", np.float32), ("tf32", np.float32), ("float16", np.float16)):
        square = cp.random.default_rng(1).standard_normal((SIDE, SIDE), np.float32).astype(kind)
        out = cp.empty_like(square)
        with cublas_precision(precision):
            rates[precision] = SIDE**3 / timed(partial(cp.matmul, square, square, out=out)).median
    cp.get_default_memory_pool().free_all_blocks()
    return Peaks(copied, rates)


class cublas_precision:  # noqa: N801 - used as a function
    """Within, CuPy multiplies float32 in TF32 if that is the precision."""

    def __init__(self, precision: str) -> None:
        self.wanted: Any = products.COMPUTE_TYPE_TF32 if precision == "tf32" else products.COMPUTE_TYPE_DEFAULT

    def __enter__(self) -> None:
        self.before = products.get_compute_type(np.dtype(np.float32))
        products.set_compute_type(np.dtype(np.float32), self.wanted)

    def __exit__(self, *_: object) -> None:
        products.set_compute_type(np.dtype(np.float32), self.before)
