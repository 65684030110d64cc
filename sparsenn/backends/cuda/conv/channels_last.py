"""Layers of images with the channels of a pixel side by side, from the first to the last: the layout of tensor cores.

`run_stack` takes consecutive layers of images, branches included, and rows of images as the engine has them: a CuPy
matrix (images, channels x height x width) of float32, or of float16 in that precision. Values between layers are of
float16 in that precision, else of float32. It returns a new matrix (images, outputs) of the rows' type, queues its work
on the current stream, and does not wait for it, but for the first one of a stack and a number of images, for which
cuDNN builds plans. Convolutions are cuDNN's, but for those of a filter for each channel; sums are part of a convolution
before them.

What a number may be off by: `conv_cudnn_tf32` cuts pixels and weights to 11 bits. `conv_cudnn_float16` rounds them,
sums of products, and each layer's outputs to 11 bits; numbers beyond 65,504 are infinite, and weights must not exceed
it. Products are added in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from sparsenn.backends.cuda import images as image_layers
from sparsenn.backends.cuda.conv.cudnn import NUMBERS, finish, plan_of, unfinished, why_no_library
from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, WHOLE, ConvLayer, Geometry, why_too_large
from sparsenn.backends.cuda.conv.kernel import activation_define, check_half_range, convolution, new_outputs, refuse
from sparsenn.backends.cuda.conv.unrolled import launch_unrolled
from sparsenn.backends.cuda.runtime.activation import activation_number
from sparsenn.backends.cuda.runtime.device import as_current, cupy, machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device, from_host
from sparsenn.backends.cuda.runtime.loader import program, specialised
from sparsenn.backends.cuda.runtime.memory import within_memory
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.kernel_records import ConvolutionKernel, ImageStack, Shapes
from sparsenn.backends.machine import WARP, Machine
from sparsenn.backends.prior import LAID_OUT, LAUNCH_SECONDS, TUNED, Prior
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array
from sparsenn.layers import Add, AvgPool2d, Concatenate, Conv2d, Flatten, Identity, ImageLayer, MaxPool2d

LANES = 8
"""Channels that a pixel has a multiple of, zeros included: what tensor cores multiply at a time in half precision."""

EACH = 4  # neighbouring channels that a thread pools
OUTPUTS = 4  # neighbouring pixels for which a thread filters channels one by one
MOST_COLUMNS = 7  # of the window of such filters: the weights of a row stay in registers
THREADS = 128

DEPTHWISE = "conv2d/depthwise_last.cu"

_NAMES = tuple(NUMBERS.values())
_MOVE = program(
    "conv2d/channels_last.cu", carveout=WHOLE, FROM=_NAMES, TO=_NAMES, PACKS=(0, 1), EACH=(LANES,), THREADS=(THREADS,)
)
_POOL = program(
    "conv2d/pool_last.cu",
    carveout=WHOLE,
    HALF=(0, 1),
    MEAN=(0, 1),
    COUNTS_PADDING=(0, 1),
    THREADS=(THREADS,),
    EACH=(EACH,),
)
_DEPTHWISE = specialised(DEPTHWISE, carveout=WHOLE)

_Scan = Callable[[int, Array], None]


def lanes_of(channels: int) -> int:
    """Return the channels of a pixel with the zeros after them."""
    return parts_of(channels, LANES) * LANES


def _is_depthwise(geometry: Geometry) -> bool:
    return geometry.groups == geometry.channels == geometry.filters


def _padded(geometry: Geometry) -> Geometry:
    return replace(geometry, channels=lanes_of(geometry.channels), filters=lanes_of(geometry.filters))


def fits(machine: Machine, geometry: Geometry) -> str | None:
    """Return why a convolution cannot be run with channels last here; None if it can."""
    if reason := why_too_large(_padded(geometry)) or why_no_library():
        return reason
    if geometry.groups == 1:
        return None
    if _is_depthwise(geometry):
        wide = geometry.kernel[1] > MOST_COLUMNS
        return f"windows of more than {MOST_COLUMNS} columns in filters of one channel" if wide else None
    if geometry.channels // geometry.groups % LANES or geometry.filters % LANES:
        return f"groups whose channels are no multiple of {LANES}; cuDNN's tensor cores take them for many"
    return None


def _fuses(layer: ImageLayer, shapes: Shapes) -> bool:
    if any(len(shape) != 3 for shape in shapes):
        return False
    if isinstance(layer, Add):
        return activation_number(layer.activation) is not None
    if isinstance(layer, Concatenate):
        return all(shape[0] % LANES == 0 and shape[1:] == shapes[0][1:] for shape in shapes)
    return isinstance(layer, MaxPool2d | AvgPool2d | Flatten)


# ---- Stacks ------------------------------------------------------------------------------------------------------


class _Value(NamedTuple):
    """The images that a layer leaves."""

    pixels: Array  # (images x height x width, lanes)
    shape: tuple[int, ...]  # (channels, height, width)


class _Sum(NamedTuple):
    """A sum that ends a convolution."""

    number: int  # of the layer, counted from 1
    other: int  # the value that is added
    activation: Any  # its code and parameter


def run_stack(precision: str, stack: ImageStack, features: Array, scan: _Scan | None = None) -> Array:
    """Run all layers of a stack; `scan` takes each convolution's and sum's number, from 0, and outputs."""
    rows = features.shape[0]
    convolutions = [layer for layer in stack.prepared if isinstance(layer, ConvLayer)]
    numbers = sum(lanes_of(shape[0]) * prod(shape[1:]) for shape in stack.shapes)
    with as_current(convolutions[0].device), within_memory("layers of images", rows, 4 * numbers):
        for layer in convolutions:
            refuse(fits(machine_of(layer.device), layer.geometry))
            if precision == "float16":
                check_half_range(layer)
        outputs: Array = cupy().empty((rows, prod(stack.shapes[-1])), features.dtype)
        most = MOST_NUMBERS // max(lanes_of(shape[0]) * prod(shape[1:]) for shape in stack.shapes)
        most = parts_of(rows, parts_of(rows, max(1, most))) if rows else 1
        for first in range(0, rows, most):
            some = slice(first, first + most)
            _run(precision, stack, features[some], outputs[some], scan or _ignore)
    return outputs


def _ignore(number: int, numbers: Array) -> None:
    pass


def _run(precision: str, stack: ImageStack, features: Array, outputs: Array, scan: _Scan) -> None:
    count, sums = features.shape[0], dict(_sums(stack))
    last_readers = [
        max((at for at, read in enumerate(stack.sources) if value in read), default=-1)
        for value in range(len(stack.layers) + 1)
    ]
    values = {0: _packed(features, stack.shapes[0], np.float16 if precision == "float16" else np.float32)}
    ended = {total.number for total in sums.values()}
    for at, (layer, prepared) in enumerate(zip(stack.layers, stack.prepared, strict=True)):
        if at + 1 in ended:
            continue
        read, number = [values[source] for source in stack.sources[at]], at + 1
        if isinstance(layer, Conv2d):
            total, other, code = sums.get(number), None, (prepared.activation, prepared.clip)
            if total is not None:
                number, other, code = total.number, values[total.other], total.activation
            value = _convolve(precision, prepared, count, read[0], other, code, partial(scan, number - 1))
        elif isinstance(layer, Add | Concatenate):
            value = _combine(layer, count, read, stack.shapes[number])
            if isinstance(layer, Add):
                scan(at, value.pixels)
        elif isinstance(layer, MaxPool2d | AvgPool2d):
            value = _pool(layer, count, read[0], stack.shapes[number])
        else:
            assert isinstance(layer, Flatten), "others are not taken along"
            value = read[0]
        values[number] = value
        for each in [each for each in values if last_readers[each] < number and each != number]:
            del values[each]
    _unpack(values[len(stack.layers)], outputs)


def _sums(stack: ImageStack) -> Iterator[tuple[int, _Sum]]:
    """Yield the convolutions that end with a sum: the next layer, which alone reads what they leave."""
    for at, layer in enumerate(stack.layers[1:], start=1):
        before, read = stack.layers[at - 1], stack.sources[at]
        if not (isinstance(layer, Add) and isinstance(before, Conv2d) and isinstance(before.activation, Identity)):
            continue
        alone = sum(each.count(at) for each in stack.sources) == 1
        if alone and len(read) == 2 and at in read and not _is_depthwise(stack.prepared[at - 1].geometry):
            other = next(source for source in read if source != at)
            yield at, _Sum(at + 1, other, activation_number(layer.activation))


# ---- Layers ------------------------------------------------------------------------------------------------------


def _packed(features: Array, shape: tuple[int, ...], kind: Any) -> _Value:
    channels, pixels = shape[0], prod(shape[1:])
    value = _Value(cupy().empty((features.shape[0] * pixels, lanes_of(channels)), kind), shape)
    _move(features, value.pixels, channels, pixels, features.shape[0], packs=True)
    return value


def _unpack(value: _Value, outputs: Array) -> None:
    _move(value.pixels, outputs, value.shape[0], prod(value.shape[1:]), outputs.shape[0], packs=False)


def _move(source: Array, target: Array, channels: int, pixels: int, count: int, packs: bool) -> None:
    kernel = _MOVE.kernel("channels_last", FROM=NUMBERS[source.dtype], TO=NUMBERS[target.dtype], PACKS=int(packs))
    warps = count * parts_of(pixels, WARP) * (lanes_of(channels) // LANES)
    sizes = map(np.int32, (count, channels, lanes_of(channels), pixels))
    launch("conv2d", kernel, (parts_of(WARP * warps, THREADS),), (THREADS,), source, target, *sizes)


def _convolve(
    precision: str,
    layer: ConvLayer,
    count: int,
    images: _Value,
    other: _Value | None,
    code: Any,
    scan: Callable[[Array], None],
) -> _Value:
    """Convolve, add bias and another value, and apply the activation of a number."""
    geometry = layer.geometry
    shape = geometry.filters, geometry.output_height, geometry.output_width
    sums: Array = cupy().empty((count * prod(shape[1:]), lanes_of(geometry.filters)), images.pixels.dtype)
    bias = cache_on_device(layer, "bias of lanes", lambda: from_host(_lanes_of_bias, layer.source.bias_vector()))
    if _is_depthwise(geometry):
        _filter_each(layer, count, images.pixels, bias, sums)
        scan(sums)
        return _Value(sums, shape)
    plan = plan_of(precision, _padded(geometry), count, layer.device)
    if plan is None:
        planes: Any = cupy().empty((count, geometry.channels, geometry.height, geometry.width), np.float32)
        _unpack(images, planes.reshape(count, -1))
        results = launch_unrolled(unfinished(layer), planes).reshape(count, -1)
        _move(results, sums, geometry.filters, prod(shape[1:]), count, packs=True)
    else:
        arranged = partial(_arranged, geometry.groups, sums.dtype)
        name = "channels last", sums.dtype.name
        weights = cache_on_device(layer, name, lambda: from_host(arranged, layer.source.weights))
        plan.run(layer.device, images.pixels, weights, sums)
    scan(sums)
    finish(layer.device, sums, other and other.pixels, bias, (sums.shape[1], prod(shape[1:])), code, last=True)
    scan(sums)
    return _Value(sums, shape)


def _lanes_of_bias(bias: Array) -> Array:
    return np.pad(bias.astype(np.float32), (0, lanes_of(bias.size) - bias.size))


def _arranged(groups: int, kind: Any, weights: Array) -> Array:
    """Return weights with the channels of a tap side by side, (filters, kernel height, kernel width, channels)."""
    filters, channels = weights.shape[:2]
    more = (0, lanes_of(filters) - filters), (0, 0), (0, 0), (0, lanes_of(channels) - channels if groups == 1 else 0)
    return np.ascontiguousarray(np.pad(weights.transpose(0, 2, 3, 1), more)).astype(kind)


def depthwise_defines(geometry: Geometry, activation: int, number: str) -> dict[str, int | str]:
    """Return what the kernel of filters of one channel is compiled with."""
    return {
        "NUMBER": number,
        "ROWS": geometry.kernel[0],
        "COLUMNS": geometry.kernel[1],
        "DOWN": geometry.stride[0],
        "ACROSS": geometry.stride[1],
        "APART_DOWN": geometry.dilation[0],
        "APART_ACROSS": geometry.dilation[1],
        "ACTIVATION": activation,
        "EACH": LANES if number == "half_bits" else EACH,  # 16 bytes
        "OUTPUTS": OUTPUTS,
        "THREADS": THREADS,
    }


def _filter_each(layer: ConvLayer, count: int, images: Array, bias: Array, outputs: Array) -> None:
    """Run a convolution of one filter for each channel, bias and activation included."""
    geometry, lanes = layer.geometry, images.shape[1]
    weights = cache_on_device(layer, "taps of lanes", lambda: from_host(_taps, layer.source.weights))
    defines = depthwise_defines(geometry, activation_define(layer), NUMBERS[images.dtype])
    spans = parts_of(geometry.output_width, OUTPUTS)
    threads = count * geometry.output_height * spans * (lanes // int(defines["EACH"]))
    sizes = (
        *(np.uint32(threads), np.int32(lanes)),
        *map(np.int32, (geometry.height, geometry.width, geometry.output_height, geometry.output_width)),
        *map(np.int32, geometry.padding),
    )
    arrays = images, weights, bias, layer.clip, outputs
    launch("conv2d", _DEPTHWISE.kernel("conv2d", **defines), (parts_of(threads, THREADS),), (THREADS,), *sizes, *arrays)


def _taps(weights: Array) -> Array:
    """Return weights as (kernel height, kernel width, lanes) float32."""
    more = (0, 0), (0, 0), (0, lanes_of(weights.shape[0]) - weights.shape[0])
    return np.ascontiguousarray(np.pad(weights[:, 0].transpose(1, 2, 0), more))


def _combine(layer: Add | Concatenate, count: int, read: list[_Value], shape: tuple[int, ...]) -> _Value:
    rows = count if isinstance(layer, Add) else count * prod(shape[1:])
    matrices = (value.pixels.reshape(rows, -1) for value in read)
    combined = image_layers.run_layer(layer, (), *matrices)
    return _Value(combined.reshape(-1, lanes_of(shape[0])), shape)


def _pool(layer: MaxPool2d | AvgPool2d, count: int, images: _Value, shape: tuple[int, ...]) -> _Value:
    window, stride, padding, _ = layer.sliding_window
    defines = {
        "MEAN": int(isinstance(layer, AvgPool2d)),
        "COUNTS_PADDING": int(isinstance(layer, AvgPool2d) and layer.counts_padding),
    }
    kernel = _POOL.kernel("pool_last", HALF=int(images.pixels.dtype == np.float16), **defines)
    outputs: Array = cupy().empty((count * prod(shape[1:]), images.pixels.shape[1]), images.pixels.dtype)
    sizes = map(np.int32, (outputs.shape[1], *images.shape[1:], *shape[1:], *window, *stride, *padding))
    grid = (parts_of(outputs.size, EACH * THREADS),)
    launch("images", kernel, grid, (THREADS,), np.uint32(outputs.size), *sizes, images.pixels, outputs)
    return _Value(outputs, shape)


# ---- Kernels -----------------------------------------------------------------------------------------------------


def _launch_one(precision: str, layer: ConvLayer, images: Array) -> Array:
    types = (np.float32, np.float16) if precision == "float16" else (np.float32,)
    outputs = new_outputs(layer, images, types)
    rows, shapes = images.shape[0], (images.shape[1:], outputs.shape[1:])
    stack = ImageStack((layer.source,), shapes, (layer,), ((0,),))
    return run_stack(precision, stack, images.reshape(rows, prod(shapes[0]))).reshape(outputs.shape)


def _described(precision: str, summary: str) -> ConvolutionKernel:
    return convolution(
        f"conv_cudnn_{precision}",
        partial(_launch_one, precision),
        f"cuDNN's convolution in {summary}, a pixel's channels side by side from layer to layer",
        fits,
        needs=("nvidia-cudnn-frontend",),
        auto=True,
        prior=Prior(TUNED, LAID_OUT, 3 * LAUNCH_SECONDS, precision),
        multiples=(64, 8),
        precision=precision,
        half_rows=precision == "float16",
        run_stack=partial(run_stack, precision),
        fuses=_fuses,
    )


CUDNN_TF32 = _described("tf32", "TF32")
CUDNN_FLOAT16 = _described("float16", "half precision")
