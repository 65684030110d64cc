"""Device memory that layers take once prepared, in all the forms that kernels read."""

from __future__ import annotations

from sparsenn.backends.cuda import sparse
from sparsenn.errors import UsageError
from sparsenn.layers import Conv2d, ImageLayer, LayerNorm, Linear, SparseLinear
from sparsenn.network import Layer

FORMS = 3  # copies of weights: as they are, and for tensor cores rounded and what rounding took away


def prepared_bytes(layer: Layer, with_zeros: bool) -> int:
    """Estimate the bytes that a layer takes; see `Backend.prepared_bytes`."""
    if isinstance(layer, SparseLinear):
        return (
            FORMS * 4 * layer.inputs * layer.outputs + 4 * layer.outputs if with_zeros else sparse.prepared_bytes(layer)
        )
    if isinstance(layer, Linear | Conv2d):
        return FORMS * layer.weight_bytes + layer.bias_vector().nbytes
    if isinstance(layer, LayerNorm):
        return layer.weight_bytes
    if isinstance(layer, ImageLayer):
        return 0
    raise UsageError(f"the CUDA backend does not know the layer {type(layer).__name__}")
