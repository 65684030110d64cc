"""What Keras's layers make of a signal, by their configurations and weights.

Images are held with the channels last by Keras, unless a layer says otherwise, and with the channels first here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from sparsenn.errors import InputError, prefix_errors
from sparsenn.formats import Array
from sparsenn.io.importers.affine import Sides
from sparsenn.io.importers.axes import take, transpose
from sparsenn.io.importers.combinations import combined, multiplied
from sparsenn.io.importers.keras.reading import Layer, Reading, class_of, constant
from sparsenn.io.importers.normalising import normalise, normalise_by
from sparsenn.io.importers.signal import Signal
from sparsenn.io.importers.windows import convolve, pad_with_zeros, pool, same_sides
from sparsenn.layers import Activation, Add, AvgPool2d, Concatenate, LogSoftmax, MaxPool2d, ReLU
from sparsenn.layers.activation_names import activation_elsewhere, attributes_elsewhere, names_elsewhere

JOINS = ("Add", "Average", "Concatenate", "Multiply", "Subtract")
"""Layers that take what several give."""


def _activated(signal: Signal, layer: Layer) -> Signal:
    activation = layer.config["activation"]
    if isinstance(activation, dict):
        kind, inner = class_of(activation), activation.get("config")
        if isinstance(inner, dict):
            with prefix_errors("its activation"):
                return replace(layer, kind=kind, config=inner, weights=_no_weights).read(LAYERS.get(kind), signal)
        raise InputError(f"has the activation {inner or kind}, which is not Keras's own; give a model without it")
    if activation in ("softmax", "log_softmax"):
        return signal.softmax(LogSoftmax() if activation == "log_softmax" else None)
    if activation is None:
        return signal
    found = ReLU(6.0) if activation == "relu6" else activation_elsewhere("keras_function", activation)
    if found is None:
        known = ", ".join((*names_elsewhere("keras_function"), "relu6", "log_softmax", "softmax"))
        raise InputError(f"no layer of sparsenn has the activation {activation!r}; known: {known}")
    return applied(signal, found)


def applied(signal: Signal, activation: Activation) -> Signal:
    """Return what an activation makes of a signal."""
    return _imaged(signal).activated(activation)


def dimensions_of(kind: str) -> int:
    """Return how many dimensions of pixels a kind of layer slides over; 0 for one that does not."""
    return next((number for number in (1, 2, 3) if f"{number}D" in kind), 0)


def _no_weights(names: Sequence[str]) -> list[Array]:
    raise InputError("an activation with weights must be a separate layer")


def _sizes(value: Any, otherwise: int, dimensions: int) -> tuple[int, int]:
    """Return one size down and one across; of sequences that down, along which they have one line, is `otherwise`."""
    sizes = [int(size) for size in value] if isinstance(value, list | tuple) else [int(value)] * dimensions
    if len(sizes) != dimensions or min(sizes) < 1:
        raise ValueError(f"{value} are not {dimensions} sizes of at least 1")
    return (otherwise, sizes[0]) if dimensions == 1 else (sizes[0], sizes[1])


def _convolution(dimensions: int, signal: Signal, layer: Layer) -> Signal:
    kernel, bias = layer.arrays("kernel")
    groups = int(layer.config.get("groups", 1))
    return _activated(_slid(signal, layer.config, kernel, bias, dimensions, groups), layer)


def _depthwise(signal: Signal, layer: Layer) -> Signal:
    kernel, bias = layer.arrays("kernel")
    return _activated(_slid(signal, layer.config, _by_channel(kernel), bias, 2, kernel.shape[2]), layer)


def _separable(signal: Signal, layer: Layer) -> Signal:
    depthwise, pointwise, bias = layer.arrays("depthwise_kernel", "pointwise_kernel")
    signal = _slid(signal, layer.config, _by_channel(depthwise), None, 2, depthwise.shape[2])
    return _activated(convolve(signal, pointwise.transpose(3, 2, 0, 1), bias), layer)


def _by_channel(kernel: Array) -> Array:
    """Return filters of each channel, (height, width, channels, filters of each), as those of a grouped convolution."""
    height, width, channels, each = kernel.shape
    return kernel.reshape(height, width, 1, channels * each)


def _slid(
    signal: Signal, config: Mapping[str, Any], kernel: Array, bias: Array | None, dimensions: int, groups: int
) -> Signal:
    """Return a convolution with a kernel (height, width, channels / groups, filters), or one without the height."""
    kernel = kernel[None] if dimensions == 1 else kernel
    if kernel.ndim != 4:
        raise ValueError(f"a kernel of shape {kernel.shape}")
    filters = np.ascontiguousarray(kernel.transpose(3, 2, 0, 1))
    stride = _sizes(config["strides"], 1, dimensions)
    apart = _sizes(config["dilation_rate"], 1, dimensions)
    spans = [apart[axis] * (filters.shape[2 + axis] - 1) + 1 for axis in (0, 1)]
    padding: Sides = (0, 0), (0, 0)
    if config["padding"] == "same":
        padding = same_sides(signal.images().pixels[1:], spans, stride)
    elif config["padding"] == "causal" and dimensions == 1:
        padding = (0, 0), (spans[1] - 1, 0)
    elif config["padding"] != "valid":
        raise ValueError(f"padding {config['padding']!r}")
    return convolve(signal, filters, bias, stride, padding, apart, groups)


def _batch_norm(signal: Signal, layer: Layer) -> Signal:
    config = layer.config
    names = [*_scale_and_centre(config), "moving_mean", "moving_variance"]
    arrays = dict(zip(names, layer.weights(names), strict=True))
    _check_axis(signal, layer)
    moving = arrays["moving_mean"], arrays["moving_variance"]
    return normalise_by(signal, *moving, float(config["epsilon"]), arrays.get("gamma"), arrays.get("beta"))


def _scale_and_centre(config: Mapping[str, Any]) -> list[str]:
    return [name for name, setting in (("gamma", "scale"), ("beta", "center")) if config[setting]]


def _layer_norm(signal: Signal, layer: Layer) -> Signal:
    """Return normalised rows; of images and sequences with the channels last, along the channels, or all axes."""
    config = layer.config
    if config.get("rms_scaling"):
        raise InputError("divides by the mean square alone (rms_scaling); sparsenn's layers also subtract the mean")
    names = _scale_and_centre(config)
    arrays = dict(zip(names, layer.weights(names), strict=True))
    rank = len(signal.shape)
    listed = config["axis"] if isinstance(config["axis"], list) else [config["axis"]]
    axes = sorted(int(axis) % (rank + 1) for axis in listed)
    if axes != list(range(rank + 1 - len(axes), rank + 1)) or not rank:
        raise InputError(f"normalises along {listed}; the last axes are needed")
    moves = layer.channels_last and rank > 1
    signal = transpose(signal.images(), [0, *range(2, rank + 1), 1]) if moves else signal
    sizes = signal.shape[-len(axes) :] or (arrays[names[0]].size,)
    signal = normalise(signal, sizes, arrays.get("gamma"), arrays.get("beta"), float(config["epsilon"]))
    return transpose(signal, [0, rank, *range(1, rank)]) if moves else signal


def _check_axis(signal: Signal, layer: Layer) -> None:
    """Refuse to scale along another axis than that of the channels, or of a row's numbers."""
    axis = layer.config["axis"]
    (found,) = axis if isinstance(axis, list) else (axis,)
    rank = len(signal.shape)
    lasts = {-1, rank, rank + 1} if layer.channels_last else {1}
    if found not in (lasts if rank > 1 else {-1, 1}):
        raise InputError(f"works along axis {axis}; only the axis of the channels is supported")


