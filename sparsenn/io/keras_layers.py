"""What Keras's layers make of a signal, by their configurations and weights.

Images are held with the channels last by Keras, unless a layer says otherwise, and with the channels first here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.io.affine import Sides
from sparsenn.io.joining import joined
from sparsenn.io.signal import Signal, named
from sparsenn.layers import Add, AvgPool2d, Concatenate, LogSoftmax, MaxPool2d, ReLU
from sparsenn.layers.activation_names import activation_elsewhere, names_elsewhere

__all__ = ["JOINS", "Layer", "Weights", "dimensions_of"]

JOINS = ("Add", "Average", "Concatenate", "Subtract")
"""Layers that take what several give."""

Weights: TypeAlias = Callable[[Sequence[str]], list[Array]]
"""Gives a layer's arrays of these names, all of which it must have, and no others."""


@dataclass(frozen=True)
class Layer:
    """A layer of Keras.

    Parameters
    ----------
    kind : the name of its class.
    config : as Keras writes it.
    weights : gives its arrays.
    channels_last : how Keras holds images.
    """

    kind: str
    config: Mapping[str, Any]
    weights: Weights
    channels_last: bool

    def __call__(self, signal: Signal) -> Signal:
        """Return what it makes of a signal.

        Raises
        ------
        InputError
            No layer here does what it does, or its configuration is not sound.
        """
        if self.kind not in _READERS:
            raise InputError("has no counterpart in sparsenn; give a model without it")
        try:
            return _READERS[self.kind](signal, self)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"has no valid configuration ({type(error).__name__}: {error})") from error

    def joined(self, signals: Sequence[Signal]) -> Signal:
        """Return what it makes of several signals.

        Raises
        ------
        InputError
            They do not go together, or are joined along another axis than that of the channels or features.
        """
        if len(signals) == 1:
            return signals[0]
        if self.kind == "Concatenate":
            _check_axis(signals[0], self)
            return joined(signals, Concatenate(len(signals)))
        if self.kind == "Subtract":
            first, second = signals
            return joined([first, second.times(-1.0)], Add())
        total = joined(signals, Add(len(signals)))
        return total.times(1 / len(signals)) if self.kind == "Average" else total

    def arrays(self, *names: str) -> list[Any]:
        """Return its arrays of these names, and its bias, or None where it has none."""
        return self.weights([*names, "bias"]) if self.config["use_bias"] else [*self.weights(names), None]

    def activated(self, signal: Signal) -> Signal:
        """Return what its activation makes of a signal: one of a name, or a layer of its own."""
        activation = self.config["activation"]
        if isinstance(activation, dict):
            inner = activation.get("config")
            if isinstance(inner, dict):
                with named("its activation"):
                    return replace(self, kind=str(activation.get("class_name")), config=inner, weights=_no_weights)(
                        signal
                    )
            activation = inner if isinstance(inner, str) else activation.get("class_name")
        if activation in ("softmax", "log_softmax"):
            return signal.softmax(LogSoftmax() if activation == "log_softmax" else None)
        if activation is None:
            return signal
        found = ReLU(6.0) if activation == "relu6" else activation_elsewhere("keras_function", activation)
        if found is None:
            known = ", ".join((*names_elsewhere("keras_function"), "relu6", "log_softmax", "softmax"))
            raise InputError(f"no layer of sparsenn has the activation {activation!r}; known: {known}")
        return signal.activated(found)


def dimensions_of(kind: str) -> int:
    """Return how many dimensions of pixels a kind of layer slides over; 0 for one that does not."""
    return next((number for number in (1, 2, 3) if f"{number}D" in kind), 0)


def _no_weights(names: Sequence[str]) -> list[Array]:
    raise InputError("an activation with weights must be a separate layer")


def _sizes(value: Any, otherwise: int, dimensions: int) -> tuple[int, int]:
    """Return one size down and one across; of sequences that down, along which they have one line, is `otherwise`."""
    sizes = [int(size) for size in value] if isinstance(value, list | tuple) else [int(value)] * dimensions
    if len(sizes) != dimensions:
        raise ValueError(f"{value} are not {dimensions} sizes")
    return (otherwise, sizes[0]) if dimensions == 1 else (sizes[0], sizes[1])


