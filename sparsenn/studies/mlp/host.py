"""NumPy's products on the host: no rung of the ladder of mlp, but what the CPU's kernel is held against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsenn.backends.cpu.dense import DenseStack, prepare
from sparsenn.backends.kernel_records import DenseKernel
from sparsenn.backends.registry import register
from sparsenn.errors import ShapeError
from sparsenn.formats import Array
from sparsenn.layers import Linear


def launch_blas(stack: DenseStack | Sequence[Linear], features: Array) -> Array:
    """Compute dense layers in float32, one after the other, by the library that NumPy comes with.

    Its products may sum in another order where there are other rows: bits may depend on how many there are.
    """
    layers = (stack if isinstance(stack, DenseStack) else prepare(stack)).layers
    if features.ndim != 2 or features.shape[1] != layers[0].inputs:
        raise ShapeError(f"layer 1: rows of {layers[0].inputs} inputs are needed, not of shape {features.shape}")
    values = features.astype(np.float32, copy=False)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for layer in layers:
            values = layer.activation(values @ layer.weights + layer.bias_vector())
    return values


BLAS = register(
    DenseKernel(
        name="blas",
        device="cpu",
        summary="NumPy's products in float32, then bias and activation",
        launch=launch_blas,
    )
)
