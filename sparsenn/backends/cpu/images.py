"""Pooling and softmax on the CPU, on plain threads: float32, whose sums are of float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from math import prod
from typing import Any

import numpy as np

from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.jit import compiled
from sparsenn.layers import AvgPool2d, Flatten, ImageLayer, MaxPool2d, Pool2d, Softmax
from sparsenn.workers import chunks, map_threads, thread_count

__all__ = ["count_nonzeros", "run_layer"]

PIECES = 4
"""Parts of the work for each thread, so that all end at about the same time."""


def run_layer(layer: ImageLayer, shape: tuple[int, ...], features: Array) -> Array:
    """Run a layer of images that is no convolution.

    Parameters
    ----------
    shape : of one input.
    features : (rows, inputs) float32, row-major.

    Returns
    -------
    (rows, outputs) float32: a new array, or for `Flatten` the features themselves.

    Raises
    ------
    ShapeError
        The layer does not take such inputs.
    UsageError
        The layer is of a kind that is not known.
    """
    return _run(layer, shape, features)


@singledispatch
def _run(layer: Any, shape: tuple[int, ...], features: Array) -> Array:
    raise UsageError(f"the CPU backend does not know the layer {type(layer).__name__}")


@_run.register
def _(layer: Flatten, shape: tuple[int, ...], features: Array) -> Array:
    layer.output_shape((features.shape[0], *shape))
    return features


@_run.register
def _(layer: Softmax, shape: tuple[int, ...], features: Array) -> Array:
    outputs, _ = _outputs(layer, shape, features)
    pieces = _pieces(features.shape[0])
    map_threads(lambda piece: _softmax(features[slice(*piece)], outputs[slice(*piece)]), pieces)
    return outputs


@_run.register
def _(layer: MaxPool2d, shape: tuple[int, ...], features: Array) -> Array:
    return _pooled(_max_pool, layer, shape, features)


@_run.register
def _(layer: AvgPool2d, shape: tuple[int, ...], features: Array) -> Array:
    return _pooled(_average_pool, layer, shape, features)


def _outputs(layer: ImageLayer, shape: tuple[int, ...], features: Array) -> tuple[Array, tuple[int, ...]]:
    """Return room for a layer's outputs, (rows, outputs), and the shape of one of them."""
    rows, *found = layer.output_shape((features.shape[0], *shape))
    return np.empty((rows, prod(found)), np.float32), tuple(found)


def _pooled(pool: Callable[..., None], layer: Pool2d, shape: tuple[int, ...], features: Array) -> Array:
    """Pool each channel of each image by itself: planes of shape (planes, height, width)."""
    outputs, found = _outputs(layer, shape, features)
    planes, pooled = features.reshape(-1, *shape[1:]), outputs.reshape(-1, *found[1:])
    window, stride, padding = layer.steps

    def run(piece: tuple[int, int]) -> None:
        pool(planes[slice(*piece)], window, stride, padding, pooled[slice(*piece)])

    map_threads(run, _pieces(planes.shape[0]))
    return outputs


def count_nonzeros(features: Array) -> Array:
    """Return the non-zeros of each row of a matrix, (rows,) int64."""
    counts = np.empty(features.shape[0], np.int64)
    pieces = _pieces(features.shape[0])
    map_threads(lambda piece: _count(features[slice(*piece)], counts[slice(*piece)]), pieces)
    return counts


def _pieces(count: int) -> list[tuple[int, int]]:
    return chunks(count, -(-count // (PIECES * thread_count())) or 1)


@compiled
def _max_pool(planes: Array, window: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int],
              outputs: Array) -> None:  # fmt: skip
    """Take the largest number of each window within the image; a NaN is larger than any number."""
    height, width = planes.shape[1:]
    for plane in range(planes.shape[0]):
        for row in range(outputs.shape[1]):
            top = row * stride[0] - padding[0]
            for column in range(outputs.shape[2]):
                left = column * stride[1] - padding[1]
                largest = np.float32(-np.inf)
                for y in range(max(top, 0), min(top + window[0], height)):
                    for x in range(max(left, 0), min(left + window[1], width)):
                        value = planes[plane, y, x]
                        largest = largest if value <= largest or largest != largest else value
                outputs[plane, row, column] = largest


@compiled
def _average_pool(planes: Array, window: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int],
                  outputs: Array) -> None:  # fmt: skip
    """Add up each window within the image, in float64, and divide by its pixels, padding included."""
    height, width = planes.shape[1:]
    pixels = np.float64(window[0]) * np.float64(window[1])
    for plane in range(planes.shape[0]):
        for row in range(outputs.shape[1]):
            top = row * stride[0] - padding[0]
            for column in range(outputs.shape[2]):
                left = column * stride[1] - padding[1]
                total = 0.0
                for y in range(max(top, 0), min(top + window[0], height)):
                    for x in range(max(left, 0), min(left + window[1], width)):
                        total += planes[plane, y, x]
                outputs[plane, row, column] = np.float32(total / pixels)


@compiled
def _softmax(rows: Array, outputs: Array) -> None:
    """Compute exp(y - largest) and divide by their sum, which is added up in float64."""
    for row in range(rows.shape[0]):
        largest = np.float32(-np.inf)
        for column in range(rows.shape[1]):
            value = rows[row, column]
            largest = largest if value <= largest or largest != largest else value
        total = 0.0
        for column in range(rows.shape[1]):
            power = np.exp(rows[row, column] - largest)
            outputs[row, column] = power
            total += power
        for column in range(rows.shape[1]):
            outputs[row, column] = np.float32(outputs[row, column] / total)


@compiled
def _count(rows: Array, counts: Array) -> None:
    for row in range(rows.shape[0]):
        found = 0
        for column in range(rows.shape[1]):
            found += rows[row, column] != 0
        counts[row] = found
