"""Right answers, and what an answer may differ from them by: float64 by NumPy and SciPy, with nothing of the package's.

Of the package, only the numbers that layers hold are read.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
from convolutions import reference_conv2d
from formulas import steepest, value_of
from scipy.special import expit, softmax

from sparsenn.formats import CSR
from sparsenn.network import Network

__all__ = ["activated", "assert_close", "expected", "outputs_of", "run", "weights_of"]

EPSILON = float(np.finfo(np.float32).eps)


def activated(activation: Any, sums: np.ndarray) -> np.ndarray:
    """Apply an activation, which is known by its name."""
    if activation.name == "relu":
        return np.clip(sums, 0, np.inf if activation.clip is None else activation.clip)
    quick = {"sigmoid": expit, "tanh": np.tanh, "identity": np.asarray}.get(activation.name)
    if quick is not None:
        return quick(sums)
    return np.array([value_of(activation, z) for z in np.ravel(sums)], np.float64).reshape(np.shape(sums))


def weights_of(layer: Any) -> np.ndarray:
    """Return the weights of a fully connected layer, (inputs, outputs) float64."""
    if isinstance(layer.weights, np.ndarray):
        return layer.weights.astype(np.float64)
    matrix, dense = layer.weights, np.zeros(layer.weights.shape)
    columns = np.repeat(np.arange(matrix.shape[1]), np.diff(matrix.indptr))
    np.add.at(dense, (matrix.indices, columns), np.broadcast_to(matrix.values, columns.shape))
    return dense


def outputs_of(layer: Any, values: np.ndarray) -> np.ndarray:
    """Return what a layer of any kind makes of inputs: rows, or images of shape (images, channels, height, width)."""
    kind, values = type(layer).__name__, values.astype(np.float64)
    if kind == "Flatten":
        return values.reshape(len(values), prod(values.shape[1:]))
    if kind == "Slice":
        taken = values.take(range(layer.first, layer.last), axis=1 + layer.axis)
        return taken if layer.image is None else taken.reshape(len(values), *layer.image)
    if kind == "Softmax":
        rows = values.reshape(len(values), prod(values.shape[1:]))
        return softmax(rows, axis=1).reshape(values.shape) if rows.size else values
    if kind == "LayerNorm":
        positions = values.reshape(-1, layer.scale.size)
        spread = np.sqrt(positions.var(axis=1, keepdims=True) + layer.epsilon)
        return ((positions - positions.mean(axis=1, keepdims=True)) / spread * layer.scale + layer.shift).reshape(
            values.shape
        )
    if kind in ("MaxPool2d", "AvgPool2d"):
        return _pooled(values, layer)
    if kind == "Conv2d":
        options = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")}
        return activated(layer.activation, reference_conv2d(values, layer.weights, layer.bias, **options))
    bias = 0.0 if layer.bias is None else np.asarray(layer.bias, np.float32).astype(np.float64)
    return activated(layer.activation, values @ weights_of(layer) + bias)


def _pooled(images: np.ndarray, layer: Any) -> np.ndarray:
    """Return the mean or the largest number of each window, one window after the other."""
    window, stride = layer.window, layer.stride
    around = ((0, 0), (0, 0), *zip(layer.padding, layer.padding_after, strict=True))
    mean = type(layer).__name__ == "AvgPool2d"
    padded = np.pad(images, around, constant_values=0.0 if mean else -np.inf)
    divisors = np.pad(np.ones(images.shape), around, constant_values=float(mean and layer.counts_padding))
    sizes = [(length - size) // step + 1 for length, size, step in zip(padded.shape[2:], window, stride, strict=True)]
    found = np.empty((*images.shape[:2], *sizes))
    for row, column in product(*map(range, sizes)):
        top, left = row * stride[0], column * stride[1]
        place = np.s_[:, :, top : top + window[0], left : left + window[1]]
        part, divisor = padded[place], divisors[place].sum(axis=(2, 3))
        found[:, :, row, column] = part.sum(axis=(2, 3)) / divisor if mean else part.max(axis=(2, 3))
    return found


def run(network: Network, rows: np.ndarray) -> np.ndarray:
    """Return the outputs of a network of any layers, (rows, outputs) float64."""
    values = rows.reshape(len(rows), *network.shapes[0])
    for layer in network:
        values = outputs_of(layer, values)
    return values.reshape(len(rows), network.outputs)


def expected(network: Network, inputs: CSR) -> tuple[np.ndarray, np.ndarray]:
    """Return the float64 outputs and, for each, how far a float32 computation in any order may stray.

    A sum of n products is off by at most (n + 2)·eps·Σ|w·y|, an input's own error passes on through |W| and the
    activation's slope; and an activation adds a few roundings of its own.
    """
    values = inputs.to_scipy().toarray().astype(np.float64)
    error = np.zeros_like(values)
    for layer in network:
        weights = weights_of(layer)
        size = np.abs(values) @ np.abs(weights) + np.abs(0 if layer.bias is None else layer.bias)
        error = error @ np.abs(weights) + (layer.inputs + 2) * EPSILON * (size + error @ np.abs(weights))
        values = outputs_of(layer, values)
        error = steepest(layer.activation) * error + 4 * EPSILON * (1 + np.abs(values))
    return values, error


def assert_close(outputs: CSR, network: Network, inputs: CSR, slack: float = 1.0) -> None:
    """Fail unless `outputs` is canonical and every element lies within `slack` times the bound; NaN never does."""
    outputs.validate()
    values, error = expected(network, inputs)
    found = outputs.to_scipy().toarray()
    assert found.shape == values.shape
    within = np.abs(found - values) <= slack * error
    assert within.all(), f"{np.count_nonzero(~within)} elements differ, by up to {np.abs(found - values).max()}"
