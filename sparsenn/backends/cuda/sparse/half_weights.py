"""Weights as halves: those of an output are scaled by a power of two, so that none of them is too large."""

from __future__ import annotations

import numpy as np

from sparsenn.formats import Array

__all__ = ["WEIGHT_EXPONENT", "scaled_weights"]

WEIGHT_EXPONENT = 14  # scaled weights of an output are below two to the power of this, as in `sparse/row_scale.cuh`

# Exponents that weights are scaled by.
LOWEST = -100
HIGHEST = 127


def scaled_weights(output: Array, values: Array, outputs: int) -> tuple[Array, Array]:
    """Return scaled weights, float64, and the scales, (outputs,) float32, by which sums of products are multiplied."""
    largest = np.zeros(outputs)
    np.maximum.at(largest, output, np.abs(values).astype(np.float64))
    exponents = np.clip(np.frexp(largest)[1], LOWEST, HIGHEST)
    scaled = np.ldexp(values.astype(np.float64), WEIGHT_EXPONENT - exponents[output])
    return scaled, np.ldexp(np.float32(1), exponents).astype(np.float32)