def _normalization(signal: Signal, layer: Layer) -> Signal:
    if layer.config.get("invert"):
        raise InputError("inverts a normalisation, which no layer of sparsenn does")
    _check_axis(signal, layer)
    if layer.config.get("mean") is None:
        mean, variance, _ = layer.weights(["mean", "variance", "count"])
    else:
        mean, variance = (np.asarray(layer.config[key], np.float64).reshape(-1) for key in ("mean", "variance"))
    factor = 1 / np.maximum(np.sqrt(variance.astype(np.float64).reshape(-1)), 1e-7)
    return signal.scaled(factor, -mean.reshape(-1) * factor)


def _rescaling(signal: Signal, layer: Layer) -> Signal:
    scale, offset = (constant(signal, layer.config[key], layer.channels_last) for key in ("scale", "offset"))
    return signal.times(scale).plus(offset)


def _pool(dimensions: int, kind: type[AvgPool2d] | type[MaxPool2d], signal: Signal, layer: Layer) -> Signal:
    config = layer.config
    window = _sizes(config["pool_size"], 1, dimensions)
    stride = window if config.get("strides") is None else _sizes(config["strides"], 1, dimensions)
    image = signal.images().pixels[1:]
    sides = same_sides(image, window, stride) if config["padding"] == "same" else ((0, 0), (0, 0))
    return pool(signal, kind, window, stride, sides, counts_padding=False)


