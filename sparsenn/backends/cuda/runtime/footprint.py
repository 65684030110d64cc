"""Device memory that layers take once prepared, in all the forms that kernels read."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from sparsenn.backends.cuda import sparse
from sparsenn.errors import UsageError
from sparsenn.layers import Conv2d, ImageLayer, Linear, SparseLinear

__all__ = ["dense_bytes", "prepared_bytes"]

FORMS = 3
"""Of dense weights and those of convolutions: as they are, and what kernels for tensor cores keep beside that, rounded
and what rounding took away."""


@singledispatch
def prepared_bytes(layer: Any) -> int:
    """Estimate the bytes that a layer takes.

    Raises
    ------
    UsageError
        The layer is of a kind that is not known.
    """
    raise UsageError(f"the CUDA backend does not know the layer {type(layer).__name__}")


@prepared_bytes.register
def _(layer: SparseLinear) -> int:
    return sparse.prepared_bytes(layer)


@prepared_bytes.register
def _(layer: Linear) -> int:
    return FORMS * layer.weight_bytes + 4 * layer.outputs


@prepared_bytes.register
def _(layer: Conv2d) -> int:
    return FORMS * layer.weight_bytes + 4 * layer.filters


@prepared_bytes.register
def _(layer: ImageLayer) -> int:
    return 0


def dense_bytes(layer: SparseLinear) -> int:
    """Estimate the bytes that a sparse layer takes with its zeros stored."""
    return FORMS * 4 * layer.inputs * layer.outputs + 4 * layer.outputs
