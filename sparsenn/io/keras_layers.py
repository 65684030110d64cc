"""Keras's layers, told to a chain of layers by their configurations and weights.

Images are held with the channels last by Keras, unless a layer says otherwise, and with the channels first here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.io.chain import Chain, Sides
from sparsenn.layers import Activation, AvgPool2d, Identity, MaxPool2d, ReLU, Sigmoid, Tanh

__all__ = ["KerasChain", "Weights", "dimensions_of"]

Weights: TypeAlias = Callable[[Sequence[str]], list[Array]]
"""Gives a layer's arrays of these names, all of which it must have, and no others."""

_ACTIVATIONS: dict[str, Activation] = {
    "linear": Identity(),
    "relu": ReLU(),
    "relu6": ReLU(6.0),
    "sigmoid": Sigmoid(),
    "tanh": Tanh(),
}


class KerasChain(Chain):
    """A chain of Keras's layers.

    Parameters
    ----------
    shape, hint, sparse_below : as of `Chain`.
    channels_last : how Keras holds images.
    """

    def __init__(self, shape: tuple[int, ...] | None, hint: str, sparse_below: float, channels_last: bool) -> None:
        super().__init__(shape, hint, sparse_below)
        self.channels_last = channels_last

    def tell(self, kind: str, name: str, config: Mapping[str, Any], weights: Weights) -> None:
        """Add a layer of Keras.

        Parameters
        ----------
        kind : the name of its class.
        name : what messages call it.
        config : as Keras writes it.
        weights : gives its arrays.

        Raises
        ------
        InputError
            No layer here does what it does, or its configuration is not sound.
        """
        if kind not in _READERS:
            raise InputError(f"{name}: no layer here does what it does; give a model without it")
        try:
            _READERS[kind](self, name, config, weights)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{name}: has no sound configuration ({type(error).__name__}: {error})") from error

    def apply(self, name: str, activation: Any) -> None:
        """Apply what a layer's configuration calls its activation: a name, or a layer of its own."""
        if isinstance(activation, dict):
            inner = activation.get("config")
            if isinstance(inner, dict):
                self.tell(str(activation.get("class_name")), f"{name}, its activation", inner, _no_weights)
                return
            activation = inner if isinstance(inner, str) else activation.get("class_name")
        if activation == "softmax":
            self.softmax(name)
        elif activation is not None and activation not in _ACTIVATIONS:
            known = ", ".join((*_ACTIVATIONS, "softmax"))
            raise InputError(f"{name}: no layer here has the activation {activation!r}; known: {known}")
        elif activation is not None:
            self.activate(name, _ACTIVATIONS[activation])


def dimensions_of(kind: str) -> int:
    """Return how many dimensions of pixels a kind of layer slides over; 0 for one that does not."""
    return next((number for number in (1, 2, 3) if f"{number}D" in kind), 0)


def _no_weights(names: Sequence[str]) -> list[Array]:
    raise InputError("an activation with weights must be a layer of its own")


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


def _with_bias(config: Mapping[str, Any], weights: Weights, *names: str) -> list[Any]:
    """Return a layer's arrays, and its bias, or None where it has none."""
    return weights([*names, "bias"]) if config["use_bias"] else [*weights(names), None]


def _dense(chain: KerasChain, name: str, config: Mapping[str, Any], weights: Weights) -> None:
    kernel, bias = _with_bias(config, weights, "kernel")
    chain.connect(name, kernel, bias)
    chain.apply(name, config["activation"])


def _convolution(dimensions: int) -> Reader:
    def read(chain: KerasChain, name: str, config: Mapping[str, Any], weights: Weights) -> None:
        kernel, bias = _with_bias(config, weights, "kernel")
        _slide(chain, name, config, kernel, bias, dimensions, int(config.get("groups", 1)))
        chain.apply(name, config["activation"])

    return read


def _depthwise(chain: KerasChain, name: str, config: Mapping[str, Any], weights: Weights) -> None:
    kernel, bias = _with_bias(config, weights, "kernel")
    _slide(chain, name, config, _by_channel(kernel), bias, 2, kernel.shape[2])
    chain.apply(name, config["activation"])


