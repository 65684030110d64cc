"""What kernels of gemm have in common: their record, and how those on the GPU are described and launched.

A launch takes matrices a and b, on a GPU CuPy arrays (rows, depth) and (depth, columns) of float32 in row-major order,
and returns their product, a new array (rows, columns) of float32. There, it queues its work on the current stream and
does not wait for it, but for the first one of a kernel, which compiles it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.memory import within_memory
from sparsenn.backends.kernel_records import Kernel
from sparsenn.backends.machine import Machine
from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.studies.traffic import Model

Launch = Callable[[Array, Array], Array]

MOST_NUMBERS = 2**31 - 1024
"""Rows or columns of a matrix: what kernels count in, and room for the last tile."""


@dataclass(frozen=True, kw_only=True)
class ProductKernel(Kernel):
    """A kernel of `gemm`: the product of two dense matrices."""

    operation: str = "gemm"
    launch: Launch
    """Takes a of shape (rows, depth) and b of shape (depth, columns), and returns a new array (rows, columns)."""
    why_not: Callable[[Machine, Array, Array], str | None] = lambda machine, a, b: None  # is given the matrices
    traffic: Model | None = None  # is given a product as a convolution, `product_geometry`, of one image


def check_factors(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Refuse shapes that are not (rows, depth) and (depth, columns)."""
    if len(a) != 2 or len(b) != 2 or a[1] != b[0]:
        raise ShapeError(
            f"matrices of shapes {a} and {b} have no product; that takes (rows, depth) and (depth, columns)"
        )


def product_kernel(
    name: str,
    launch: Launch,
    summary: str,
    *,
    precision: str = "float32",
    half_rows: bool = False,
    tf32_products: int = 0,
    traffic: Model | None = None,
) -> ProductKernel:
    """Describe a kernel of gemm on the GPU.

    `launch` takes row-major CuPy arrays on one device, of float32, with `half_rows` also of float16, whose shapes fit;
    it returns a new one of the same type.
    """
    return ProductKernel(
        name=name,
        device="cuda",
        summary=summary,
        launch=partial(_launch, launch, half_rows),
        needs=(ANY_GPU,),
        why_not=_why_not,
        precision=precision,
        half_rows=half_rows,
        tf32_products=tf32_products,
        traffic=traffic,
    )


def _why_not(machine: Machine, a: Array, b: Array) -> str | None:
    return _uncountable(a, b)


def _uncountable(a: Array, b: Array) -> str | None:
    largest = max(*a.shape, *b.shape)
    if largest <= MOST_NUMBERS:
        return None
    return f"a matrix has {largest:,} rows or columns; the kernels count up to {MOST_NUMBERS:,}"


def _launch(launch: Launch, half_rows: bool, a: Array, b: Array) -> Array:
    """Launch a kernel on the matrices' device."""
    check_factors(a.shape, b.shape)
    reason = _uncountable(a, b)
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
