"""Panels of images through convolutions and poolings: lanes of pixels, tap by tap (`planes` says how they lie).

A sum begins at its bias, and takes one fused multiply-add after the other, in the order of a filter's weights; weights
of zero change nothing. So an image's outputs have the same bits whatever images come with it, and however the work is
cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.backends.cpu.planes import (
    ABOVE,
    ACROSS,
    ACTIVATION,
    BESIDE,
    CHANNELS,
    COLUMNS,
    DOWN,
    FIRST_BIAS,
    FIRST_BLOCK,
    HEIGHT,
    KIND,
    LARGEST,
    LAST_BLOCK,
    LINES,
    MEAN,
    OUTPUT_HEIGHT,
    OUTPUT_WIDTH,
    PIXELS,
    WIDTH,
)
from sparsenn.backends.cpu.stack import IDENTITY, RELU, SIGMOID
from sparsenn.formats import Array
from sparsenn.jit import compiled

__all__ = ["ENOUGH", "LANES", "PANEL", "ROOM", "begin_layer", "copy_in", "run_layer", "run_panels"]

LANES = 512
"""Sums computed side by side, of each of four filters: 8 KiB, which stay in a first-level cache."""

STEP = 16
"""Lanes are computed in multiples of this many, one AVX-512 register of float32."""

ROOM = LANES + STEP
"""Numbers from one filter's sums to the next's."""

PANEL = 16
"""Images of a full panel."""

ENOUGH = 128
"""Lanes of one line that are worth a walk over the taps; of shorter ones some go together, with what is between."""


@compiled
def _put_lines(sums: Array, at: int, images: int, layer: Array, channel: int, row: int, column: int, wide: int,
               panel: Array) -> None:  # fmt: skip
    """Copy pixels of a row of a channel to where a layer reads them."""
    down, across = layer[DOWN], layer[ACROSS]
    size = layer[LINES] * layer[COLUMNS]
    line, remainder = divmod(row + layer[ABOVE], down)
    base = (channel * down + remainder) * across * size + line * layer[COLUMNS]
    if across == 1:
        to, source = np.uintp((base + column + layer[BESIDE]) * images), np.uintp(at)
        for lane in range(np.uintp(wide * images)):
            panel[to + lane] = sums[source + lane]
        return
    for step in range(wide):
        place, remainder = divmod(column + step + layer[BESIDE], across)
        to, source = np.uintp((base + remainder * size + place) * images), np.uintp(at + step * images)
        if images == PANEL:
            for lane in range(PANEL):
                panel[to + lane] = sums[source + lane]
        else:
            for lane in range(np.uintp(images)):
                panel[to + lane] = sums[source + lane]


@compiled
def _copy_in(inputs: Array, first: int, images: int, layer: Array, line: Array, panel: Array) -> None:
    """Copy images to where a layer reads them."""
    width = layer[WIDTH]
    most = LANES // images
    for channel in range(layer[CHANNELS]):
        for row in range(layer[HEIGHT]):
            begin = (channel * layer[HEIGHT] + row) * width
            for column in range(0, width, most):
                wide = min(most, width - column)
                for image in range(images):
                    source = np.uintp(begin + column)
                    for step in range(np.uintp(wide)):
                        line[step * images + image] = inputs[first + image, source + step]
                _put_lines(line, 0, images, layer, channel, row, column, wide, panel)


@compiled
def _copy_out(sums: Array, at: int, images: int, place: int, wide: int, first: int, outputs: Array) -> None:
    """Copy pixels to the images' outputs."""
    for image in range(images):
        source, to = np.uintp(at + image), np.uintp(place)
        for step in range(np.uintp(wide)):
            outputs[first + image, to + step] = sums[source + step * np.uintp(images)]


@compiled
def _sum_four(panel: Array, base: int, images: int, shifts: Array, first: int, last: int, weights: Array, v: int,
              biases: Array, bias: int, sums: Array, lanes: int) -> None:  # fmt: skip
    """Compute sums of four filters."""
    a, b, c, d = np.uintp(0), np.uintp(ROOM), np.uintp(2 * ROOM), np.uintp(3 * ROOM)
    za, zb, zc, zd = biases[bias], biases[bias + 1], biases[bias + 2], biases[bias + 3]
    for lane in range(np.uintp(lanes)):
        sums[a + lane] = za
        sums[b + lane] = zb
        sums[c + lane] = zc
        sums[d + lane] = zd
    for tap in range(first, last, 4):
        s0, s1 = np.uintp((base + shifts[tap]) * images), np.uintp((base + shifts[tap + 1]) * images)
        s2, s3 = np.uintp((base + shifts[tap + 2]) * images), np.uintp((base + shifts[tap + 3]) * images)
        a0, a1, a2, a3 = weights[v], weights[v + 1], weights[v + 2], weights[v + 3]
        b0, b1, b2, b3 = weights[v + 4], weights[v + 5], weights[v + 6], weights[v + 7]
        c0, c1, c2, c3 = weights[v + 8], weights[v + 9], weights[v + 10], weights[v + 11]
        d0, d1, d2, d3 = weights[v + 12], weights[v + 13], weights[v + 14], weights[v + 15]
        v += 16
        for lane in range(np.uintp(lanes)):
            x0, x1, x2, x3 = panel[s0 + lane], panel[s1 + lane], panel[s2 + lane], panel[s3 + lane]
            sums[a + lane] = (((sums[a + lane] + x0 * a0) + x1 * a1) + x2 * a2) + x3 * a3
            sums[b + lane] = (((sums[b + lane] + x0 * b0) + x1 * b1) + x2 * b2) + x3 * b3
            sums[c + lane] = (((sums[c + lane] + x0 * c0) + x1 * c1) + x2 * c2) + x3 * c3
            sums[d + lane] = (((sums[d + lane] + x0 * d0) + x1 * d1) + x2 * d2) + x3 * d3


