"""PyTorch's functions as operations on a signal. Parameters have PyTorch's names: of its operators, and of its modules.

Sequences are images of one line; sizes come one for each direction, or one for all. All raise `InputError` where no
layer does what is asked for, or where shapes do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from sparsenn.errors import InputError, ShapeError
from sparsenn.io.importers.affine import Sides
from sparsenn.io.importers.combinations import product_per_position
from sparsenn.io.importers.host_arrays import host_array, host_matrix
from sparsenn.io.importers.normalising import normalise, normalise_by
from sparsenn.io.importers.signal import Signal
from sparsenn.io.importers.windows import convolve, pad_with_zeros, pool
from sparsenn.layers import AvgPool2d, MaxPool2d, SoftmaxLayer
from sparsenn.layers.activation_names import activation_elsewhere

Size = int | Sequence[int] | None


def linear(signal: Signal, weight: Any, bias: Any = None) -> Signal:
    """Return the product along the last axis with weights of shape (outputs, inputs)."""
    weights, addend = host_matrix("weight", weight).T, _optional("bias", bias)
    if len(signal.shape) == 1 or signal.shape[-1] != weights.shape[0]:
        return signal.connected(weights, addend)
    made = product_per_position(signal.in_order(), weights)
    return made if addend is None else made.plus(addend)


def convolution(
    signal: Signal,
    weight: Any,
    bias: Any = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    padding_mode: str | None = None,
) -> Signal:
    """Return the convolution of images or sequences."""
    if padding_mode not in (None, "zeros") and padding not in (0, (0,), (0, 0), "valid"):
        raise InputError(f"pads by {padding_mode!r}; sparsenn's layers pad with zeros")
    filters = host_array("weight", weight)
    dimensions = filters.ndim - 2
    if dimensions not in (1, 2):
        raise InputError(f"a convolution in {dimensions} dimensions; 1 and 2 are supported")
    _check_rank(signal, dimensions)
    filters = filters[:, :, None, :] if dimensions == 1 else filters
    apart = _pair(dilation, 1, dimensions)
    if padding == "same":
        totals = [apart[axis] * (filters.shape[2 + axis] - 1) for axis in (0, 1)]
        sides: Sides = tuple((total // 2, total - total // 2) for total in totals)  # type: ignore[assignment]
    else:
        down, across = _pair(0 if padding == "valid" else padding, 0, dimensions)  # type: ignore[arg-type]
        sides = (down, down), (across, across)
    return convolve(signal, filters, _optional("bias", bias), _pair(stride, 1, dimensions), sides, apart, groups)


def batch_norm(signal: Signal, weight: Any, bias: Any, running_mean: Any, running_var: Any, eps: float) -> Signal:
    """Return the normalisation by running means and variances."""
    if running_mean is None or running_var is None:
        raise InputError("normalises by each batch's own mean and variance; only running ones are supported")
    means, variances = host_array("running mean", running_mean), host_array("running variance", running_var)
    return normalise_by(signal, means, variances, eps, _optional("weight", weight), _optional("bias", bias))


def layer_norm(signal: Signal, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Signal:
    """Return the normalisation of the numbers along the last axes, of these sizes."""
    scale, shift = _optional("weight", weight), _optional("bias", bias)
    return normalise(signal, [int(size) for size in normalized_shape], scale, shift, eps)


def max_pool(
    dimensions: int,
    signal: Signal,
    kernel_size: Size,
    stride: Size,
    padding: Size,
    dilation: Size,
    ceil_mode: bool,
    return_indices: bool = False,
) -> Signal:
    """Return the largest of each window."""
    if return_indices:
        raise InputError("also gives indices; sparsenn's layers give only the largest numbers")
    if _pair(dilation, 1, dimensions) != (1, 1):
        raise InputError(f"a dilation of {dilation}; sparsenn's layers pool windows without gaps")
    return _pooled(signal, MaxPool2d, dimensions, kernel_size, stride, padding, ceil_mode)


def average_pool(
    dimensions: int,
    signal: Signal,
    kernel_size: Size,
    stride: Size,
    padding: Size,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None = None,
) -> Signal:
    """Return the mean of each window."""
    if divisor_override is None:
        return _pooled(signal, AvgPool2d, dimensions, kernel_size, stride, padding, ceil_mode, count_include_pad)
    if ceil_mode:
        raise InputError("divides sums by a number of its own, of windows that may end beyond the image (ceil_mode)")
    means = _pooled(signal, AvgPool2d, dimensions, kernel_size, stride, padding, ceil_mode)
    return means.times(prod(_pair(kernel_size, 1, dimensions)) / divisor_override)


def adaptive_pool(dimensions: int, signal: Signal, output_size: Any) -> Signal:
    """Return means of windows, so that images have a size, of which None is one that stays."""
    _check_rank(signal, dimensions)
    image = signal.images().pixels[1:]
    sizes = list(output_size) if isinstance(output_size, Sequence) else [output_size] * dimensions
    wanted = [1] * (2 - len(sizes)) + sizes
    sizes = [whole if part is None else part for whole, part in zip(image, wanted, strict=True)]
    if any(part < 1 or whole % part for whole, part in zip(image, sizes, strict=True)):
        raise InputError(f"makes {sizes} of {image} pixels, which takes windows of several sizes")
    height, width = (whole // part for whole, part in zip(image, sizes, strict=True))
    return signal.pooled(AvgPool2d((height, width)))


def elementwise(signal: Signal, naming: str, name: str, attribute: Callable[[str, Any], Any]) -> Signal:
    """Return what the activation makes of it that PyTorch calls so, with its attributes."""
    activation = activation_elsewhere(naming, name, attribute)
    if activation is None:
        raise InputError("has settings that no activation of sparsenn has")
    return signal.activated(activation)


def pad(signal: Signal, pad: Sequence[int], value: float | None, mode: str | None = None) -> Signal:
    """Return images or sequences with zeros around them; sides come in pairs, from the last dimension on."""
    if mode not in (None, "constant") or value or len(pad) % 2 or any(pad[4:]) or min(pad, default=0) < 0:
        raise InputError(f"pads by {tuple(pad)} (mode {mode!r}, value {value}); only zeros around images are known")
    left, right, above, below = (*map(int, pad[:4]), *[0] * (4 - len(pad)))
    if signal.width and signal.rank < 4 and (above or below):
        raise InputError("pads channels; only zeros around images are supported")
    return pad_with_zeros(signal, ((above, below), (left, right)))


def parametric_relu(signal: Signal, weight: Any) -> Signal:
    """Return it with what is below zero multiplied by one learned number, or one for each channel."""
    return signal.leaked(host_array("weight", weight))


def flatten(signal: Signal, start_dim: int, end_dim: int) -> Signal:
    """Return rows."""
    if start_dim not in (1, 1 - signal.rank) or end_dim not in (-1, signal.rank - 1):
        raise InputError(
            f"flattens dimensions {start_dim} to {end_dim}; all dimensions but the first must be flattened"
        )
    return signal.flattened()


def softmax(layer: SoftmaxLayer, signal: Signal, dim: int | None) -> Signal:
    """Return shares of one, along a row, or their logarithms if that is the layer."""
    if dim not in (1, -1, None):
        raise InputError(f"a softmax over dimension {dim}; only a softmax over the numbers of a row is supported")
    return signal.softmax(layer)


def _check_rank(signal: Signal, dimensions: int) -> None:
    """Refuse a tensor of one axis less, which PyTorch takes for one input without the axis of rows."""
    if signal.width and signal.rank != dimensions + 2:
        raise ShapeError(f"takes tensors of {dimensions + 2} axes, the first of them rows, but is given {signal}")


def _pooled(
    signal: Signal,
    kind: type[AvgPool2d] | type[MaxPool2d],
    dimensions: int,
    window: Size,
    stride: Size,
    padding: Size,
    ceil: bool,
    counts_padding: bool = True,
) -> Signal:
    _check_rank(signal, dimensions)
    sizes, (down, across) = _pair(window, 1, dimensions), _pair(padding, 0, dimensions)
    strides = _pair(stride, 1, dimensions) if stride else sizes
    return pool(signal, kind, sizes, strides, ((down, down), (across, across)), ceil, counts_padding)


def _pair(value: Size, otherwise: int, dimensions: int) -> tuple[int, int]:
    """Return one size down and one across; of sequences that down, along which they have one line, is `otherwise`."""
    sizes = [int(size) for size in value] if isinstance(value, Sequence) else [otherwise if value is None else value]
    across = sizes[-1]
    return (otherwise if dimensions == 1 else sizes[0]), across


def _optional(name: str, value: Any) -> Any:
    return None if value is None else host_array(name, value)
