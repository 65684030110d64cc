"""Stacks of dense layers on the host: the float64 reference of mlp, and NumPy's float32 products.

A launch takes the layers, a sequence of `Linear`, and features of shape (rows, inputs), and returns the outputs of
shape (rows, outputs).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsenn.backends.base import Variant, register
from sparsenn.errors import ShapeError
from sparsenn.formats import Array
from sparsenn.layers import Linear
from sparsenn.workers import chunks

__all__ = ["check_stack", "forward", "launch_blas"]

BATCH = 1 << 16
"""Rows computed at a time: what lies between layers then takes little memory, however many rows there are."""


def forward(layers: Sequence[Linear], features: Array) -> Array:
    """Compute the layers in float64, one after the other.

    Returns
    -------
    A float64 array of shape (rows, outputs).

    Raises
    ------
    ShapeError
        Layers or features do not fit together.
    """
    return _batched(layers, features, np.float64)


def launch_blas(layers: Sequence[Linear], features: Array) -> Array:
    """Compute the layers in float32 by NumPy, one after the other; returns a float32 array of shape (rows, outputs).

    Raises
    ------
    ShapeError
        Layers or features do not fit together.
    """
    return _batched(layers, features, np.float32)


def check_stack(layers: Sequence[Linear], shape: tuple[int, ...]) -> None:
    """Refuse layers whose widths do not fit each other, or features of another width than the first layer takes.

    Raises
    ------
    ShapeError
        They do not; the message names the layer, counted from 1.
    """
    if not layers:
        raise ShapeError("a stack needs at least one layer")
    for number, layer in enumerate(layers, start=1):
        try:
            shape = layer.output_shape(shape)
        except ShapeError as error:
            raise ShapeError(f"layer {number}: {error}") from error


def _batched(layers: Sequence[Linear], features: Array, dtype: Any) -> Array:
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


register(
    Variant(
        operation="mlp",
        name="reference",
        device="reference",
        summary="NumPy's products in float64, one layer at a time: the oracle",
        launch=forward,
    )
)
register(
    Variant(
        operation="mlp",
        name="blas",
        device="cpu",
        summary="NumPy's products in float32, then bias and activation",
        launch=launch_blas,
    )
)
