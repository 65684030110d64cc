"""What operators make of a signal that is an image, or a row of pixels: convolutions and poolings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.io.importers.affine import Sides
from sparsenn.io.importers.axes import transpose
from sparsenn.io.importers.onnx.call import Call, floats
from sparsenn.io.importers.signal import Signal
from sparsenn.io.importers.windows import convolve, pad_with_zeros, pool, same_sides
from sparsenn.layers import AvgPool2d, MaxPool2d
from sparsenn.layers.images import Pair


def _conv(call: Call) -> Signal:
    signal = call.signal
    weights = _filters(signal, call.required(1))
    stride, dilation = _pair(call, "strides", 1, 1), _pair(call, "dilations", 1, 1)
    window = weights.shape[2], weights.shape[3]
    if call.attribute("kernel_shape", None) is not None and _pair(call, "kernel_shape", 1, 1) != window:
        raise InputError(f"its kernel_shape is {call.attributes['kernel_shape']}, and its weights have {window}")
    pads = _pads(call, signal, window, stride, dilation)
    bias = None if call.constant(2) is None else floats(call.required(2))
    return convolve(signal, weights, bias, stride, pads, dilation, int(call.attribute("group", 1)))


def _pad(call: Call) -> Signal:
    signal = call.signal
    constant = call.constant(1)
    pads = [int(size) for size in (call.attribute("pads", []) if constant is None else constant.reshape(-1))]
    axes = call.axes(3) or list(range(len(pads) // 2))
    sides = {axis % signal.rank: (pads[place], pads[place + len(axes)]) for place, axis in enumerate(axes)}
    mode = call.attribute("mode", b"constant").decode("ascii", "replace")
    value = call.number(2, float(call.attribute("value", 0.0)))
    if mode != "constant" or value or len(pads) != 2 * len(axes) or min(pads, default=0) < 0:
        raise InputError(
            f"it pads {signal} by {pads} (mode {mode}, value {value:g}); only zeros around images are supported"
        )
    padded = {axis for axis, each in sides.items() if any(each)}
    if padded == {1, 2} and signal.rank == 4 and signal.axis == 0:  # channels are last
        image = transpose(signal, [0, 3, 1, 2]).images()
        return transpose(pad_with_zeros(image, (sides[1], sides[2])), [0, 2, 3, 1])
    signal = signal.images()
    if padded & {0, 1}:
        raise InputError(f"it pads {signal} along rows or channels; only zeros around images are supported")
    across = sides.get(signal.rank - 1, (0, 0))
    return pad_with_zeros(signal, (sides.get(2, (0, 0)) if signal.rank == 4 else (0, 0), across))


def _filters(signal: Signal, weights: Array) -> Array:
    """Return filters as a convolution of two dimensions has them."""
    if weights.ndim not in (3, 4) or weights.ndim != signal.rank or 0 in weights.shape:
        raise InputError(f"it takes {signal}, and its weights have the shape {weights.shape}")
    floats(weights)
    form = weights if weights.ndim == 4 else weights[:, :, None, :]
    return form if form.dtype == np.float64 else form.astype(np.float32)


def _pads(call: Call, signal: Signal, window: Pair, stride: Pair, dilation: Pair) -> Sides:
    """Return the pixels put before and after an image, down and across."""
    auto = call.attribute("auto_pad", b"NOTSET").decode("ascii", "replace")
    if auto == "VALID":
        return (0, 0), (0, 0)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        spans = [apart * (size - 1) + 1 for size, apart in zip(window, dilation, strict=True)]
        down, across = same_sides(signal.picture[1:], spans, stride)
        return (down, across) if auto == "SAME_UPPER" else (down[::-1], across[::-1])
    if auto != "NOTSET":
        raise InputError(f"its auto_pad is {auto}; NOTSET, VALID, SAME_UPPER and SAME_LOWER are known")
    count = 2 * (signal.rank - 2)
    sizes = [int(size) for size in call.attribute("pads", [0] * count)]
    if len(sizes) != count or min(sizes, default=0) < 0:
        raise InputError(f"it takes {signal}, and its pads are {sizes}; two of at least 0 for each axis are needed")
    across = sizes[-1 - len(sizes) // 2], sizes[-1]
    return ((sizes[0], sizes[2]) if len(sizes) == 4 else (0, 0)), across


def _pair(call: Call, name: str, default: int, least: int) -> Pair:
    """Return sizes down and across; those of rows of pixels are across."""
    signal: Signal = call.inputs[0]
    axes = signal.rank - 2
    sizes = [int(size) for size in call.attribute(name, [default] * axes)]
    if len(sizes) != axes or len(sizes) not in (1, 2) or min(sizes) < least:
        raise InputError(f"its {name} are {sizes}; one of at least {least} for each axis of {signal} is needed")
    return (sizes[0], sizes[1]) if len(sizes) == 2 else (1, sizes[0])


def _pool(kind: type[MaxPool2d] | type[AvgPool2d], call: Call) -> Signal:
    signal = call.signal.images()
    if "kernel_shape" not in call.attributes:
        raise InputError("it has no kernel_shape")
    window, stride = _pair(call, "kernel_shape", 1, 1), _pair(call, "strides", 1, 1)
    if _pair(call, "dilations", 1, 1) != (1, 1):
        raise InputError("it pools pixels with gaps between them; sparsenn would need a pooling with a dilation")
    sides = _pads(call, signal, window, stride, (1, 1))
    counts_padding = kind is MaxPool2d or bool(call.attribute("count_include_pad", 0))
    return pool(signal, kind, window, stride, sides, bool(call.attribute("ceil_mode", 0)), counts_padding)


def _global_pool(kind: type[MaxPool2d] | type[AvgPool2d], call: Call) -> Signal:
    signal = call.signal.images()
    return signal.pooled(kind(signal.pixels[1:]))


def _reduced(kind: type[MaxPool2d] | type[AvgPool2d], call: Call) -> Signal:
    """Return one number of all pixels of a channel."""
    signal = call.signal
    axes = sorted(axis + signal.rank if axis < 0 else axis for axis in call.axes() or ())
    last = axes == [1, 2] and signal.rank == 4 and signal.axis == 0  # channels
    if axes != list(range(2, signal.rank)) and not last:
        raise InputError(f"it takes {signal}, and the axes {axes} together; those of whole images are known")
    signal = (transpose(signal, [0, 3, 1, 2]) if last else signal).images()
    pooled = signal.pooled(kind((signal.pixels[1], signal.pixels[2])))
    if last and call.attribute("keepdims", 1):
        return transpose(pooled, [0, 2, 3, 1])
    return pooled if call.attribute("keepdims", 1) else replace(pooled, shape=pooled.shape[:1])


IMAGE_OPERATORS: dict[str, Callable[[Call], Signal]] = {
    "AveragePool": partial(_pool, AvgPool2d),
    "Conv": _conv,
    "GlobalAveragePool": partial(_global_pool, AvgPool2d),
    "GlobalMaxPool": partial(_global_pool, MaxPool2d),
    "MaxPool": partial(_pool, MaxPool2d),
    "Pad": _pad,
    "ReduceMax": partial(_reduced, MaxPool2d),
    "ReduceMean": partial(_reduced, AvgPool2d),
}
"""Those operators by name."""
