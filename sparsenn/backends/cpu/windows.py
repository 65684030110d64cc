"""Panels of images through convolutions and poolings: lanes of pixels, tap by tap (`planes` says how they lie).

A sum begins at its bias, and takes one fused multiply-add after the other, in the order of a filter's weights. So an
image's outputs have the same bits whatever images come with it, and however the work is cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.backends.cpu import planes
from sparsenn.backends.cpu.activation import IDENTITY, activate_line
from sparsenn.backends.cpu.tiles import TILE, WIDE_TILE, four_filters, largest_of_window, one_filter, one_filter_wide
from sparsenn.backends.kernel_records import PANEL
from sparsenn.formats import Array
from sparsenn.runtime.jit import compiled

__all__ = ["ENOUGH", "LANES", "ROOM", "begin_layer", "copy_in", "run_layer", "run_panels"]

LANES = 512  # sums computed side by side, of each of four filters: 8 KiB, which stay in a first-level cache
ROOM = LANES + WIDE_TILE  # numbers from one filter's sums to the next's

ENOUGH = 2 * TILE
"""Lanes of one line that are worth a walk over the taps; of shorter ones some go together, with what is between."""


@compiled
def _put(sums: Array, at: int, apart: int, images: int, layers: Array, number: int, channel: int, row: int, lines: int,
         column: int, wide: int, panel: Array) -> None:  # fmt: skip
    """Copy pixels of some rows of a channel, which lie `apart`, to where layer `number` reads them."""
    down, across = layers[number, planes.DOWN], layers[number, planes.ACROSS]
    columns, size = layers[number, planes.COLUMNS], layers[number, planes.PLANE]
    line, remainder = divmod(row + layers[number, planes.ABOVE], down)
    first_place, first_across = divmod(column + layers[number, planes.BESIDE], across)
    for _ in range(lines):
        base = (channel * down + remainder) * across * size + line * columns
        place, across_remainder = first_place, first_across
        for begin in range(min(across, wide)):
            to = np.uintp((base + across_remainder * size + place) * images)
            source = np.uintp(at + begin * images)
            if across == 1:
                for lane in range(np.uintp(wide * images)):
                    panel[to + lane] = sums[source + lane]
            elif images == 1:
                for step in range(np.uintp((wide - begin + across - 1) // across)):
                    panel[to + step] = sums[source + step * np.uintp(across)]
            else:
                for _ in range((wide - begin + across - 1) // across):
                    if images == PANEL:
                        for lane in range(np.uintp(PANEL)):
                            panel[to + lane] = sums[source + lane]
                    else:
                        for lane in range(np.uintp(images)):
                            panel[to + lane] = sums[source + lane]
                    to, source = to + np.uintp(images), source + np.uintp(across * images)
            across_remainder += 1
            if across_remainder == across:
                place, across_remainder = place + 1, 0
        at += apart
        remainder += 1
        if remainder == down:
            line, remainder = line + 1, 0


@compiled
def begin_layer(packed: Any, number: int, images: int, panel: Array) -> None:
    """Fill a layer's padding, where it has any, with what makes no difference."""
    layers = packed.layers
    if layers[number, planes.PADDED] > 0:
        nothing = np.float32(-np.inf if layers[number, planes.KIND] == planes.LARGEST else 0)
        for lane in range(np.uintp(layers[number, planes.PIXELS] * images)):
            panel[lane] = nothing


@compiled
def copy_in(packed: Any, inputs: Array, first: int, images: int, line: Array, panel: Array) -> None:
    """Make a panel of images for the first layer."""
    layers = packed.layers
    begin_layer(packed, 0, images, panel)
    height, width = layers[0, planes.HEIGHT], layers[0, planes.WIDTH]
    most = LANES // images
    for channel in range(layers[0, planes.CHANNELS]):
        for row in range(height):
            begin = (channel * height + row) * width
            for column in range(0, width, most):
                wide = min(most, width - column)
                for image in range(images):
                    source = np.uintp(begin + column)
                    for step in range(np.uintp(wide)):
                        line[step * np.uintp(images) + image] = inputs[first + image, source + step]
                _put(line, 0, 0, images, layers, 0, channel, row, 1, column, wide, panel)


@compiled
def _copy_out(sums: Array, at: int, images: int, place: int, wide: int, first: int, outputs: Array) -> None:
    if images == 1:
        for step in range(np.uintp(wide)):
            outputs[first, np.uintp(place) + step] = sums[np.uintp(at) + step]
        return
    for image in range(images):
        source, to = np.uintp(at + image), np.uintp(place)
        for step in range(np.uintp(wide)):
            outputs[first + image, to + step] = sums[source + step * np.uintp(images)]