@compiled
def _sum_one(panel: Array, base: int, images: int, shifts: Array, first: int, last: int, weights: Array, v: int,
             bias: float, sums: Array, lanes: int) -> None:  # fmt: skip
    """Compute sums of one filter."""
    for lane in range(np.uintp(lanes)):
        sums[lane] = bias
    tap = first
    while tap + 8 <= last:
        s0, s1 = np.uintp((base + shifts[tap]) * images), np.uintp((base + shifts[tap + 1]) * images)
        s2, s3 = np.uintp((base + shifts[tap + 2]) * images), np.uintp((base + shifts[tap + 3]) * images)
        s4, s5 = np.uintp((base + shifts[tap + 4]) * images), np.uintp((base + shifts[tap + 5]) * images)
        s6, s7 = np.uintp((base + shifts[tap + 6]) * images), np.uintp((base + shifts[tap + 7]) * images)
        w0, w1, w2, w3 = weights[v], weights[v + 1], weights[v + 2], weights[v + 3]
        w4, w5, w6, w7 = weights[v + 4], weights[v + 5], weights[v + 6], weights[v + 7]
        for lane in range(np.uintp(lanes)):
            z = sums[lane] + panel[s0 + lane] * w0
            z = z + panel[s1 + lane] * w1
            z = z + panel[s2 + lane] * w2
            z = z + panel[s3 + lane] * w3
            z = z + panel[s4 + lane] * w4
            z = z + panel[s5 + lane] * w5
            z = z + panel[s6 + lane] * w6
            sums[lane] = z + panel[s7 + lane] * w7
        tap, v = tap + 8, v + 8
    if tap < last:
        s0, s1 = np.uintp((base + shifts[tap]) * images), np.uintp((base + shifts[tap + 1]) * images)
        s2, s3 = np.uintp((base + shifts[tap + 2]) * images), np.uintp((base + shifts[tap + 3]) * images)
        w0, w1, w2, w3 = weights[v], weights[v + 1], weights[v + 2], weights[v + 3]
        for lane in range(np.uintp(lanes)):
            z = sums[lane] + panel[s0 + lane] * w0
            z = z + panel[s1 + lane] * w1
            z = z + panel[s2 + lane] * w2
            sums[lane] = z + panel[s3 + lane] * w3


@compiled
def _larger(a: float, b: float) -> float:
    """Return the larger number; a NaN is larger than any."""
    larger: float = a if b <= a or a != a else b
    return larger


@compiled
def _take_largest(panel: Array, base: int, images: int, shifts: Array, first: int, last: int, sums: Array,
                  lanes: int) -> None:  # fmt: skip
    """Take the largest of the pixels that a window meets."""
    for lane in range(np.uintp(lanes)):
        sums[lane] = np.float32(-np.inf)
    for tap in range(first, last, 4):
        s0, s1 = np.uintp((base + shifts[tap]) * images), np.uintp((base + shifts[tap + 1]) * images)
        s2, s3 = np.uintp((base + shifts[tap + 2]) * images), np.uintp((base + shifts[tap + 3]) * images)
        for lane in range(np.uintp(lanes)):
            z = _larger(_larger(sums[lane], panel[s0 + lane]), panel[s1 + lane])
            sums[lane] = _larger(_larger(z, panel[s2 + lane]), panel[s3 + lane])


@compiled
def _take_mean(panel: Array, base: int, images: int, shifts: Array, first: int, last: int, totals: Array, sums: Array,
               lanes: int) -> None:  # fmt: skip
    """Add up the pixels that a window meets, in float64, and divide by their number."""
    for lane in range(np.uintp(lanes)):
        totals[lane] = 0.0
    for tap in range(first, last):
        s0 = np.uintp((base + shifts[tap]) * images)
        for lane in range(np.uintp(lanes)):
            totals[lane] += panel[s0 + lane]
    for lane in range(np.uintp(lanes)):
        sums[lane] = np.float32(totals[lane] / (last - first))