def _separable(chain: KerasChain, name: str, config: Mapping[str, Any], weights: Weights) -> None:
    depthwise, pointwise, bias = _with_bias(config, weights, "depthwise_kernel", "pointwise_kernel")
    _slide(chain, name, config, _by_channel(depthwise), None, 2, depthwise.shape[2])
    chain.convolve(name, pointwise.transpose(3, 2, 0, 1), bias)
    chain.apply(name, config["activation"])


def _by_channel(kernel: Array) -> Array:
    """Return filters of each channel, (height, width, channels, filters of each), as those of a grouped convolution."""
    height, width, channels, each = kernel.shape
    return kernel.reshape(height, width, 1, channels * each)


def _slide(
    chain: KerasChain,
    name: str,
    config: Mapping[str, Any],
    kernel: Array,
    bias: Array | None,
    dimensions: int,
    groups: int,
) -> None:
    """Add a convolution with a kernel of shape (height, width, channels / groups, filters), or without the height."""
    kernel = kernel[None] if dimensions == 1 else kernel
    if kernel.ndim != 4:
        raise ValueError(f"a kernel of shape {kernel.shape}")
    filters = np.ascontiguousarray(kernel.transpose(3, 2, 0, 1))
    stride = _sizes(config["strides"], 1, dimensions)
    apart = _sizes(config["dilation_rate"], 1, dimensions)
    spans = [apart[axis] * (filters.shape[2 + axis] - 1) + 1 for axis in (0, 1)]
    padding: Sides = (0, 0), (0, 0)
    if config["padding"] == "same":
        padding = _same(chain.image(name)[1:], spans, stride)
    elif config["padding"] == "causal" and dimensions == 1:
        padding = (0, 0), (spans[1] - 1, 0)
    elif config["padding"] != "valid":
        raise ValueError(f"padding {config['padding']!r}")
    chain.convolve(name, filters, bias, stride, padding, apart, groups)


def _batch_norm(chain: KerasChain, name: str, config: Mapping[str, Any], weights: Weights) -> None:
    names = [*(["gamma"] if config["scale"] else []), *(["beta"] if config["center"] else [])]
    arrays = dict(zip((*names, "mean", "variance"), weights([*names, "moving_mean", "moving_variance"]), strict=True))
    _check_axis(chain, name, config["axis"])
    spread = arrays["variance"].astype(np.float64) + float(config["epsilon"])
    if not (spread > 0).all():
        raise InputError(f"{name}: a moving variance is not above zero")
    factor = arrays.get("gamma", 1.0) / np.sqrt(spread)
    chain.scale(name, factor, arrays.get("beta", 0.0) - arrays["mean"] * factor)


def _check_axis(chain: KerasChain, name: str, axis: Any) -> None:
    """Refuse to scale along another axis than that of the channels, or of a row's numbers."""
    (found,) = axis if isinstance(axis, list) else (axis,)
    rank = 1 if chain.shape is None else len(chain.shape) - (len(chain.shape) == 3 and chain.shape[1] == 1)
    lasts = {-1, rank, rank + 1} if chain.channels_last else {1}
    if found not in (lasts if rank > 1 else {-1, 1}):
        raise InputError(f"{name}: works along axis {axis}; that of the channels is known here")


def _normalization(chain: KerasChain, name: str, config: Mapping[str, Any], weights: Weights) -> None:
    if config.get("invert"):
        raise InputError(f"{name}: inverts a normalisation, which no layer here does")
    _check_axis(chain, name, config["axis"])
    if config.get("mean") is None:
        mean, variance, _ = weights(["mean", "variance", "count"])
    else:
        mean, variance = (np.asarray(config[key], np.float64).reshape(-1) for key in ("mean", "variance"))
    factor = 1 / np.maximum(np.sqrt(variance.astype(np.float64).reshape(-1)), 1e-7)
    chain.scale(name, factor, -mean.reshape(-1) * factor)


def _rescaling(chain: KerasChain, name: str, config: Mapping[str, Any], weights: Weights) -> None:
    chain.scale(name, np.float64(config["scale"]), np.float64(config["offset"]))


