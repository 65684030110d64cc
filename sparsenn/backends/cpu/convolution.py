"""The kernels of conv2d on the CPU: sums over shifted lines of pixels, and a BLAS product of patches.

*direct*: images are copied, padded, so that output (y, x) of a window's element (i, j) reads the pixel at the same
place of a plane, shifted by a number that depends on (i, j) alone. With a stride, pixels are sorted into one plane for
each remainder of their row and column by the stride, which keeps neighbouring outputs' pixels neighbours. An output
plane is then a weighted sum of shifted planes, and every multiply-add works on full vector registers, whatever stride,
padding and dilation. Four filters and four shifts are taken at a time, so that a loaded vector is used four times.
Small images lie below each other in one plane. Sums at the ends of lines, where a window would reach into the next
line, are computed and left out.

*im2col_blas*: each window becomes a column of a matrix, which BLAS multiplies with the filters.

A launch takes the layer and images, float32 of shape (images, channels, height, width), and returns float32 of shape
(images, filters, output height, output width).
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sparsenn.backends.contract import ConvolutionKernel, Tunable
from sparsenn.backends.convolution_sizes import sizes_in_words
from sparsenn.backends.cpu.scratch import Scratch
from sparsenn.backends.cpu.stack import IDENTITY, RELU, SIGMOID, activation_code
from sparsenn.backends.machine import Machine
from sparsenn.backends.registry import register
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.jit import compiled
from sparsenn.layers import Conv2d
from sparsenn.network import Image
from sparsenn.workers import chunks, map_threads, thread_count

__all__ = ["DIRECT", "IM2COL_BLAS", "conv2d_sizes", "launch_direct", "launch_im2col_blas"]

LANES = 512
"""Sums computed side by side, of each of four filters: 8 KiB, which stay in a first-level cache."""

FILTERS = 4
"""Filters that share a loaded vector."""

PIECE_BYTES = 16 << 20
"""Patches that are multiplied in one product."""

PIECE_BYTES_TO_TRY = tuple(1 << power for power in range(18, 28))
"""What `tune` tries in place of `PIECE_BYTES`: 256 KiB to 128 MiB."""

MULTIPLY_ADD, MULTIPLY_ADD_ALONE, LIBRARY_MULTIPLY_ADD = 1.1e-11, 2.2e-11, 1.0e-11
PATCH, OUTPUT, LIBRARY_OUTPUT = 3e-10, 1.2e-9, 2.4e-9
"""Seconds of a core for one multiply-add of `direct`, of four filters and of one, and of BLAS; for one element of a
patch; and for one output of either kernel. About as measured with AVX-512; only their ratios matter."""


class _Planes(NamedTuple):
    """How images lie in memory for `direct`, as the kernels take it.

    images : those that lie below each other in a plane.
    lines, columns : of an image in a plane.
    """

    images: int
    lines: int
    columns: int
    channels: int
    height: int
    width: int
    stride_down: int
    stride_across: int
    above: int
    beside: int
    output_height: int
    output_width: int

    @property
    def plane(self) -> int:
        """Numbers of a plane."""
        return self.images * self.lines * self.columns

    @property
    def size(self) -> int:
        """Numbers of all planes."""
        return self.channels * self.stride_down * self.stride_across * self.plane


def _planes(layer: Conv2d, shape: tuple[int, ...], most: int) -> _Planes:
    """Return how images of `shape` lie in memory, as many below each other as fill the lanes, but `most`."""
    (down, across), (above, beside), _ = layer.steps
    _, channels, height, width = shape
    lines, columns = -(-(height + 2 * above) // down), -(-(width + 2 * beside) // across)
    images = max(1, min(most, LANES // (lines * columns)))
    output_height, output_width = layer.output_shape(shape)[2:]
    return _Planes(
        images, lines, columns, channels, height, width, down, across, above, beside, output_height, output_width
    )


def _shifts(layer: Conv2d, planes: _Planes) -> Array:
    """Return where the pixel of output (0, 0) lies for each element of a filter, counted from its group's first plane.

    int64, in the order of the filter's weights.
    """
    _, _, (apart_down, apart_across) = layer.steps
    channel, row, column = np.indices(layer.weights.shape[1:])
    line, remainder_down = np.divmod(row * apart_down, planes.stride_down)
    place, remainder_across = np.divmod(column * apart_across, planes.stride_across)
    plane = (channel * planes.stride_down + remainder_down) * planes.stride_across + remainder_across
    shifts: Array = (plane * planes.plane + line * planes.columns + place).reshape(-1).astype(np.int64)
    return shifts


@compiled
def _copy_in(images: Array, first: int, count: int, planes: Any, source: Array) -> None:
    """Copy images to their places in the planes; padding stays what it is."""
    down, across = planes.stride_down, planes.stride_across
    size = planes.images * planes.lines * planes.columns
    for image in range(count):
        for channel in range(planes.channels):
            for row in range(planes.height):
                line, remainder = divmod(row + planes.above, down)
                base = ((channel * down + remainder) * across) * size + (image * planes.lines + line) * planes.columns
                for begin in range(min(across, planes.width)):
                    place, remainder = divmod(begin + planes.beside, across)
                    to = np.uintp(base + remainder * size + place)
                    for step in range(np.uintp((planes.width - begin + across - 1) // across)):
                        source[to + step] = images[first + image, channel, row, begin + step * across]


@compiled
def _sum_four(source: Array, base: int, shifts: Array, weights: Array, bias: Array, number: int, target: Array,
              lanes: int) -> None:  # fmt: skip
    """Compute sums of four filters, line by line of `target`: bias plus weights times shifted pixels."""
    taps = shifts.size
    for k in range(4):
        for lane in range(np.uintp(lanes)):
            target[k, lane] = bias[number + k]
    wa, wb, wc, wd = weights[number], weights[number + 1], weights[number + 2], weights[number + 3]
    tap = 0
    while tap + 4 <= taps:
        s0, s1 = np.uintp(base + shifts[tap]), np.uintp(base + shifts[tap + 1])
        s2, s3 = np.uintp(base + shifts[tap + 2]), np.uintp(base + shifts[tap + 3])
        a0, a1, a2, a3 = wa[tap], wa[tap + 1], wa[tap + 2], wa[tap + 3]
        b0, b1, b2, b3 = wb[tap], wb[tap + 1], wb[tap + 2], wb[tap + 3]
        c0, c1, c2, c3 = wc[tap], wc[tap + 1], wc[tap + 2], wc[tap + 3]
        d0, d1, d2, d3 = wd[tap], wd[tap + 1], wd[tap + 2], wd[tap + 3]
        for lane in range(np.uintp(lanes)):
            x0, x1, x2, x3 = source[s0 + lane], source[s1 + lane], source[s2 + lane], source[s3 + lane]
            target[0, lane] += (x0 * a0 + x1 * a1) + (x2 * a2 + x3 * a3)
            target[1, lane] += (x0 * b0 + x1 * b1) + (x2 * b2 + x3 * b3)
            target[2, lane] += (x0 * c0 + x1 * c1) + (x2 * c2 + x3 * c3)
            target[3, lane] += (x0 * d0 + x1 * d1) + (x2 * d2 + x3 * d3)
        tap += 4
    while tap < taps:
        s0 = np.uintp(base + shifts[tap])
        a0, b0, c0, d0 = wa[tap], wb[tap], wc[tap], wd[tap]
        for lane in range(np.uintp(lanes)):
            x0 = source[s0 + lane]
            target[0, lane] += x0 * a0
            target[1, lane] += x0 * b0
            target[2, lane] += x0 * c0
            target[3, lane] += x0 * d0
        tap += 1


@compiled
def _sum_one(source: Array, base: int, shifts: Array, weights: Array, bias: float, target: Array,
             lanes: int) -> None:  # fmt: skip
    """Compute sums of one filter, in the order of `_sum_four`: which filters go together decides no bit."""
    taps = shifts.size
    for lane in range(np.uintp(lanes)):
        target[lane] = bias
    tap = 0
    while tap + 8 <= taps:
        s0, s1 = np.uintp(base + shifts[tap]), np.uintp(base + shifts[tap + 1])
        s2, s3 = np.uintp(base + shifts[tap + 2]), np.uintp(base + shifts[tap + 3])
        s4, s5 = np.uintp(base + shifts[tap + 4]), np.uintp(base + shifts[tap + 5])
        s6, s7 = np.uintp(base + shifts[tap + 6]), np.uintp(base + shifts[tap + 7])
        w0, w1, w2, w3 = weights[tap], weights[tap + 1], weights[tap + 2], weights[tap + 3]
        w4, w5, w6, w7 = weights[tap + 4], weights[tap + 5], weights[tap + 6], weights[tap + 7]
        for lane in range(np.uintp(lanes)):
            x0, x1, x2, x3 = source[s0 + lane], source[s1 + lane], source[s2 + lane], source[s3 + lane]
            x4, x5, x6, x7 = source[s4 + lane], source[s5 + lane], source[s6 + lane], source[s7 + lane]
            first = target[lane] + ((x0 * w0 + x1 * w1) + (x2 * w2 + x3 * w3))
            target[lane] = first + ((x4 * w4 + x5 * w5) + (x6 * w6 + x7 * w7))
        tap += 8
    if tap + 4 <= taps:
        s0, s1 = np.uintp(base + shifts[tap]), np.uintp(base + shifts[tap + 1])
        s2, s3 = np.uintp(base + shifts[tap + 2]), np.uintp(base + shifts[tap + 3])
        w0, w1, w2, w3 = weights[tap], weights[tap + 1], weights[tap + 2], weights[tap + 3]
        for lane in range(np.uintp(lanes)):
            x0, x1, x2, x3 = source[s0 + lane], source[s1 + lane], source[s2 + lane], source[s3 + lane]
            target[lane] += (x0 * w0 + x1 * w1) + (x2 * w2 + x3 * w3)
        tap += 4
    while tap < taps:
        s0, w0 = np.uintp(base + shifts[tap]), weights[tap]
        for lane in range(np.uintp(lanes)):
            target[lane] += source[s0 + lane] * w0
        tap += 1


@compiled
def _activate(kind: int, clip: float, line: Array, lanes: int) -> None:
    """Apply the activation to sums."""
    zero, one, top = np.float32(0), np.float32(1), np.float32(clip)
    if kind == RELU:
        for lane in range(np.uintp(lanes)):
            z = line[lane]
            z = zero if z < zero else z
            line[lane] = top if z > top else z
    elif kind == SIGMOID:
        for lane in range(lanes):
            z = line[lane]
            decay = np.float32(np.exp(-abs(z)))
            line[lane] = (one if z >= zero else decay) / (one + decay)
    elif kind != IDENTITY:
        for lane in range(lanes):
            line[lane] = np.tanh(line[lane])


@compiled
def _copy_out(target: Array, planes: Any, line: int, lines: int, column: int, wide: int, number: int, first: int,
              outputs: Array) -> None:  # fmt: skip
    """Copy the sums of `lines` lines of a plane, `wide` columns of each, to the outputs."""
    for below in range(lines):
        image, row = divmod(line + below, planes.lines)
        if row < planes.output_height:
            begin = np.uintp(below * planes.columns)
            for step in range(np.uintp(wide)):
                outputs[first + image, number, row, column + step] = target[begin + step]


@compiled
def _run_lanes(source: Array, planes: Any, line: int, lines: int, column: int, wide: int, filters: tuple[int, int],
               per_group: int, shifts: Array, weights: Array, bias: Array, activation: int, clip: float, first: int,
               target: Array, outputs: Array) -> None:  # fmt: skip
    """Compute the outputs of all filters for `lines` lines of a plane, `wide` columns of each."""
    lanes = (lines - 1) * planes.columns + wide
    size = planes.images * planes.lines * planes.columns
    planes_of_group = planes.channels // (weights.shape[0] // per_group) * planes.stride_down * planes.stride_across
    number = filters[0]
    while number < filters[1]:
        group = number // per_group
        base = group * planes_of_group * size + line * planes.columns + column
        count = min(4, filters[1] - number, (group + 1) * per_group - number)
        if count == 4:
            _sum_four(source, base, shifts, weights, bias, number, target, lanes)
        else:
            for k in range(count):
                _sum_one(source, base, shifts, weights[number + k], bias[number + k], target[k], lanes)
        for k in range(count):
            _activate(activation, clip, target[k], lanes)
            _copy_out(target[k], planes, line, lines, column, wide, number + k, first, outputs)
        number += count


@compiled
def _convolve(images: Array, first: int, last: int, filters: tuple[int, int], per_group: int, planes: Any,
              shifts: Array, weights: Array, bias: Array, activation: int, clip: float, source: Array, target: Array,
              outputs: Array) -> None:  # fmt: skip
    """Compute the outputs of some filters for some images."""
    most_lines = max(1, target.shape[1] // planes.columns)
    most_wide = min(planes.output_width, target.shape[1])
    for start in range(first, last, planes.images):
        count = min(planes.images, last - start)
        _copy_in(images, start, count, planes, source)
        total = (count - 1) * planes.lines + planes.output_height
        for line in range(0, total, most_lines):
            lines = min(most_lines, total - line)
            for column in range(0, planes.output_width, most_wide):
                wide = min(most_wide, planes.output_width - column)
                _run_lanes(source, planes, line, lines, column, wide, filters, per_group, shifts, weights, bias,
                           activation, clip, start, target, outputs)  # fmt: skip


_scratch = Scratch()


def launch_direct(layer: Conv2d, images: Array) -> Array:
    """Compute a convolution as weighted sums of shifted planes.

    Raises
    ------
    ShapeError
        The layer does not take such images.
    UsageError
        The kernel does not know its activation.
    """
    shape = layer.output_shape(images.shape)
    activation, clip = activation_code(layer.activation)
    outputs = np.empty(shape, np.float32)
    count, threads = images.shape[0], thread_count()
    if not count:
        return outputs
    images = np.ascontiguousarray(images, np.float32)
    planes = _planes(layer, images.shape, -(-count // threads))
    shifts, weights = _shifts(layer, planes), layer.weights.reshape(layer.filters, -1)
    bias, per_group = layer.bias_vector(), layer.filters // layer.groups

    def run(piece: tuple[tuple[int, int], tuple[int, int]]) -> None:
        (first, last), filters = piece
        source, target = _scratch.take("source", planes.size), _scratch.take("target", FILTERS * LANES)
        source[:] = 0.0
        _convolve(images, first, last, filters, per_group, planes, shifts, weights, bias, activation, clip, source,
                  target.reshape(FILTERS, LANES), outputs)  # fmt: skip

    together = -(-count // planes.images)
    share = planes.images * max(1, together // (4 * threads))
    parts = 1 if together >= threads else -(-threads // together)
    filters = chunks(layer.filters, -(-layer.filters // (parts * FILTERS)) * FILTERS)
    map_threads(run, [(piece, part) for piece in chunks(count, share) for part in filters])
    return outputs


def launch_im2col_blas(layer: Conv2d, images: Array, piece_bytes: int = PIECE_BYTES) -> Array:
    """Compute a convolution as products of the filters and all windows, some images at a time.

    Parameters
    ----------
    layer, images : as all launches take them.
    piece_bytes : of windows that are multiplied in one product, if an image's take no more than that.

    Raises
    ------
    ShapeError
        The layer does not take such images.
    """
    shape = layer.output_shape(images.shape)
    stride, (above, beside), dilation = layer.steps
    span_down, span_across = (apart * (size - 1) + 1 for size, apart in zip(layer.kernel_size, dilation, strict=True))
    depth, pixels = layer.channels // layer.groups * prod(layer.kernel_size), prod(shape[2:])
    column = layer.groups * depth
    weights, bias = layer.weights.reshape(layer.groups, -1, depth), layer.bias_vector()[:, None]
    outputs = np.empty((shape[0], layer.filters, pixels), np.float32)
    together = max(1, min(shape[0], piece_bytes // (4 * column * pixels)))
    held, held_sums = np.empty(column * together * pixels, np.float32), np.empty(outputs[:together].size, np.float32)
    for first, last in chunks(shape[0], together):
        given = images[first:last].astype(np.float32, copy=False)
        padded = np.pad(given, ((0, 0), (0, 0), (above, above), (beside, beside))) if above or beside else given
        windows = sliding_window_view(padded, (span_down, span_across), axis=(2, 3))
        chosen = windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]].transpose(1, 4, 5, 0, 2, 3)
        patches = held[: chosen.size].reshape(chosen.shape)
        sums = held_sums[: (last - first) * layer.filters * pixels].reshape(layer.groups, weights.shape[1], -1)
        by_filter = sums.reshape(layer.filters, last - first, pixels)

        def cut(place: int, patches: Array = patches, chosen: Array = chosen) -> None:
            """Copy what one row of the filters meets in one channel."""
            channel, row = divmod(place, layer.kernel_size[0])
            patches[channel, row] = chosen[channel, row]

        def finish(image: int, first: int = first, by_filter: Array = by_filter) -> None:
            outputs[first + image] = layer.activation(by_filter[:, image] + bias)

        map_threads(cut, range(layer.channels * layer.kernel_size[0]))
        np.matmul(weights, patches.reshape(layer.groups, depth, -1), out=sums)
        map_threads(finish, range(last - first))
    return outputs.reshape(shape)


def _seconds_direct(machine: Machine, layer: Conv2d, image: Image) -> float:
    """Estimate what one of many images takes: sums that are left out count, too."""
    planes = _planes(layer, (1, *image), LANES)
    alone = layer.filters // layer.groups % FILTERS
    per_filter = MULTIPLY_ADD * (layer.filters - alone * layer.groups) + MULTIPLY_ADD_ALONE * alone * layer.groups
    sums = (planes.output_height if planes.images == 1 else planes.lines) * planes.columns
    return per_filter * prod(layer.weights.shape[1:]) * sums + OUTPUT * layer.filters * sums


def _seconds_im2col_blas(machine: Machine, layer: Conv2d, image: Image) -> float:
    """Estimate what one image takes: the patches, then the product."""
    pixels = prod(layer.output_shape((1, *image))[2:])
    patches = layer.channels * prod(layer.kernel_size) * pixels
    return PATCH * patches + LIBRARY_MULTIPLY_ADD * layer.edges * pixels + LIBRARY_OUTPUT * layer.filters * pixels


def _why_not_direct(machine: Machine, layer: Conv2d, image: Image) -> str | None:
    try:
        activation_code(layer.activation)
    except UsageError as error:
        return str(error)
    return None


def conv2d_sizes(layer: Conv2d, images: Array) -> str:
    """Return the sizes of a convolution, and about how many images there are, as `Tunable.sizes`."""
    return sizes_in_words(images.shape, layer.weights.shape, layer.steps)


DIRECT = register(
    ConvolutionKernel(
        name="direct",
        device="cpu",
        summary="weighted sums of shifted lines of pixels, four filters at a time",
        launch=launch_direct,
        auto=True,
        seconds=_seconds_direct,
        why_not=_why_not_direct,
        reproducible=True,
    )
)
IM2COL_BLAS = register(
    ConvolutionKernel(
        name="im2col_blas",
        device="cpu",
        summary="windows laid out as columns, one product of NumPy's for many images",
        launch=launch_im2col_blas,
        auto=True,
        seconds=_seconds_im2col_blas,
        tunable=Tunable(
            parameters={"piece_bytes": PIECE_BYTES_TO_TRY},
            launch_with=lambda numbers: partial(launch_im2col_blas, piece_bytes=numbers["piece_bytes"]),
            sizes=conv2d_sizes,
        ),
    )
)
