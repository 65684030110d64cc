"""Products of two dense matrices on the host: the float64 reference of gemm, the plainest loop, and NumPy's product.

A launch takes a of shape (rows, depth) and b of shape (depth, columns), and returns a new array (rows, columns).
"""

from __future__ import annotations

import numpy as np

from sparsenn.backends.base import Variant, register
from sparsenn.backends.cpu.sequential_gemm import launch_sequential
from sparsenn.errors import ShapeError
from sparsenn.formats import Array

__all__ = ["check_factors", "launch_blas", "multiply"]


def multiply(a: Array, b: Array) -> Array:
    """Compute the product in float64.

    Raises
    ------
    ShapeError
        The matrices do not fit each other.
    """
    check_factors(a.shape, b.shape)
    product: Array = a.astype(np.float64) @ b.astype(np.float64)
    return product


def launch_blas(a: Array, b: Array) -> Array:
    """Compute the product in float32 by NumPy; errors as `multiply`."""
    check_factors(a.shape, b.shape)
    product: Array = a.astype(np.float32, copy=False) @ b.astype(np.float32, copy=False)
    return product


def check_factors(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Refuse shapes that are not (rows, depth) and (depth, columns).

    Raises
    ------
    ShapeError
        They are not.
    """
    if len(a) != 2 or len(b) != 2 or a[1] != b[0]:
        raise ShapeError(
            f"matrices of shapes {a} and {b} have no product; that takes (rows, depth) and (depth, columns)"
        )


register(
    Variant(
        operation="gemm",
        name="reference",
        device="reference",
        summary="NumPy's product in float64: the oracle",
        launch=multiply,
    )
)
register(
    Variant(
        operation="gemm",
        name="sequential",
        device="cpu",
        summary="three loops on one thread, a sum at a time",
        launch=launch_sequential,
    )
)
register(
    Variant(
        operation="gemm",
        name="blas",
        device="cpu",
        summary="NumPy's product in float32",
        launch=launch_blas,
    )
)
