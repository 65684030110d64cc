"""Types and limits that all formats share."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsenn.errors import MatrixError

__all__ = [
    "INDEX16_LIMIT",
    "INDEX32_LIMIT",
    "Array",
    "as_floats",
    "as_indices",
    "check_shape",
    "check_values",
    "collapse_iso",
    "index_dtype",
]

Array: TypeAlias = npt.NDArray[Any]
"""A NumPy array, or an array of the same interface that lives on a device."""

INDEX16_LIMIT = 1 << 16
"""Widths up to this one are indexed by uint16."""

INDEX32_LIMIT = (1 << 31) - 1
"""No matrix may be wider or taller than this: indices are at most 32-bit and signed beyond 16 bits."""


def index_dtype(width: int) -> np.dtype[Any]:
    """Return the narrowest index type for `width` columns: uint16 up to 65,536, int32 beyond.

    Raises
    ------
    MatrixError
        `width` is negative or beyond int32.
    """
    if not 0 <= width <= INDEX32_LIMIT:
        raise MatrixError(f"a width of {width:,} is outside 0..{INDEX32_LIMIT:,}")
    return np.dtype(np.uint16 if width <= INDEX16_LIMIT else np.int32)


def check_shape(shape: tuple[int, int]) -> None:
    """Refuse a shape that is not two non-negative lengths within int32."""
    if len(shape) != 2 or not all(
        isinstance(length, int | np.integer) and 0 <= length <= INDEX32_LIMIT for length in shape
    ):
        raise MatrixError(f"the shape {shape} is not two lengths in 0..{INDEX32_LIMIT:,}")


def as_indices(name: str, indices: Array, length: int) -> Array:
    """Return indices of any integer type as the one that `length` takes.

    Raises
    ------
    MatrixError
        They are not a vector of integers, or one is outside 0..length - 1.
    """
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise MatrixError(f"{name} must be a vector of integers, not {indices.dtype} with shape {indices.shape}")
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < length:
        raise MatrixError(f"{name} run from {int(indices.min())} to {int(indices.max())}, outside 0..{length - 1}")
    return np.ascontiguousarray(indices, dtype=index_dtype(length))


def as_floats(values: Array, dtype: npt.DTypeLike) -> Array:
    """Return a copy of real numbers as `dtype`; what is beyond its range becomes infinite, which `validate` refuses.

    Raises
    ------
    MatrixError
        The values are not real numbers.
    """
    if values.dtype.kind not in "biuf":
        raise MatrixError(f"values must be real numbers, not {values.dtype}")
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def check_values(values: Array, nnz: int) -> None:
    """Refuse values that are not floating point, or neither one per entry nor a single one for all."""
    if values.ndim != 1 or values.dtype not in (np.float32, np.float64):
        raise MatrixError(f"values must be a float32 or float64 vector, not {values.dtype} with shape {values.shape}")
    if values.size not in (nnz, 1):
        raise MatrixError(f"{values.size:,} values for {nnz:,} entries; give one per entry, or one for all (iso)")


def collapse_iso(values: Array) -> Array:
    """Return a one-element copy when all of a float32 or float64 vector are bit-equal, else `values` itself."""
    if values.size > 1 and values.ndim == 1 and values.dtype in (np.float32, np.float64):
        bits = values.view(np.uint32 if values.itemsize == 4 else np.uint64)
        if bits[0] == bits[-1] and bool((bits == bits[0]).all()):
            return values[:1].copy()
    return values
