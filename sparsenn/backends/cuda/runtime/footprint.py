"""Device memory that layers take once prepared, in all the forms that kernels read."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from sparsenn.backends.cuda import sparse
from sparsenn.errors import UsageError
from sparsenn.layers import Conv2d, ImageLayer, LayerNorm, Linear, SparseLinear
from sparsenn.network import Layer

__all__ = ["prepared_bytes"]

FORMS = 3  # copies of weights: as they are, and for tensor cores rounded and what rounding took away


def prepared_bytes(layer: Layer, with_zeros: bool) -> int:
    """Estimate the bytes that a layer takes; see `Backend.prepared_bytes`."""
    if with_zeros and isinstance(layer, SparseLinear):
        return FORMS * 4 * layer.inputs * layer.outputs + 4 * layer.outputs
    return _bytes(layer)


@singledispatch
def _bytes(layer: Any) -> int:
    raise UsageError(f"the CUDA backend does not know the layer {type(layer).__name__}")


@_bytes.register
def _(layer: SparseLinear) -> int:
    return sparse.prepared_bytes(layer)


@_bytes.register
def _(layer: Linear) -> int:
    return FORMS * layer.weight_bytes + 4 * layer.outputs


@_bytes.register
def _(layer: Conv2d) -> int:
    return FORMS * layer.weight_bytes + 4 * layer.filters


@_bytes.register
def _(layer: LayerNorm) -> int:
    return layer.weight_bytes


@_bytes.register
def _(layer: ImageLayer) -> int:
    return 0