def _pool_all(kind: type[AvgPool2d] | type[MaxPool2d], signal: Signal, layer: Layer) -> Signal:
    signal = signal.pooled(kind(signal.images().pixels[1:]))
    return signal if layer.config.get("keepdims") else signal.flattened()


def _flatten(signal: Signal, layer: Layer) -> Signal:
    """Return rows. Channels that come first by the layer's own configuration are put last, whichever way they lie."""
    rows = signal.flattened(layer.channels_last)
    if layer.config.get("data_format") != "channels_first" or len(signal.shape) == 1:
        return rows
    held = (*signal.shape[1:], signal.shape[0]) if layer.channels_last else signal.shape
    taken = np.moveaxis(np.arange(signal.width).reshape(held), 0, -1).ravel()
    order = taken if rows.order is None else rows.order[taken]
    return replace(rows, order=None if (order == np.arange(order.size)).all() else order)


def reshaped(signal: Signal, shape: Sequence[Any], channels_last: bool) -> Signal:
    """Return rows of another shape, in which -1 stands for as many numbers as are left."""
    target = [int(size) for size in shape]
    rest = prod(size for size in target if size != -1)
    if target.count(-1) == 1 and rest > 0 and signal.width % rest == 0:
        target[target.index(-1)] = signal.width // rest
    if len(target) not in (1, 2, 3) or min(target) < 1:
        raise InputError(f"makes {target}; only rows and images of fixed sizes are supported")
    if signal.width not in (0, prod(target)):
        raise InputError(f"makes {target} of rows of {signal.width} numbers")
    rows = signal.flattened(channels_last)
    if len(target) == 1:
        return rows
    channels = target.pop(-1 if channels_last else 0)
    if channels_last and channels > 1 and prod(target) > 1:
        raise InputError(f"makes images of {channels} channels of rows; make the model's input such images")
    return rows.become((channels, *target))


def relu(signal: Signal, layer: Layer) -> Signal:
    """Return a signal with what is below zero taken for zero, or multiplied, and what is too large taken for less."""
    slope, most, threshold = (layer.config.get(key) for key in ("negative_slope", "max_value", "threshold"))
    if threshold:
        raise InputError(f"a threshold of {threshold}; sparsenn's layers have a threshold of 0")
    if slope and most is not None:
        raise InputError("both a slope below zero and a largest value; sparsenn's layers have one of them at most")
    return leaked(signal, slope) if slope else clipped(signal, 0.0, most)


def clipped(signal: Signal, least: Any, most: Any) -> Signal:
    """Return a signal clipped to two numbers, of which None is no bound."""
    if np.ndim(least) or np.ndim(most):
        raise InputError("clips at one bound per number; one bound for all of them is supported")
    return _imaged(signal).clipped(*(None if bound is None else float(bound) for bound in (least, most)))


def leaked(signal: Signal, slope: Any) -> Signal:
    """Return a signal with what is below zero multiplied by a number."""
    return _imaged(signal).leaked(float(slope))


def _imaged(signal: Signal) -> Signal:
    """Return a sequence at a model's input as images, as layers that compute one by one also take it."""
    return signal.images() if len(signal.shape) == 2 else signal


def _padding(signal: Signal, layer: Layer) -> Signal:
    padding = layer.config["padding"]
    sides = [(int(each), int(each)) if isinstance(each, int) else (int(each[0]), int(each[1])) for each in padding]
    return pad_with_zeros(signal, (sides[-2] if len(sides) > 1 else (0, 0), sides[-1]))


def _cropping(signal: Signal, layer: Layer) -> Signal:
    cropping = layer.config["cropping"]
    sides = [cropping] if isinstance(cropping[0], int) else cropping
    if signal.axis != 0 or len(signal.shape) != 1 + len(sides):
        raise InputError(f"crops {len(sides)} axes of {signal}; one less than an input has is needed")
    for axis, (first, last) in enumerate(sides, start=2):
        signal = take(signal, axis, np.arange(int(first), signal.shape[axis - 1] - int(last)))
    return signal


def _parametric(signal: Signal, layer: Layer) -> Signal:
    (slopes,) = layer.weights(["alpha"])
    if slopes.size != slopes.shape[-1] or not layer.channels_last:
        raise InputError(f"has slopes of shape {slopes.shape}; one per channel is supported (shared_axes)")
    return _imaged(signal).leaked(slopes.reshape(-1))


def softmax(signal: Signal, layer: Layer) -> Signal:
    """Return shares of one of the numbers of a row."""
    if layer.config.get("axis", -1) not in (-1, 1):
        raise InputError(
            f"a softmax along axis {layer.config['axis']}; only a softmax over the numbers of a row is supported"
        )
    return signal.softmax()


