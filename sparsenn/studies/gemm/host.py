"""Products of two dense matrices on the host: the float64 reference of gemm, the plainest loop, and NumPy's product."""

from __future__ import annotations

import numpy as np

from sparsenn.formats import Array
from sparsenn.runtime.jit import compiled, example
from sparsenn.studies.gemm.kernel import ProductKernel, check_factors


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


def multiply(a: Array, b: Array) -> Array:
    """Compute the product in float64."""
    check_factors(a.shape, b.shape)
    return a.astype(np.float64) @ b.astype(np.float64)


def launch_blas(a: Array, b: Array) -> Array:
    """Compute the product in float32 by NumPy; errors as `multiply`."""
    check_factors(a.shape, b.shape)
    return a.astype(np.float32, copy=False) @ b.astype(np.float32, copy=False)


REFERENCE = ProductKernel(
    name="reference", device="reference", summary="NumPy's product in float64: the oracle", launch=multiply
)
SEQUENTIAL = ProductKernel(
    name="sequential",
    device="cpu",
    summary="three loops on one thread, a sum at a time",
    launch=launch_sequential,
)
BLAS = ProductKernel(name="blas", device="cpu", summary="NumPy's product in float32", launch=launch_blas)