def _same(image: Sequence[int], spans: Sequence[int], stride: Sequence[int]) -> Sides:
    """Return the pixels on each side that let a window begin at every so many pixels of an image."""
    totals = [
        max((-(-size // step) - 1) * step + span - size, 0)
        for size, span, step in zip(image, spans, stride, strict=True)
    ]
    above, left = (total // 2 for total in totals)
    return (above, totals[0] - above), (left, totals[1] - left)


def _dense(signal: Signal, layer: Layer) -> Signal:
    return layer.activated(signal.connected(*layer.arrays("kernel")))


def _convolution(dimensions: int) -> Reader:
    def read(signal: Signal, layer: Layer) -> Signal:
        kernel, bias = layer.arrays("kernel")
        return layer.activated(
            _slid(signal, layer.config, kernel, bias, dimensions, int(layer.config.get("groups", 1)))
        )

    return read


def _depthwise(signal: Signal, layer: Layer) -> Signal:
    kernel, bias = layer.arrays("kernel")
    return layer.activated(_slid(signal, layer.config, _by_channel(kernel), bias, 2, kernel.shape[2]))


def _separable(signal: Signal, layer: Layer) -> Signal:
    depthwise, pointwise, bias = layer.arrays("depthwise_kernel", "pointwise_kernel")
    signal = _slid(signal, layer.config, _by_channel(depthwise), None, 2, depthwise.shape[2])
    return layer.activated(signal.convolved(pointwise.transpose(3, 2, 0, 1), bias))


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
        padding = _same(signal.images().pixels[1:], spans, stride)
    elif config["padding"] == "causal" and dimensions == 1:
        padding = (0, 0), (spans[1] - 1, 0)
    elif config["padding"] != "valid":
        raise ValueError(f"padding {config['padding']!r}")
    return signal.convolved(filters, bias, stride, padding, apart, groups)


def _batch_norm(signal: Signal, layer: Layer) -> Signal:
    config = layer.config
    names = [*(["gamma"] if config["scale"] else []), *(["beta"] if config["center"] else [])]
    names = [*names, "moving_mean", "moving_variance"]
    arrays = dict(zip(names, layer.weights(names), strict=True))
    _check_axis(signal, layer)
    spread = arrays["moving_variance"].astype(np.float64) + float(config["epsilon"])
    if not (spread > 0).all():
        raise InputError("a moving variance is not above zero")
    factor = arrays.get("gamma", 1.0) / np.sqrt(spread)
    return signal.scaled(factor, arrays.get("beta", 0.0) - arrays["moving_mean"] * factor)


def _check_axis(signal: Signal, layer: Layer) -> None:
    """Refuse to scale along another axis than that of the channels, or of a row's numbers."""
    axis = layer.config["axis"]
    (found,) = axis if isinstance(axis, list) else (axis,)
    rank = len(signal.shape) - (len(signal.shape) == 3 and signal.shape[1] == 1)
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


def _pool(dimensions: int, kind: type[AvgPool2d] | type[MaxPool2d]) -> Reader:
    def read(signal: Signal, layer: Layer) -> Signal:
        config = layer.config
        window = _sizes(config["pool_size"], 1, dimensions)
        stride = window if config.get("strides") is None else _sizes(config["strides"], 1, dimensions)
        image = signal.images().pixels[1:]
        sides = _same(image, window, stride) if config["padding"] == "same" else ((0, 0), (0, 0))
        around = sides[0][0], sides[1][0]
        if any(map(any, sides)) and (kind is AvgPool2d or any(before != after for before, after in sides)):
            raise InputError(
                f"pads images of {image[0]} × {image[1]} by {sides}; sparsenn's layers pad both "
                "sides alike, and means count the padding"
            )
        return signal.pooled(kind(window, stride, around))

    return read


def _pool_all(kind: type[AvgPool2d] | type[MaxPool2d]) -> Reader:
    def read(signal: Signal, layer: Layer) -> Signal:
        signal = signal.pooled(kind(signal.images().pixels[1:]))
        return signal if layer.config.get("keepdims") else signal.flattened()

    return read


def _reshape(signal: Signal, layer: Layer) -> Signal:
    target = [int(size) for size in layer.config["target_shape"]]
    if len(target) == 1:
        return signal.flattened(layer.channels_last)
    if len(target) not in (2, 3) or min(target) < 1:
        raise InputError(f"makes {target}; only rows and images of fixed sizes are supported")
    channels = target.pop(-1 if layer.channels_last else 0)
    if layer.channels_last and channels > 1:
        raise InputError(f"makes images of {channels} channels of rows; make the model's input such images")
    return signal.become((channels, *([1] * (2 - len(target))), *target))


def _relu(signal: Signal, layer: Layer) -> Signal:
    slope, most, threshold = (layer.config.get(key) for key in ("negative_slope", "max_value", "threshold"))
    if threshold:
        raise InputError(f"a threshold of {threshold}; sparsenn's layers have a threshold of 0")
    if slope and most is not None:
        raise InputError("both a slope below zero and a largest value; sparsenn's layers have one of them at most")
    return signal.leaked(float(slope)) if slope else signal.clipped(0.0, None if most is None else float(most))


def _leaky(signal: Signal, layer: Layer) -> Signal:
    return signal.leaked(float(layer.config["negative_slope" if "negative_slope" in layer.config else "alpha"]))


def _padding(signal: Signal, layer: Layer) -> Signal:
    given = layer.config["padding"]
    sides = [(int(each), int(each)) if isinstance(each, int) else (int(each[0]), int(each[1])) for each in given]
    return signal.padded((sides[-2] if len(sides) > 1 else (0, 0), sides[-1]))


def _parametric(signal: Signal, layer: Layer) -> Signal:
    (slopes,) = layer.weights(["alpha"])
    if slopes.size != slopes.shape[-1] or not layer.channels_last:
        raise InputError(f"has slopes of shape {slopes.shape}; one per channel is supported (shared_axes)")
    return signal.leaked(slopes.reshape(-1))


def _softmax(signal: Signal, layer: Layer) -> Signal:
    if layer.config.get("axis", -1) not in (-1, 1):
        raise InputError(
            f"a softmax along axis {layer.config['axis']}; only a softmax over the numbers of a row is supported"
        )
    return signal.softmax()


def _does_nothing(signal: Signal, layer: Layer) -> Signal:
    """Return it as it is: the layer gives the same numbers when a model predicts."""
    return signal


Reader: TypeAlias = Callable[[Signal, Layer], Signal]


def _elementwise(signal: Signal, layer: Layer) -> Signal:
    activation = activation_elsewhere("keras", layer.kind, layer.config.get)
    if activation is None:
        raise InputError("has settings that no activation of sparsenn has")
    return signal.activated(activation)


_READERS: dict[str, Reader] = {
    **dict.fromkeys(names_elsewhere("keras"), _elementwise),
    "Dense": _dense,
    "Conv1D": _convolution(1),
    "Conv2D": _convolution(2),
    "DepthwiseConv2D": _depthwise,
    "SeparableConv2D": _separable,
    "BatchNormalization": _batch_norm,
    "Normalization": _normalization,
    "Rescaling": lambda signal, layer: signal.scaled(float(layer.config["scale"]), float(layer.config["offset"])),
    "MaxPooling1D": _pool(1, MaxPool2d),
    "MaxPooling2D": _pool(2, MaxPool2d),
    "AveragePooling1D": _pool(1, AvgPool2d),
    "AveragePooling2D": _pool(2, AvgPool2d),
    "GlobalMaxPooling1D": _pool_all(MaxPool2d),
    "GlobalMaxPooling2D": _pool_all(MaxPool2d),
    "GlobalAveragePooling1D": _pool_all(AvgPool2d),
    "GlobalAveragePooling2D": _pool_all(AvgPool2d),
    "ZeroPadding2D": _padding,
    "Flatten": lambda signal, layer: signal.flattened(layer.channels_last),
    "Reshape": _reshape,
    "Activation": lambda signal, layer: layer.activated(signal),
    "ReLU": _relu,
    "LeakyReLU": _leaky,
    "PReLU": _parametric,
    "Softmax": _softmax,
    **dict.fromkeys(
        ("Dropout", "SpatialDropout1D", "SpatialDropout2D", "AlphaDropout", "GaussianDropout", "GaussianNoise"),
        _does_nothing,
    ),
    **dict.fromkeys(("ActivityRegularization", "Identity"), _does_nothing),
}
"""What each kind of layer makes of a signal."""