@compiled
def _activate(kind: int, clip: float, sums: Array, at: int, lanes: int) -> None:
    """Apply the activation to sums."""
    zero, one, top, begin = np.float32(0), np.float32(1), np.float32(clip), np.uintp(at)
    if kind == RELU:
        for lane in range(np.uintp(lanes)):
            z = sums[begin + lane]
            z = zero if z < zero else z
            sums[begin + lane] = top if z > top else z
    elif kind == SIGMOID:
        for lane in range(np.uintp(lanes)):
            z = sums[begin + lane]
            decay = np.float32(np.exp(-abs(z)))
            sums[begin + lane] = (one if z >= zero else decay) / (one + decay)
    elif kind != IDENTITY:
        for lane in range(np.uintp(lanes)):
            sums[begin + lane] = np.tanh(sums[begin + lane])


@compiled
def _run_block(packed: Any, number: int, block: Array, panel: Array, images: int, base: int, lanes: int, sums: Array,
               totals: Array) -> None:  # fmt: skip
    """Compute some lanes of the outputs of a block."""
    layer = packed.layers[number]
    first, last, v, bias = block[2], block[3], block[4], layer[FIRST_BIAS] + block[0]
    if layer[KIND] == LARGEST:
        _take_largest(panel, base, images, packed.shifts, first, last, sums, lanes)
    elif layer[KIND] == MEAN:
        _take_mean(panel, base, images, packed.shifts, first, last, totals, sums, lanes)
    elif block[1] == 1:
        _sum_one(panel, base, images, packed.shifts, first, last, packed.weights, v, packed.biases[bias], sums, lanes)
    else:
        _sum_four(panel, base, images, packed.shifts, first, last, packed.weights, v, packed.biases, bias, sums, lanes)


@compiled
def run_layer(packed: Any, number: int, first_block: int, last_block: int, panel: Array, images: int, after: Array,
              first: int, outputs: Array, sums: Array, totals: Array) -> None:  # fmt: skip
    """Compute the outputs of some blocks of a layer for a panel.

    panel : what the layer reads. after : what the next layer reads; the last layer's outputs go to rows of `outputs`,
        from `first` on.
    """
    layer = packed.layers[number]
    is_last = number + 1 == packed.layers.shape[0]
    columns, height, width = layer[COLUMNS], layer[OUTPUT_HEIGHT], layer[OUTPUT_WIDTH]
    most_lines = 1
    if width == columns or width * images < ENOUGH:
        most_lines = max(1, min(height, LANES // (columns * images)))
    most_wide = min(width, LANES // images)
    for row in range(0, height, most_lines):
        lines = min(most_lines, height - row)
        for column in range(0, width, most_wide):
            wide = min(most_wide, width - column)
            lanes = ((lines - 1) * columns + wide) * images
            padded = (lanes + STEP - 1) // STEP * STEP
            for index in range(first_block, last_block):
                block = packed.blocks[index]
                _run_block(packed, number, block, panel, images, row * columns + column, padded, sums, totals)
                for k in range(block[1]):
                    channel = block[0] + k
                    _activate(layer[ACTIVATION], packed.clips[number], sums, k * ROOM, lanes)
                    for line in range(lines):
                        at = k * ROOM + line * columns * images
                        if is_last:
                            place = (channel * height + row + line) * width + column
                            _copy_out(sums, at, images, place, wide, first, outputs)
                        else:
                            _put_lines(sums, at, images, packed.layers[number + 1], channel, row + line, column, wide,
                                       after)  # fmt: skip


@compiled
def begin_layer(packed: Any, number: int, images: int, panel: Array) -> None:
    """Fill a layer's padding, where it has any, with what makes no difference."""
    layer = packed.layers[number]
    if layer[ABOVE] + layer[BESIDE] > 0:
        panel[: layer[PIXELS] * images] = np.float32(-np.inf if layer[KIND] == LARGEST else 0)


@compiled
def copy_in(packed: Any, inputs: Array, first: int, images: int, panel: Array, sums: Array) -> None:
    """Make a panel of images for the first layer."""
    begin_layer(packed, 0, images, panel)
    _copy_in(inputs, first, images, packed.layers[0], sums, panel)


@compiled
def run_panels(packed: Any, inputs: Array, first: int, last: int, together: int, even: Array, odd: Array, sums: Array,
               totals: Array, outputs: Array) -> None:  # fmt: skip
    """Take images, `together` of them a panel, through all layers.

    even, odd : room for what layers read, in turn.
    """
    for start in range(first, last, together):
        images = min(together, last - start)
        copy_in(packed, inputs, start, images, even, sums)
        for number in range(packed.layers.shape[0]):
            layer = packed.layers[number]
            panel, after = (even, odd) if number % 2 == 0 else (odd, even)
            if number + 1 < packed.layers.shape[0]:
                begin_layer(packed, number + 1, images, after)
            run_layer(packed, number, layer[FIRST_BLOCK], layer[LAST_BLOCK], panel, images, after, start, outputs,
                      sums, totals)  # fmt: skip