@compiled
def _take_mean(panel: Array, base: int, images: int, shifts: Array, first: int, last: int, divisors: Array,
               divisor: int, totals: Array, sums: Array, lanes: int) -> None:  # fmt: skip
    for lane in range(np.uintp(lanes)):
        totals[lane] = 0.0
    for tap in range(first, last):
        s0 = np.uintp((base + shifts[tap]) * images)
        for lane in range(np.uintp(lanes)):
            totals[lane] += panel[s0 + lane]
    if divisor >= 0:
        for lane in range(np.uintp(lanes)):
            sums[lane] = np.float32(totals[lane] / divisors[np.uintp(divisor + base) + lane // np.uintp(images)])
        return
    for lane in range(np.uintp(lanes)):
        sums[lane] = np.float32(totals[lane] / (last - first))


@compiled
def _run_tiles(packed: Any, number: int, index: int, panel: Array, images: int, base: int, lanes: int, sums: Array,
               totals: Array) -> None:  # fmt: skip
    blocks, shifts, weights, biases = packed.blocks, packed.shifts, packed.weights, packed.biases
    kind, bias = packed.layers[number, planes.KIND], packed.layers[number, planes.FIRST_BIAS] + blocks[index, 0]
    first, last, v = blocks[index, 2], blocks[index, 3], blocks[index, 4]
    if kind == planes.MEAN:
        divisor = packed.layers[number, planes.FIRST_DIVISOR]
        _take_mean(panel, base, images, shifts, first, last, packed.divisors, divisor, totals, sums, lanes)
        return
    lane = 0
    while lane < lanes:
        at = base * images + lane
        if kind == planes.LARGEST:
            largest_of_window(panel, at, images, shifts, first, last, weights, v, biases, bias, sums, lane, ROOM)
        elif blocks[index, 1] == planes.TOGETHER:
            four_filters(panel, at, images, shifts, first, last, weights, v, biases, bias, sums, lane, ROOM)
        elif lane + WIDE_TILE <= lanes:
            one_filter_wide(panel, at, images, shifts, first, last, weights, v, biases, bias, sums, lane, ROOM)
            lane += TILE
        else:
            one_filter(panel, at, images, shifts, first, last, weights, v, biases, bias, sums, lane, ROOM)
        lane += TILE


@compiled
def run_layer(packed: Any, number: int, first_block: int, last_block: int, panel: Array, images: int, after: Array,
              first: int, outputs: Array, sums: Array, totals: Array) -> None:  # fmt: skip
    """Compute some blocks' outputs for a panel, into `after`; of the last layer, into `outputs` from row `first` on."""
    layers, blocks = packed.layers, packed.blocks
    is_last = number + 1 == layers.shape[0]
    columns = layers[number, planes.COLUMNS]
    height, width = layers[number, planes.OUTPUT_HEIGHT], layers[number, planes.OUTPUT_WIDTH]
    activation, clip = layers[number, planes.ACTIVATION], packed.clips[number]
    most_lines = 1
    if width == columns or width * images < ENOUGH:
        most_lines = max(1, min(height, LANES // (columns * images)))
    most_wide = min(width, LANES // images)
    for row in range(0, height, most_lines):
        lines = min(most_lines, height - row)
        for column in range(0, width, most_wide):
            wide = min(most_wide, width - column)
            lanes = ((lines - 1) * columns + wide) * images
            padded = (lanes + TILE - 1) // TILE * TILE
            for index in range(first_block, last_block):
                _run_tiles(packed, number, index, panel, images, row * columns + column, padded, sums, totals)
                for k in range(blocks[index, 1]):
                    channel = blocks[index, 0] + k
                    if activation != IDENTITY:
                        activate_line(activation, sums, k * ROOM, lanes, np.float32(clip))
                    if is_last:
                        for line in range(lines):
                            at, place = k * ROOM + line * columns * images, (channel * height + row + line) * width
                            _copy_out(sums, at, images, place + column, wide, first, outputs)
                    else:
                        _put(sums, k * ROOM, columns * images, images, layers, number + 1, channel, row, lines, column,
                             wide, after)  # fmt: skip


@compiled
def run_panels(packed: Any, inputs: Array, first: int, last: int, together: int, even: Array, odd: Array, sums: Array,
               totals: Array, outputs: Array) -> None:  # fmt: skip
    """Take images, `together` of them a panel, through all layers; `even` and `odd` are what layers read, in turn."""
    for start in range(first, last, together):
        images = min(together, last - start)
        copy_in(packed, inputs, start, images, sums, even)
        for number in range(packed.layers.shape[0]):
            panel, after = (even, odd) if number % 2 == 0 else (odd, even)
            if number + 1 < packed.layers.shape[0]:
                begin_layer(packed, number + 1, images, after)
            begin, end = packed.layers[number, planes.FIRST_BLOCK], packed.layers[number, planes.LAST_BLOCK]
            run_layer(packed, number, begin, end, panel, images, after, start, outputs, sums, totals)
