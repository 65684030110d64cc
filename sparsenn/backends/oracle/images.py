"""The oracle for layers of images: float64, NumPy, windows cut out of padded images, nothing clever."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sparsenn.backends.kernel_records import ConvolutionKernel
from sparsenn.backends.registry import register
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.layers import (
    AvgPool2d,
    Conv2d,
    Flatten,
    ImageLayer,
    LayerNorm,
    LogSoftmax,
    MaxPool2d,
    Slice,
    SoftmaxLayer,
)
from sparsenn.layers.images import Pair, SlidingWindow
from sparsenn.runtime.workers import chunks

WINDOW_BYTES = 256 << 20  # windows that are cut out at a time


@singledispatch
def _forward(layer: Any, images: Array) -> Array:
    raise UsageError(f"the reference does not know the layer {type(layer).__name__}")


def forward_images(layer: ImageLayer, images: Array) -> Array:
    """Compute one layer in float64."""
    shape = layer.output_shape(images.shape)
    return _forward(layer, images.astype(np.float64)).reshape(shape)


@_forward.register
def convolve(layer: Conv2d, images: Array) -> Array:
    """Compute a convolution of (images, channels, height, width), in float64."""
    shape = layer.output_shape(images.shape)
    weights = np.split(layer.weights.astype(np.float64), layer.groups)
    bias = layer.bias_vector().astype(np.float64)[:, None, None]

    def product(windows: Array) -> Array:
        """Sum over the channels of each group, and over the rows and columns of a filter."""
        parts = zip(np.split(windows, layer.groups, axis=1), weights, strict=True)
        sums = [np.tensordot(part, filters, axes=([1, 4, 5], [1, 2, 3])) for part, filters in parts]
        return layer.activation(np.concatenate(sums, axis=3).transpose(0, 3, 1, 2) + bias)

    return _over_windows(images, shape, layer.sliding_window, layer.sliding_window.padding, 0.0, product)


@_forward.register
def _max_pool(layer: MaxPool2d, images: Array) -> Array:
    shape = layer.output_shape(images.shape)
    sides = layer.sliding_window, layer.after
    return _over_windows(images, shape, *sides, -np.inf, lambda windows: np.max(windows, axis=(4, 5)))


@_forward.register
def _average_pool(layer: AvgPool2d, images: Array) -> Array:
    shape, sides = layer.output_shape(images.shape), (layer.sliding_window, layer.after)

    def means(pixels: Array) -> Array:
        return _over_windows(pixels, shape, *sides, 0.0, lambda windows: np.mean(windows, axis=(4, 5)))

    return means(images) if layer.counts_padding else means(images) / means(np.ones(images.shape))


def softmax(rows: Array) -> Array:
    """Return exp(y) / sum of exp(y) for each row, float64; a NaN, or an infinite sum, makes its row NaN."""
    if not rows.size:
        return rows.astype(np.float64)
    with np.errstate(invalid="ignore"):
        powers = np.exp(rows - rows.max(axis=1, keepdims=True))
        shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _logarithms(rows: Array) -> Array:
    """Return y - log(sum of exp(y)) for each row, float64; a NaN, or an infinite sum, makes its row NaN."""
    if not rows.size:
        return rows.astype(np.float64)
    with np.errstate(invalid="ignore"):
        shifted = rows.astype(np.float64) - rows.max(axis=1, keepdims=True)
        logarithms: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logarithms


@_forward.register
def _softmax(layer: SoftmaxLayer, images: Array) -> Array:
    rows = images.reshape(images.shape[0], prod(images.shape[1:]))
    return _logarithms(rows) if isinstance(layer, LogSoftmax) else softmax(rows)


@_forward.register
def _layer_norm(layer: LayerNorm, images: Array) -> Array:
    values = images.reshape(images.shape[0] * layer.positions, layer.width)
    with np.errstate(invalid="ignore"):  # infinite numbers have no mean
        centred = values - values.mean(axis=1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + layer.epsilon)
        normalised: Array = centred / deviation * layer.scale + layer.shift
    return normalised


@_forward.register
def _flatten(layer: Flatten, images: Array) -> Array:
    return images


@_forward.register
def _slice(layer: Slice, images: Array) -> Array:
    return images[(slice(None),) * (1 + layer.axis) + (slice(layer.first, layer.last),)]


def _over_windows(
    images: Array,
    shape: tuple[int, ...],
    window: SlidingWindow,
    after: Pair,
    padding_value: float,
    reduced: Callable[[Array], Array],
) -> Array:
    """Reduce all windows of padded images to `shape`, some images at a time.

    `reduced` takes float64 (images, channels, output height, output width, window height, window width).
    """
    size, stride, (above, beside), dilation = window
    span_down, span_across = (gap * (taps - 1) + 1 for taps, gap in zip(size, dilation, strict=True))
    found = np.empty(shape)
    image_bytes = 8 * images.shape[1] * prod(shape[2:]) * prod(size)
    for first, last in chunks(images.shape[0], max(1, WINDOW_BYTES // image_bytes)):
        padded = np.pad(
            images[first:last].astype(np.float64),
            ((0, 0), (0, 0), (above, after[0]), (beside, after[1])),
            constant_values=padding_value,
        )
        windows = sliding_window_view(padded, (span_down, span_across), axis=(2, 3))
        chosen = windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
        found[first:last] = reduced(chosen)
    return found


REFERENCE = register(
    ConvolutionKernel(
        name="reference",
        device="reference",
        summary="windows cut out of the images, summed in float64: the oracle",
        launch=convolve,
        auto=True,
    )
)
