"""The CUDA variants of gemm by name, in the ladder's order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sparsenn.backends.base import Variant, register
from sparsenn.backends.cuda.availability import ANY_GPU
from sparsenn.backends.cuda.dense.image import SPLIT_PRODUCTS
from sparsenn.backends.cuda.gemm import plain, tensor
from sparsenn.backends.cuda.loader import cupy
from sparsenn.backends.cuda.memory import within_memory
from sparsenn.backends.gemm import check_factors
from sparsenn.errors import UsageError
from sparsenn.formats import Array

__all__ = ["register_all"]

Launch = Callable[[Array, Array], Array]

MOST_NUMBERS = 2**31 - 1024
"""Rows or columns of a matrix: what kernels count in, and room for the last tile."""


class _Entry(NamedTuple):
    """A rung, its precision, whether it takes float16 matrices, too, and `Variant.tf32_products`."""

    rung: plain.Rung
    precision: str = "float32"
    half_rows: bool = False
    tf32_products: int = 0


def _on_tensor_cores(rung: plain.Rung) -> _Entry:
    precision = tensor.PRECISIONS[rung[0]]
    return _Entry(rung, precision, precision == "fp16", SPLIT_PRODUCTS if precision == "float32" else 0)


_IN_ORDER: tuple[_Entry, ...] = (
    *map(_Entry, plain.RUNGS),
    *map(_on_tensor_cores, tensor.RUNGS),
    _Entry(plain.LIBRARY),  # no rung, but what they are held against
)


def register_all() -> None:
    """Register every variant; CuPy is not needed for that."""
    for (name, launch, summary), precision, half_rows, tf32_products in _IN_ORDER:
        register(
            Variant(
                operation="gemm",
                name=name,
                device="cuda",
                summary=summary,
                launch=partial(_launch, launch, half_rows),
                needs=(ANY_GPU,),
                half_rows=half_rows,
                why_not=_why_not,
                precision=precision,
                tf32_products=tf32_products,
            )
        )


def _why_not(a: Array, b: Array) -> str | None:
    largest = max(*a.shape, *b.shape)
    if largest <= MOST_NUMBERS:
        return None
    return f"a matrix has {largest:,} rows or columns; the kernels count up to {MOST_NUMBERS:,}"


def _launch(launch: Launch, half_rows: bool, a: Array, b: Array) -> Array:
    """Launch a rung on the matrices' device.

    Raises
    ------
    ShapeError
        The matrices do not fit each other.
    UsageError
        They are not of a type that the rung takes, or not in row-major order, or too large to be counted.
    OutOfMemoryError
        The device's memory does not suffice.
    """
    check_factors(a.shape, b.shape)
    reason = _why_not(a, b)
    if reason is not None:
        raise UsageError(reason)
    types = (np.float32, np.float16) if half_rows else (np.float32,)
    if a.dtype not in types or b.dtype != a.dtype or not (a.flags.c_contiguous and b.flags.c_contiguous):
        names = " or ".join(np.dtype(kind).name for kind in types)
        raise UsageError(
            f"the matrices are {a.dtype}, strides {a.strides}, and {b.dtype}, strides {b.strides}; give {names} in "
            "row-major order"
        )
    device: Any = a.device
    with cupy().cuda.Device(device.id), within_memory("a product", a.shape[0], 8 * b.shape[1]):
        return launch(a, b)
