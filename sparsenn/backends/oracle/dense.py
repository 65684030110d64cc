"""Stacks of dense layers in float64: the oracle of mlp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsenn.backends.kernel_records import DenseKernel
from sparsenn.backends.registry import register
from sparsenn.errors import ShapeError
from sparsenn.formats import Array
from sparsenn.layers import Linear
from sparsenn.runtime.workers import chunks

BATCH = 1 << 16
"""Rows computed at a time: what lies between layers then takes little memory, however many rows there are."""


def forward(layers: Sequence[Linear], features: Array) -> Array:
    """Compute the layers in float64, one after the other."""
    return forward_in(np.float64, layers, features)


def forward_in(dtype: Any, layers: Sequence[Linear], features: Array) -> Array:
    """Compute the layers one after the other, in one type of numbers: NumPy's product, then bias, then activation."""
    check_stack(layers, features.shape)
    parameters = [(layer.weights.astype(dtype, copy=False), layer.bias_vector().astype(dtype)) for layer in layers]
    outputs = np.empty((features.shape[0], layers[-1].outputs), dtype)
    for first, last in chunks(features.shape[0], BATCH):
        values = features[first:last].astype(dtype, copy=False)
        for layer, (weights, bias) in zip(layers, parameters, strict=True):
            values = values @ weights
            values += bias
            values = layer.activation(values)
        outputs[first:last] = values
    return outputs


def check_stack(layers: Sequence[Linear], shape: tuple[int, ...]) -> None:
    """Refuse layers whose widths do not fit each other, or features of another width than the first layer takes."""
    if not layers:
        raise ShapeError("a stack needs at least one layer")
    for number, layer in enumerate(layers, start=1):
        try:
            shape = layer.output_shape(shape)
        except ShapeError as error:
            raise ShapeError(f"layer {number}: {error}") from error


REFERENCE = register(
    DenseKernel(
        name="reference",
        device="reference",
        summary="NumPy's products in float64, one layer at a time: the oracle",
        launch=forward,
        auto=True,
    )
)
