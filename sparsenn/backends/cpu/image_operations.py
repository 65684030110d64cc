"""Operations on images in compiled functions: lanes of pixels, tap by tap (`grids` says how they lie).

A sum begins at its bias, and takes one fused multiply-add after the other, in the order of a filter's weights. So an
image's outputs have the same bits whatever images come with it, and however the work is cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.backends.cpu import image_program as at
from sparsenn.backends.cpu.activation import IDENTITY, RELU, activate_line
from sparsenn.backends.cpu.filter_tiles import (
    MOST_SHARED,
    MOST_VECTORS,
    add_atomically,
    pair_of_filters,
    sharing_filters,
)
from sparsenn.backends.cpu.tiles import VECTOR
from sparsenn.formats import Array
from sparsenn.runtime.jit import compiled

__all__ = ["run_operations"]

WORTH_SHARING = 20_000  # multiply-adds of a chunk at least: about a microsecond, as a hand-over between caches takes

SPINS = 100_000  # looks at a counter, about 0.1 ms, before a thread that waits lets others run


@compiled
def _fill(arena: Array, first: int, last: int) -> None:
    for place in range(first, last):
        arena[np.uintp(place)] = np.float32(0)


@compiled
def _empty(one: Any, channel: int, arena: Array, used: int, is_last: bool) -> None:
    """Fill the margins around the lanes that are used in a plane, and after the last plane, with zeros."""
    begin = one[at.TARGET] + channel * one[at.TARGET_PLANE]
    _fill(arena, begin - one[at.TOP], begin)
    _fill(arena, begin + used, begin + one[at.BODY])
    if is_last:
        _fill(arena, begin + one[at.BODY], begin + one[at.BODY] + one[at.TOP])


@compiled
def _lanes(one: Any, images: int) -> int:
    """Return the lanes from the first pixel of the first image to the last of the last one."""
    found: int = (
        (images - 1) * one[at.TARGET_IMAGE] + (one[at.TARGET_HEIGHT] - 1) * one[at.TARGET_LINE] + one[at.TARGET_WIDTH]
    )
    return found


@compiled
def _copy(packed: Any, one: Any, channel: int, inputs: Array, row: int, images: int, arena: Array) -> None:
    """Copy a channel, its pixels sorted by the remainders of their line and column."""
    down, across, height, width = one[at.DOWN], one[at.ACROSS], one[at.SOURCE_HEIGHT], one[at.SOURCE_WIDTH]
    first, last = one[at.FIRST_PHASE], one[at.LAST_PHASE]
    for number in range(first, last):
        plane = channel * (last - first) + number - first
        _empty(one, plane, arena, 0, True)
        top, left = packed.phases[number, 0], packed.phases[number, 1]
        wide = np.uintp((width - left + across - 1) // across)
        for image in range(images):
            to = one[at.TARGET] + plane * one[at.TARGET_PLANE] + image * one[at.TARGET_IMAGE]
            for line in range(top, height, down):
                source, target = channel * one[at.SOURCE_PLANE] + line * one[at.SOURCE_LINE] + left, np.uintp(to)
                if one[at.SOURCE] < 0:
                    begin = np.uintp(source)
                    for x in range(wide):
                        arena[target + x] = inputs[row + image, begin + x * np.uintp(across)]
                else:
                    begin = np.uintp(source + one[at.SOURCE] + image * one[at.SOURCE_IMAGE])
                    if across == 1:
                        for x in range(wide):
                            arena[target + x] = arena[begin + x]
                    elif across == 2:
                        for x in range(wide):
                            arena[target + x] = arena[begin + np.uintp(2) * x]
                    else:
                        for x in range(wide):
                            arena[target + x] = arena[begin + x * np.uintp(across)]
                to += one[at.TARGET_LINE]


@compiled
def _output(one: Any, channel: int, arena: Array, row: int, images: int, outputs: Array) -> None:
    height, width = one[at.SOURCE_HEIGHT], one[at.SOURCE_WIDTH]
    for image in range(images):
        for line in range(height):
            target = np.uintp((channel * height + line) * width)
            begin = np.uintp(one[at.SOURCE] + channel * one[at.SOURCE_PLANE] + image * one[at.SOURCE_IMAGE]
                             + line * one[at.SOURCE_LINE])  # fmt: skip
            for x in range(np.uintp(width)):
                outputs[row + image, target + x] = arena[begin + x]


@compiled
def _larger(one: Any, other: Any) -> Any:
    """Return the larger number; a NaN is larger than any."""
    return other if not (other <= one or one != one) else one


@compiled
def _take_largest(one: Any, base: int, to: int, arena: Array, line: Array, y: int) -> None:
    """Compute a line of outputs: the largest of each column of the windows, then of some columns."""
    width = np.uintp(one[at.SOURCE_WIDTH])
    first = max(0, y * one[at.DOWN] - one[at.ABOVE])
    last = min(one[at.SOURCE_HEIGHT], y * one[at.DOWN] - one[at.ABOVE] + one[at.WINDOW_LINES])
    for x in range(width):
        line[x] = arena[np.uintp(base + first * one[at.SOURCE_LINE]) + x]
    for number in range(first + 1, last):
        source = np.uintp(base + number * one[at.SOURCE_LINE])
        for x in range(width):
            line[x] = _larger(line[x], arena[source + x])
    for column in range(one[at.WINDOW_COLUMNS]):
        begin, end, start = _columns(one, column)
        if column == 0:
            for x in range(np.uintp(one[at.TARGET_WIDTH])):
                arena[np.uintp(to) + x] = -np.inf
        for x in range(end - begin):
            place = np.uintp(to + begin + x)
            arena[place] = _larger(arena[place], line[np.uintp(start + x * one[at.ACROSS])])


@compiled
def _columns(one: Any, column: int) -> tuple[int, int, int]:
    """Return the outputs whose windows' column is in the image, the last excluded, and the pixel of the first."""
    across, offset = one[at.ACROSS], column - one[at.BESIDE]
    begin = max(0, (across - 1 - offset) // across)
    end = min(one[at.TARGET_WIDTH], (one[at.SOURCE_WIDTH] - 1 - offset) // across + 1)
    return begin, max(begin, end), begin * across + offset


@compiled
def _take_mean(one: Any, base: int, to: int, arena: Array, totals: Array, y: int) -> None:
    width = one[at.TARGET_WIDTH]
    for x in range(width):
        totals[x] = 0.0
    top = y * one[at.DOWN] - one[at.ABOVE]
    first, last = max(0, top), min(one[at.SOURCE_HEIGHT], top + one[at.WINDOW_LINES])
    if width == 1:
        begin, end = max(0, -one[at.BESIDE]), min(one[at.SOURCE_WIDTH], one[at.WINDOW_COLUMNS] - one[at.BESIDE])
        total = 0.0
        for line in range(first, last):
            for x in range(begin, end):
                total += arena[np.uintp(base + line * one[at.SOURCE_LINE] + x)]
        totals[0] = total
    else:
        for line in range(first, last):
            for column in range(one[at.WINDOW_COLUMNS]):
                begin, end, start = _columns(one, column)
                source = base + line * one[at.SOURCE_LINE] + start
                for x in range(end - begin):
                    totals[begin + x] += arena[np.uintp(source + x * one[at.ACROSS])]
    for x in range(width):
        divisor = one[at.WINDOW_LINES] * one[at.WINDOW_COLUMNS]
        if one[at.COUNTS_PADDING] == 0:
            left = x * one[at.ACROSS] - one[at.BESIDE]
            wide = min(one[at.SOURCE_WIDTH], left + one[at.WINDOW_COLUMNS]) - max(0, left)
            divisor = (last - first) * wide
        arena[np.uintp(to + x)] = np.float32(totals[x] / divisor)


@compiled
def _pool(one: Any, channel: int, images: int, arena: Array, line: Array, totals: Array) -> None:
    if one[at.MASK] >= 0:
        _empty(one, channel, arena, 0, True)
    for image in range(images):
        base = one[at.SOURCE] + channel * one[at.SOURCE_PLANE] + image * one[at.SOURCE_IMAGE]
        to = one[at.TARGET] + channel * one[at.TARGET_PLANE] + image * one[at.TARGET_IMAGE]
        for y in range(one[at.TARGET_HEIGHT]):
            if one[at.KIND] == at.LARGEST:
                _take_largest(one, base, to, arena, line, y)
            else:
                _take_mean(one, base, to, arena, totals, y)
            to += one[at.TARGET_LINE]


@compiled
def _mask_lanes(packed: Any, one: Any, to: int, lane: int, count: int, arena: Array) -> None:
    for place in range(np.uintp(count)):
        if packed.masks[np.uintp(one[at.MASK] + lane) + place] == 0:
            arena[np.uintp(to) + place] = np.float32(0)


@compiled
def _combine(packed: Any, one: Any, clip: Any, channel: int, images: int, arena: Array) -> None:
    """Compute a channel of a sum or product of two values."""
    lanes = _lanes(one, images)
    begin, to = (
        np.uintp(one[at.SOURCE] + channel * one[at.SOURCE_PLANE]),
        one[at.TARGET] + channel * one[at.TARGET_PLANE],
    )
    other, target = np.uintp(one[at.OTHER] + channel * one[at.OTHER_PLANE]), np.uintp(to)
    if one[at.KIND] == at.ADD:
        for lane in range(np.uintp(lanes)):
            arena[target + lane] = arena[begin + lane] + arena[other + lane]
    elif one[at.KIND] == at.MULTIPLY:
        for lane in range(np.uintp(lanes)):
            arena[target + lane] = arena[begin + lane] * arena[other + lane]
    else:
        for image in range(images):
            factor, first = arena[other + np.uintp(image * one[at.OTHER_IMAGE])], np.uintp(image * one[at.TARGET_IMAGE])
            for lane in range(first, min(np.uintp(lanes), first + np.uintp(one[at.TARGET_IMAGE]))):
                arena[target + lane] = arena[begin + lane] * factor
    if one[at.ACTIVATION] != IDENTITY:
        activate_line(one[at.ACTIVATION], arena, to, lanes, clip)
    if one[at.MASK] >= 0:
        _mask_lanes(packed, one, to, 0, lanes, arena)
        _empty(one, channel, arena, lanes, True)


@compiled
def _convolve_tile(packed: Any, one: Any, clip: Any, lane: int, vectors: int, first: int, last: int,
                   arena: Array) -> None:  # fmt: skip
    """Compute some blocks of filters at some lanes."""
    blocks, biases, source, mask_at = packed.blocks, packed.biases, one[at.SOURCE] + lane, one[at.MASK] + lane
    to, plane, bias, kind = one[at.TARGET] + lane, one[at.TARGET_PLANE], one[at.FIRST_BIAS], one[at.ACTIVATION]
    residual, simple = one[at.OTHER] - one[at.TARGET], kind in (IDENTITY, RELU)
    flags = (one[at.OTHER] >= 0) + 2 * (kind == RELU) + 4 * (simple and one[at.MASK] >= 0)
    for index in range(first, last):
        a, b, c, d = blocks[index, 3], blocks[index, 4], blocks[index, 5], blocks[index, 6]
        f = blocks[index, 1]
        if blocks[index, 0] == 2:
            g = blocks[index, 2]
            begins, outs = (biases[bias + f], biases[bias + g]), (to + f * plane, to + g * plane)
            pair_of_filters(arena, source, packed.shifts, packed.weights, (a, b, c, d), begins, outs, residual,
                            packed.masks, mask_at, flags, clip, vectors)  # fmt: skip
        else:
            q = bias + f
            four = biases[q], biases[q + 1], biases[q + 2], biases[q + 3]
            outputs = to + f * plane, to + (f + 1) * plane, to + (f + 2) * plane, to + (f + 3) * plane
            done = 0
            while done < vectors:
                some, more = min(MOST_SHARED, vectors - done), done * VECTOR
                ends = outputs[0] + more, outputs[1] + more, outputs[2] + more, outputs[3] + more
                sharing_filters(arena, source + more, packed.shared_shifts, packed.shared_weights, (a, b, c), four,
                                ends, residual, packed.masks, mask_at + more, flags, clip, some)  # fmt: skip
                done += some
        if not simple:
            for k in range(blocks[index, 0]):
                channel = f + k if k == 0 or blocks[index, 0] > 2 else blocks[index, 2]
                if k == 1 and channel == f:
                    break
                activate_line(kind, arena, to + channel * plane, vectors * VECTOR, clip)
                if one[at.MASK] >= 0:
                    _mask_lanes(packed, one, to + channel * plane, lane, vectors * VECTOR, arena)


@compiled
def _is_apart(one: Any, images: int) -> bool:
    """Whether images are convolved one by one, since there is much between their lanes."""
    span = (_lanes(one, 1) + VECTOR - 1) // VECTOR * VECTOR
    found: bool = images > 1 and one[at.MASK] < 0 and 2 * span <= one[at.TARGET_IMAGE]
    return found


@compiled
def _convolve(packed: Any, one: Any, clip: Any, images: int, first_tile: int, last_tile: int, tiles: int, first: int,
              last: int, arena: Array) -> None:  # fmt: skip
    """Compute some blocks of filters at some tiles of lanes; margins are filled along with the first tile."""
    runs, each = (images, 1) if _is_apart(one, images) else (1, images)
    vectors = (_lanes(one, each) + VECTOR - 1) // VECTOR
    for tile in range(first_tile, last_tile):
        begin, end = tile * vectors // tiles, (tile + 1) * vectors // tiles
        for run in range(runs):
            lane = run * one[at.TARGET_IMAGE] + begin * VECTOR
            _convolve_tile(packed, one, clip, lane, end - begin, first, last, arena)
    if first_tile == 0 and one[at.MASK] >= 0:
        for index in range(first, last):
            f = packed.blocks[index, 1]
            for k in range(packed.blocks[index, 0]):
                channel = f + k if packed.blocks[index, 0] > 2 or k == 0 else packed.blocks[index, 2]
                _empty(one, channel, arena, vectors * VECTOR, channel == one[at.CHANNELS] - 1)


@compiled
def _run_chunk(packed: Any, number: int, chunk: int, chunks: int, inputs: Array, row: int, images: int, arena: Array,
               line: Array, totals: Array, outputs: Array) -> None:  # fmt: skip
    one, clip = packed.operations[number], packed.clips[number]
    if one[at.KIND] == at.CONVOLVE:
        tiles, first, last = _tiles(one, images), one[at.FIRST_BLOCK], one[at.LAST_BLOCK]
        if tiles >= chunks:
            _convolve(packed, one, clip, images, tiles * chunk // chunks, tiles * (chunk + 1) // chunks, tiles, first,
                      last, arena)  # fmt: skip
            return
        tile, part, parts = chunk % tiles, chunk // tiles, chunks // tiles
        begin, end = first + (last - first) * part // parts, first + (last - first) * (part + 1) // parts
        _convolve(packed, one, clip, images, tile, tile + 1, tiles, begin, end, arena)
        return
    channels = one[at.CHANNELS]
    for channel in range(channels * chunk // chunks, channels * (chunk + 1) // chunks):
        if one[at.KIND] == at.COPY:
            _copy(packed, one, channel, inputs, row, images, arena)
        elif one[at.KIND] == at.OUTPUT:
            _output(one, channel, arena, row, images, outputs)
        elif one[at.KIND] == at.LARGEST or one[at.KIND] == at.MEAN:
            _pool(one, channel, images, arena, line, totals)
        else:
            _combine(packed, one, clip, channel, images, arena)


@compiled
def _tiles(one: Any, images: int) -> int:
    vectors = (_lanes(one, 1 if _is_apart(one, images) else images) + VECTOR - 1) // VECTOR
    found: int = (vectors + MOST_VECTORS - 1) // MOST_VECTORS
    return found


@compiled
def _chunks(one: Any, images: int, most: int) -> int:
    """Return into how many chunks threads share an operation; of convolutions those that tiles or filters allow."""
    most = max(1, min(most, one[at.WORK] * images // WORTH_SHARING))
    if one[at.KIND] != at.CONVOLVE:
        of_channels: int = min(most, one[at.CHANNELS])
        return of_channels
    tiles = _tiles(one, images)
    if tiles >= most:
        return most
    parts: int = max(1, min((most + tiles - 1) // tiles, one[at.LAST_BLOCK] - one[at.FIRST_BLOCK]))
    return tiles * parts


@compiled
def run_operations(packed: Any, begin: int, inputs: Array, row: int, images: int, arena: Array, line: Array,
                   totals: Array, outputs: Array, counters: Array, most: int) -> int:  # fmt: skip
    """Take some images through all operations; returns after which of them they are.

    Threads that are called with the same counters, (operations, 2) int64 and zeros at first, share each operation, in
    up to `most` chunks: a thread takes the next one that is left, and waits for those of others before it begins with
    the next operation. Where that takes long, the call returns the number of the operation, and is to be repeated with
    it as `begin`. So nobody waits for a thread that has not begun.
    """
    count = packed.operations.shape[0]
    for number in range(begin, count):
        if most == 1:
            _run_chunk(packed, number, 0, 1, inputs, row, images, arena, line, totals, outputs)
            continue
        chunks = _chunks(packed.operations[number], images, most)
        while True:
            chunk = add_atomically(counters, 2 * number, 1)
            if chunk >= chunks:
                break
            _run_chunk(packed, number, chunk, chunks, inputs, row, images, arena, line, totals, outputs)
            add_atomically(counters, 2 * number + 1, 1)
        spins = 0
        while add_atomically(counters, 2 * number + 1, 0) < chunks:
            spins += 1
            if spins == SPINS:
                return number
    done: int = count
    return done