def _pool(dimensions: int, kind: type[AvgPool2d] | type[MaxPool2d]) -> Reader:
    def read(chain: KerasChain, name: str, config: Mapping[str, Any], weights: Weights) -> None:
        window = _sizes(config["pool_size"], 1, dimensions)
        stride = window if config.get("strides") is None else _sizes(config["strides"], 1, dimensions)
        image = chain.image(name)[1:]
        sides = _same(image, window, stride) if config["padding"] == "same" else ((0, 0), (0, 0))
        around = sides[0][0], sides[1][0]
        if any(map(any, sides)) and (kind is AvgPool2d or any(before != after for before, after in sides)):
            raise InputError(
                f"{name}: pads images of {image[0]} × {image[1]} by {sides}; layers here pad both sides alike, "
                "and means count what is padded"
            )
        chain.pool(name, kind(window, stride, around))

    return read


def _pool_all(kind: type[AvgPool2d] | type[MaxPool2d]) -> Reader:
    def read(chain: KerasChain, name: str, config: Mapping[str, Any], weights: Weights) -> None:
        _, height, width = chain.image(name)
        chain.pool(name, kind((height, width)))
        if not config.get("keepdims"):
            chain.flatten()

    return read


def _reshape(chain: KerasChain, name: str, config: Mapping[str, Any], weights: Weights) -> None:
    target = [int(size) for size in config["target_shape"]]
    if len(target) == 1:
        chain.flatten(chain.channels_last)
        return
    if len(target) not in (2, 3) or min(target) < 1:
        raise InputError(f"{name}: makes {target}; rows and images of stated sizes are known here")
    channels = target.pop(-1 if chain.channels_last else 0)
    if chain.channels_last and channels > 1:
        raise InputError(f"{name}: makes images of {channels} channels of rows; have the input be such images")
    chain.become(name, (channels, *([1] * (2 - len(target))), *target))


def _relu(chain: KerasChain, name: str, config: Mapping[str, Any], weights: Weights) -> None:
    slope, most, threshold = (config.get(key) for key in ("negative_slope", "max_value", "threshold"))
    if threshold:
        raise InputError(f"{name}: a threshold of {threshold}; layers here have it at 0")
    if slope:
        if most is not None:
            raise InputError(f"{name}: a slope below zero and a largest value; layers here have one of them")
        chain.leak(name, float(slope))
    else:
        chain.clip(name, 0.0, None if most is None else float(most))


def _leaky(chain: KerasChain, name: str, config: Mapping[str, Any], weights: Weights) -> None:
    chain.leak(name, float(config["negative_slope"] if "negative_slope" in config else config["alpha"]))


def _parametric(chain: KerasChain, name: str, config: Mapping[str, Any], weights: Weights) -> None:
    (slopes,) = weights(["alpha"])
    if slopes.size != slopes.shape[-1] or not chain.channels_last:
        raise InputError(f"{name}: has slopes of shape {slopes.shape}; one a channel is known here (shared_axes)")
    chain.leak(name, slopes.reshape(-1))


def _softmax(chain: KerasChain, name: str, config: Mapping[str, Any], weights: Weights) -> None:
    if config.get("axis", -1) not in (-1, 1):
        raise InputError(f"{name}: a softmax along axis {config['axis']}; that over a row's numbers is known here")
    chain.softmax(name)


def _does_nothing(chain: KerasChain, name: str, config: Mapping[str, Any], weights: Weights) -> None:
    """Leave out what gives the same numbers when a model predicts."""


Reader: TypeAlias = Callable[[KerasChain, str, Mapping[str, Any], Weights], None]

_READERS: dict[str, Reader] = {
    "Dense": _dense,
    "Conv1D": _convolution(1),
    "Conv2D": _convolution(2),
    "DepthwiseConv2D": _depthwise,
    "SeparableConv2D": _separable,
    "BatchNormalization": _batch_norm,
    "Normalization": _normalization,
    "Rescaling": _rescaling,
    "MaxPooling1D": _pool(1, MaxPool2d),
    "MaxPooling2D": _pool(2, MaxPool2d),
    "AveragePooling1D": _pool(1, AvgPool2d),
    "AveragePooling2D": _pool(2, AvgPool2d),
    "GlobalMaxPooling1D": _pool_all(MaxPool2d),
    "GlobalMaxPooling2D": _pool_all(MaxPool2d),
    "GlobalAveragePooling1D": _pool_all(AvgPool2d),
    "GlobalAveragePooling2D": _pool_all(AvgPool2d),
    "Flatten": lambda chain, name, config, weights: chain.flatten(chain.channels_last),
    "Reshape": _reshape,
    "Activation": lambda chain, name, config, weights: chain.apply(name, config["activation"]),
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
"""What tells a chain of each kind of layer."""
