"""The order of summation of all sparse kernels, by NumPy: one fused multiply-add after the other, inputs ascending."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsenn.layers import SparseLinear

__all__ = ["bits", "fused_multiply_add", "in_order"]


def fused_multiply_add(weights: np.ndarray, inputs: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Return weights * inputs + sums in float32, rounded once.

    The product is exact in float64. Its sum is rounded to odd there, which keeps what the rounding to float32 has to
    know.
    """
    product, added = weights.astype(np.float64) * inputs.astype(np.float64), sums.astype(np.float64)
    total = product + added
    part = total - product
    error = (product - (total - part)) + (added - part)
    even = (error != 0) & ((total.view(np.int64) & 1) == 0)
    return np.where(even, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total).astype(np.float32)


def in_order(layers: Sequence[SparseLinear], rows: np.ndarray) -> np.ndarray:
    """Return what layers with ReLU or no activation make of float32 rows, to the last bit."""
    for layer in layers:
        weights = layer.weights.to_scipy().toarray().astype(np.float32)
        sums = np.zeros((rows.shape[0], layer.outputs), np.float32)
        for number in range(layer.inputs):
            sums = fused_multiply_add(weights[number][None], rows[:, number : number + 1], sums)
        biased = sums + (layer.bias_vector()[None] + np.float32(0))
        rows = layer.activation(biased).astype(np.float32) + np.float32(0)
    return rows


def bits(numbers: np.ndarray) -> np.ndarray:
    """View float32 numbers as integers: these are equal where the bits are."""
    return np.ascontiguousarray(numbers, np.float32).view(np.uint32)
