"""Numbers of other precisions than float32: halves, scaled so that none is too large, and pairs of numbers of TF32."""

from __future__ import annotations

import numpy as np

from sparsenn.formats import Array

SPLIT_PRODUCTS = 3  # in TF32 for each product of split float32 numbers: all but that of the two small ones

WEIGHT_EXPONENT = 14  # scaled weights of an output are below two to the power of this, as in `sparse/row_scale.cuh`

# Exponents that weights are scaled by.
LOWEST = -100
HIGHEST = 127


def split_tf32(values: Array) -> tuple[Array, Array]:
    """Split float32 numbers, cut off at the largest of TF32, into two of TF32: each rounded, and its remainder."""
    kept = np.uint32(0xFFFFE000)
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & kept).view(np.float32)
    high = np.where(np.isinf(rounded), (bits & kept).view(np.float32), rounded)
    rest = np.ascontiguousarray(values - high).view(np.uint32)
    return high, ((rest + np.uint32(0x1000)) & kept).view(np.float32)


def scaled_weights(output: Array, values: Array, outputs: int) -> tuple[Array, Array]:
    """Return scaled weights, float64, and the scales, (outputs,) float32, by which sums of products are multiplied."""
    largest = np.zeros(outputs)
    np.maximum.at(largest, output, np.abs(values).astype(np.float64))
    exponents = np.clip(np.frexp(largest)[1], LOWEST, HIGHEST)
    scaled = np.ldexp(values.astype(np.float64), WEIGHT_EXPONENT - exponents[output])
    return scaled, np.ldexp(np.float32(1), exponents).astype(np.float32)
