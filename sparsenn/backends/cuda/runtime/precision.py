"""Numbers of other precisions than float32: where half precision ends, and float32 as a sum of two numbers of TF32."""

from __future__ import annotations

import numpy as np

from sparsenn.formats import Array

__all__ = ["HALF_MAX", "SPLIT_PRODUCTS", "split_tf32"]

HALF_MAX = 65_504.0  # the largest number of half precision
SPLIT_PRODUCTS = 3  # in TF32 for each product of split float32 numbers: all but that of the two small ones


def split_tf32(values: Array) -> tuple[Array, Array]:
    """Split float32 numbers, cut off at the largest of TF32, into two of TF32: each rounded, and its remainder."""
    kept = np.uint32(0xFFFFE000)
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & kept).view(np.float32)
    high = np.where(np.isinf(rounded), (bits & kept).view(np.float32), rounded)
    rest = np.ascontiguousarray(values - high).view(np.uint32)
    return high, ((rest + np.uint32(0x1000)) & kept).view(np.float32)
