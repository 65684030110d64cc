"""The plainest product of two matrices: three loops, on one thread."""

from __future__ import annotations

import numpy as np

from sparsenn.formats import Array
from sparsenn.runtime.jit import compiled, example


@compiled
def _multiply(a: Array, b: Array, out: Array) -> None:
    for row in range(a.shape[0]):
        for column in range(b.shape[1]):
            total = np.float32(0)
            for term in range(a.shape[1]):
                total += a[row, term] * b[term, column]
            out[row, column] = total


def launch_sequential(a: Array, b: Array) -> Array:
    """Compute the product of a (rows, depth) and b (depth, columns); returns float32 (rows, columns)."""
    product = np.empty((a.shape[0], b.shape[1]), np.float32)
    _multiply(np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b, np.float32), product)
    return product


@example
def _multiply_little() -> None:
    launch_sequential(np.ones((1, 1), np.float32), np.ones((1, 1), np.float32))
