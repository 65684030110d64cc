"""Products of two dense matrices on the host: the float64 reference of gemm, the plainest loop, and NumPy's product."""

from __future__ import annotations

import numpy as np

from sparsenn.formats import Array
from sparsenn.studies.gemm.kernel import ProductKernel, check_factors
from sparsenn.studies.gemm.sequential import launch_sequential


def multiply(a: Array, b: Array) -> Array:
    """Compute the product in float64."""
    check_factors(a.shape, b.shape)
    product: Array = a.astype(np.float64) @ b.astype(np.float64)
    return product


def launch_blas(a: Array, b: Array) -> Array:
    """Compute the product in float32 by NumPy; errors as `multiply`."""
    check_factors(a.shape, b.shape)
    product: Array = a.astype(np.float32, copy=False) @ b.astype(np.float32, copy=False)
    return product


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