def _does_nothing(signal: Signal, layer: Layer) -> Signal:
    return signal


def _added(signals: Sequence[Signal], layer: Layer) -> Signal:
    return combined(signals, Add()) if len(signals) > 1 else signals[0]


def _subtracted(signals: Sequence[Signal], layer: Layer) -> Signal:
    first, second = signals
    return combined([first, second.times(-1.0)], Add())


def concatenated(signals: Sequence[Signal], layer: Layer) -> Signal:
    """Return the channels, or features, of several signals."""
    _check_axis(signals[0], layer)
    return combined(signals, Concatenate()) if len(signals) > 1 else signals[0]


_POOLS = (("Max", MaxPool2d), ("Average", AvgPool2d))
_PRODUCT = "activation use_bias"
_SLIDING = "kernel_size strides padding data_format dilation_rate groups"
_NORM = (
    "axis epsilon center scale momentum synchronized fused virtual_batch_size renorm renorm_clipping renorm_momentum"
)
_POOLING = "pool_size strides padding data_format"


def _elementwise(signal: Signal, layer: Layer) -> Signal:
    activation = activation_elsewhere("keras", layer.kind, layer.config.get)
    if activation is None:
        raise InputError("has settings that no activation of sparsenn has")
    return applied(signal, activation)


LAYERS: dict[str, Reading] = {
    **{name: Reading(_elementwise, " ".join(attributes_elsewhere("keras", name))) for name in names_elsewhere("keras")},
    "Add": Reading(_added),
    "Average": Reading(lambda signals, layer: _added(signals, layer).times(1 / len(signals))),
    "Concatenate": Reading(concatenated, "axis"),
    "Multiply": Reading(lambda signals, layer: multiplied(signals) if len(signals) > 1 else signals[0]),
    "Subtract": Reading(_subtracted),
    "Dense": Reading(
        lambda signal, layer: _activated(signal.connected(*layer.arrays("kernel")), layer), f"units {_PRODUCT}"
    ),
    **{f"Conv{number}D": Reading(partial(_convolution, number), f"filters {_SLIDING} {_PRODUCT}") for number in (1, 2)},
    "DepthwiseConv2D": Reading(_depthwise, f"depth_multiplier filters {_SLIDING} {_PRODUCT}"),
    "SeparableConv2D": Reading(_separable, f"depth_multiplier filters {_SLIDING} {_PRODUCT}"),
    "BatchNormalization": Reading(_batch_norm, _NORM),
    "LayerNormalization": Reading(_layer_norm, "axis epsilon center scale rms_scaling"),
    "Normalization": Reading(_normalization, "axis mean variance invert"),
    "Rescaling": Reading(_rescaling, "scale offset"),
    **{
        f"{name}Pooling{number}D": Reading(partial(_pool, number, kind), _POOLING)
        for name, kind in _POOLS
        for number in (1, 2)
    },
    **{
        f"Global{name}Pooling{number}D": Reading(partial(_pool_all, kind), "data_format keepdims")
        for name, kind in _POOLS
        for number in (1, 2)
    },
    "ZeroPadding2D": Reading(_padding, "padding data_format"),
    "Cropping1D": Reading(_cropping, "cropping"),
    "Cropping2D": Reading(_cropping, "cropping data_format"),
    "Flatten": Reading(_flatten, "data_format"),
    "Reshape": Reading(
        lambda signal, layer: reshaped(signal, layer.config["target_shape"], layer.channels_last), "target_shape"
    ),
    "Activation": Reading(_activated, "activation"),
    "ReLU": Reading(relu, "negative_slope max_value threshold"),
    "LeakyReLU": Reading(
        lambda signal, layer: leaked(signal, layer.config.get("negative_slope", layer.config.get("alpha"))),
        "negative_slope alpha",
    ),
    "PReLU": Reading(_parametric, "shared_axes"),
    "Softmax": Reading(softmax, "axis"),
    **dict.fromkeys(
        ("Dropout", "SpatialDropout1D", "SpatialDropout2D", "AlphaDropout", "GaussianDropout", "GaussianNoise"),
        Reading(_does_nothing, "rate noise_shape stddev data_format"),
    ),
    **dict.fromkeys(
        (f"Random{name}" for name in ["Brightness", "Contrast", "Flip", "Rotation", "Translation", "Zoom"]),
        Reading(
            _does_nothing,
            "data_format factor fill_mode fill_value height_factor interpolation mode seed value_range width_factor",
        ),
    ),
    "ActivityRegularization": Reading(_does_nothing, "l1 l2"),
    "Identity": Reading(_does_nothing),
}
"""How each kind of layer is read."""
