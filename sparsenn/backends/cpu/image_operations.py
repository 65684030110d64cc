"""Operations on images in compiled functions: lanes of pixels, tap by tap (`grids` says how they lie).

A sum begins at its bias, and takes one fused multiply-add after the other, in the order of a filter's weights. So an
image's outputs have the same bits for any other images beside it, and however the work is cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.backends.cpu import image_packing as at
from sparsenn.backends.cpu.activation import IDENTITY, RELU, activate_line
from sparsenn.backends.cpu.filter_tiles import (
    MOST_SHARED,
    MOST_VECTORS,
    add_atomically,
    pair_of_filters,
    read_atomically,
    sharing_filters,
)
from sparsenn.backends.cpu.tiles import VECTOR, add_lines, larger, raise_squares, raise_vectors, sort_lines
from sparsenn.formats import Array
from sparsenn.runtime.jit import uncounted

LANES = MOST_VECTORS * VECTOR  # of a tile at most: of a filter's partial sums

SPINS = 100_000  # polls of a counter, about 0.1 ms, before a thread that waits lets others run


@uncounted
def _fill(arena: Array, first: int, last: int) -> None:
    for place in range(first, last):
        arena[np.uintp(place)] = np.float32(0)


@uncounted
def _empty(one: Any, channel: int, arena: Array, used: int) -> None:
    """Fill the margins before the lanes that are used in a plane, and after them up to the next plane's, with zeros."""
    if one[at.MASK] < 0:
        return
    begin = one[at.TARGET] + (channel & one[at.TARGET_BITS]) * one[at.TARGET_PLANE]
    _fill(arena, begin - one[at.TOP], begin)
    _fill(arena, begin + used, begin + one[at.TARGET_PLANE])


@uncounted
def _lanes(one: Any, images: int) -> int:
    """Return the lanes from the first pixel of the first image to the last of the last one."""
    return (
        (images - 1) * one[at.TARGET_IMAGE] + (one[at.TARGET_HEIGHT] - 1) * one[at.TARGET_LINE] + one[at.TARGET_WIDTH]
    )


@uncounted
def _halve(source: Array, begin: int, target: Array, to: int, count: int) -> None:
    """Copy every other number, `count` of them: whole vectors."""
    sort_lines(source, begin, 0, target, to, -1, 0, 1, 2 * count - 1)


@uncounted
def _copy_line(source: Array, begin: int, across: int, arena: Array, to: int, count: int) -> None:
    """Copy every number, or some that are a stride apart."""
    if across == 1:
        for x in range(np.uintp(count)):
            arena[np.uintp(to) + x] = source[np.uintp(begin) + x]
    elif across == 2 and count >= VECTOR:
        _halve(source, begin, arena, to, count // VECTOR * VECTOR)
        last = count - VECTOR  # the last vector overlaps the one before
        _halve(source, begin + 2 * last, arena, to + last, VECTOR)
    else:
        for x in range(np.uintp(count)):
            arena[np.uintp(to) + x] = source[np.uintp(begin) + x * np.uintp(across)]


@uncounted
def _copy(packed: Any, one: Any, channel: int, inputs: Array, row: int, images: int, arena: Array) -> None:
    """Copy a channel, its pixels sorted by the remainders of their line and column."""
    first, last, pairs = one[at.FIRST_PAIR], one[at.LAST_PAIR], packed.pairs
    source = (channel & one[at.SOURCE_BITS]) * one[at.SOURCE_PLANE]
    plane = one[at.TARGET] + (channel & one[at.TARGET_BITS]) * (last - first) * one[at.TARGET_PLANE]
    number = first
    while number < last:
        top, left, phases = pairs[number, 0], pairs[number, 1], 1
        if one[at.ACROSS] == 2 and left == 0 and number + 1 < last and pairs[number + 1, 0] == top:
            phases = 2  # of even and of odd columns, which are read together
        begin = source + top * one[at.SOURCE_LINE] + left
        for image in range(images):
            if one[at.SOURCE] < 0:
                _sort(inputs[row + image], begin, one, top, left, phases, plane, image, images, arena)
            else:
                start = begin + one[at.SOURCE] + image * one[at.SOURCE_IMAGE]
                _sort(arena, start, one, top, left, phases, plane, image, images, arena)
        plane += phases * one[at.TARGET_PLANE]
        number += phases


@uncounted
def _sort(source: Array, begin: int, one: Any, top: int, left: int, phases: int, plane: int, image: int, images: int,
          arena: Array) -> None:  # fmt: skip
    """Copy an image's pixels of one or two phases, which begin at a place, to planes; margins are filled with zeros."""
    down, across, apart, size = one[at.DOWN], one[at.ACROSS], one[at.TARGET_LINE], one[at.TARGET_PLANE]
    lines, columns = (one[at.SOURCE_HEIGHT] - top + down - 1) // down, one[at.SOURCE_WIDTH] - left
    step, to = down * one[at.SOURCE_LINE], plane + image * one[at.TARGET_IMAGE]
    vectors = 0  # lines that are written in whole vectors, up to the next line or beyond
    if across == 2:
        written = min(lines, (plane + size - to - apart - VECTOR + 1) // apart + 1)
        vectors = max(0, min(written, (source.size - begin - 2 * apart - 2 * VECTOR) // step + 1))
        sort_lines(source, begin, step, arena, to, to + size if phases == 2 else -1, apart, vectors, columns)
    for phase in range(phases):
        wide = (columns - phase + across - 1) // across
        for line in range(vectors, lines):
            _copy_line(source, begin + line * step + phase, across, arena, to + line * apart, wide)
        if one[at.MASK] >= 0:
            if image == 0:
                _fill(arena, to - one[at.TOP], to)
            for line in range(vectors, lines):
                _fill(arena, to + line * apart + wide, to + (line + 1) * apart)
            end = one[at.TARGET_IMAGE] if image < images - 1 else size - image * one[at.TARGET_IMAGE]
            _fill(arena, to + lines * apart, to + end)
        to += size


@uncounted
def _output(one: Any, channel: int, arena: Array, row: int, images: int, outputs: Array) -> None:
    height, width = one[at.SOURCE_HEIGHT], one[at.SOURCE_WIDTH]
    for image in range(images):
        for line in range(height):
            target = np.uintp((channel * height + line) * width)
            begin = np.uintp(one[at.SOURCE] + channel * one[at.SOURCE_PLANE] + image * one[at.SOURCE_IMAGE]
                             + line * one[at.SOURCE_LINE])  # fmt: skip
            for x in range(np.uintp(width)):
                outputs[row + image, target + x] = arena[begin + x]


@uncounted
def _take_largest(pairs: Array, one: Any, base: int, to: int, arena: Array, line: Array) -> None:
    """Compute the outputs of a channel of an image: of each line of windows the largest of columns, then across."""
    wide, across, half = np.uintp(one[at.TARGET_WIDTH]), one[at.ACROSS], line.size // 2
    vectors = (one[at.SOURCE_WIDTH] + VECTOR - 1) // VECTOR
    for y in range(one[at.TARGET_HEIGHT]):
        top, target = y * one[at.DOWN] - one[at.ABOVE], np.uintp(to + y * one[at.TARGET_LINE])
        first, last = max(0, top), min(one[at.SOURCE_HEIGHT], top + one[at.WINDOW_LINES])
        for number in range(first, last):
            raise_vectors(line, 0, arena, base + number * one[at.SOURCE_LINE], vectors, number == first)
        for x in range(wide):
            arena[target + x] = np.float32(-np.inf)
        for column in range(one[at.WINDOW_COLUMNS]):
            begin, end = pairs[one[at.FIRST_PAIR] + column, 0], pairs[one[at.FIRST_PAIR] + column, 1]
            start, count, place = begin * across + column - one[at.BESIDE], end - begin, target + np.uintp(begin)
            if across == 2 and count >= VECTOR:
                _halve(line, start, line, half, count // VECTOR * VECTOR)
                _halve(line, start + 2 * (count - VECTOR), line, half + count - VECTOR, VECTOR)
                for x in range(np.uintp(count)):
                    arena[place + x] = larger(arena[place + x], line[np.uintp(half) + x])
            else:
                for x in range(np.uintp(count)):
                    arena[place + x] = larger(arena[place + x], line[np.uintp(start) + x * np.uintp(across)])


@uncounted
def _are_squares(one: Any) -> bool:
    """Whether windows are squares of 2 by 2, side by side and whole."""
    return (
        (one[at.WINDOW_LINES] == 2) & (one[at.WINDOW_COLUMNS] == 2) & (one[at.DOWN] == 2) & (one[at.ACROSS] == 2)
        & (one[at.ABOVE] == 0) & (one[at.BESIDE] == 0)
        & (2 * one[at.TARGET_HEIGHT] <= one[at.SOURCE_HEIGHT]) & (2 * one[at.TARGET_WIDTH] <= one[at.SOURCE_WIDTH])
    )  # fmt: skip


@uncounted
def _take_squares(one: Any, base: int, to: int, end: int, arena: Array, line: Array) -> None:
    """Compute the largest numbers of squares of a channel of an image; vectors are written up to `end`."""
    apart, wide = one[at.TARGET_LINE], one[at.TARGET_WIDTH]
    written = (wide + VECTOR - 1) // VECTOR * VECTOR
    vectors = max(0, min(one[at.TARGET_HEIGHT], (end - to - written) // apart + 1))  # lines in whole vectors
    raise_squares(arena, base, one[at.SOURCE_LINE], arena, to, apart, vectors, wide)
    for y in range(vectors, one[at.TARGET_HEIGHT]):
        raise_squares(arena, base + 2 * y * one[at.SOURCE_LINE], one[at.SOURCE_LINE], line, 0, 0, 1, wide)
        target = np.uintp(to + y * apart)
        for x in range(np.uintp(wide)):
            arena[target + x] = line[x]


@uncounted
def _take_means(pairs: Array, one: Any, base: int, to: int, arena: Array, totals: Array) -> None:
    """Compute the outputs of a channel of an image; a window's pixels are added line after line.

    Of windows as wide as the image, columns are added up first.
    """
    width, across = one[at.TARGET_WIDTH], one[at.ACROSS]
    for y in range(one[at.TARGET_HEIGHT]):
        top, target = y * one[at.DOWN] - one[at.ABOVE], np.uintp(to + y * one[at.TARGET_LINE])
        first, last = max(0, top), min(one[at.SOURCE_HEIGHT], top + one[at.WINDOW_LINES])
        if width == 1:
            begin = max(0, -one[at.BESIDE])
            columns = np.uintp(min(one[at.SOURCE_WIDTH], one[at.WINDOW_COLUMNS] - one[at.BESIDE]) - begin)
            start = base + first * one[at.SOURCE_LINE] + begin
            add_lines(totals, arena, start, one[at.SOURCE_LINE], last - first, columns)
            total = 0.0
            for x in range(columns):
                total += totals[x]
            totals[0] = total
        else:
            for x in range(np.uintp(width)):
                totals[x] = 0.0
            for line in range(first, last):
                left = base + line * one[at.SOURCE_LINE] - one[at.BESIDE]
                for column in range(one[at.WINDOW_COLUMNS]):
                    begin, end = pairs[one[at.FIRST_PAIR] + column, 0], pairs[one[at.FIRST_PAIR] + column, 1]
                    for x in range(begin, end):
                        totals[np.uintp(x)] += arena[np.uintp(left + column + x * across)]
        for x in range(width):
            divisor = one[at.WINDOW_LINES] * one[at.WINDOW_COLUMNS]
            if one[at.COUNTS_PADDING] == 0:
                left = x * across - one[at.BESIDE]
                wide = min(one[at.SOURCE_WIDTH], left + one[at.WINDOW_COLUMNS]) - max(0, left)
                divisor = (last - first) * wide
            arena[target + np.uintp(x)] = np.float32(totals[np.uintp(x)] / divisor)


@uncounted
def _pool(pairs: Array, one: Any, channel: int, images: int, arena: Array, line: Array, totals: Array) -> None:
    _empty(one, channel, arena, 0)
    for image in range(images):
        source = (channel & one[at.SOURCE_BITS]) * one[at.SOURCE_PLANE]
        base = one[at.SOURCE] + source + image * one[at.SOURCE_IMAGE]
        to = one[at.TARGET] + channel * one[at.TARGET_PLANE] + image * one[at.TARGET_IMAGE]
        if one[at.KIND] == at.LARGEST and _are_squares(one):
            end = one[at.TARGET] + (channel + 1) * one[at.TARGET_PLANE] - one[at.TOP]
            _take_squares(one, base, to, end, arena, line)
        elif one[at.KIND] == at.LARGEST:
            _take_largest(pairs, one, base, to, arena, line)
        else:
            _take_means(pairs, one, base, to, arena, totals)


@uncounted
def _mask_lanes(masks: Array, mask: int, arena: Array, to: int, count: int) -> None:
    for place in range(np.uintp(count)):
        number = arena[np.uintp(to) + place]
        arena[np.uintp(to) + place] = number if masks[np.uintp(mask) + place] != 0 else np.float32(0)


@uncounted
def _combine(packed: Any, one: Any, clip: Any, channel: int, images: int, arena: Array) -> None:
    """Compute a channel of a sum or product of two values."""
    lanes = _lanes(one, images)
    begin = np.uintp(one[at.SOURCE] + channel * one[at.SOURCE_PLANE])
    to = one[at.TARGET] + channel * one[at.TARGET_PLANE]
    other, target = np.uintp(one[at.OTHER] + channel * one[at.OTHER_PLANE]), np.uintp(to)
    if one[at.KIND] == at.ADD:
        for lane in range(np.uintp(lanes)):
            arena[target + lane] = arena[begin + lane] + arena[other + lane]
    elif one[at.KIND] == at.MULTIPLY:
        for lane in range(np.uintp(lanes)):
            arena[target + lane] = arena[begin + lane] * arena[other + lane]
    else:
        for image in range(images):
            factor, first = arena[other + np.uintp(image * one[at.OTHER_IMAGE])], image * one[at.TARGET_IMAGE]
            source, place = begin + np.uintp(first), target + np.uintp(first)
            for lane in range(np.uintp(min(lanes - first, one[at.TARGET_IMAGE]))):
                arena[place + lane] = arena[source + lane] * factor
    if one[at.ACTIVATION] != IDENTITY:
        activate_line(one[at.ACTIVATION], arena, to, lanes, clip)
    if one[at.MASK] >= 0:
        _mask_lanes(packed.masks, one[at.MASK], arena, to, lanes)
        _empty(one, channel, arena, lanes)


@uncounted
def _is_apart(one: Any, images: int) -> bool:
    """Whether images are convolved one by one, since a vector or more is between their lanes."""
    span = ((one[at.TARGET_HEIGHT] - 1) * one[at.TARGET_LINE] + one[at.TARGET_WIDTH] + VECTOR - 1) // VECTOR * VECTOR
    return images > 1 and one[at.MASK] < 0 and span + VECTOR <= one[at.TARGET_IMAGE]


@uncounted
def _vectors(one: Any, images: int) -> int:
    """Return the vectors of lanes that a convolution runs over, of all images or of one at a time."""
    some = images
    if _is_apart(one, images):
        some = 1
    return (_lanes(one, some) + VECTOR - 1) // VECTOR


@uncounted
def _convolve(packed: Any, one: Any, clip: Any, images: int, first_tile: int, last_tile: int, tiles: int, first: int,
              last: int, arena: Array, sums: Array) -> None:  # fmt: skip
    """Compute some blocks of filters at some tiles of lanes; margins are filled along with the first tile.

    Where input channels are cut, those of a cut stay in the first-level cache while all filters add their products.
    """
    blocks, biases = packed.blocks, packed.biases
    plane, bias, kind, mask = one[at.TARGET_PLANE], one[at.FIRST_BIAS], one[at.ACTIVATION], one[at.MASK]
    residual, simple = one[at.OTHER] - one[at.TARGET], kind in (IDENTITY, RELU)
    ends_with = (one[at.OTHER] >= 0) + 2 * (kind == RELU) + 4 * (simple and mask >= 0)
    vectors, runs = _vectors(one, images), images if _is_apart(one, images) else 1
    apart, cuts, bits = one[at.LAST_BLOCK] - one[at.FIRST_BLOCK], one[at.CUTS], one[at.TARGET_BITS]
    for step in range(first_tile * runs, last_tile * runs):
        tile, run = step // runs, step % runs
        begin, end = tile * vectors // tiles, (tile + 1) * vectors // tiles
        lane, count = run * one[at.TARGET_IMAGE] + begin * VECTOR, end - begin
        source, to = one[at.SOURCE] + lane, one[at.TARGET] + lane
        for cut in range(cuts):
            flags = ends_with + 8 * (cut > 0) + 16 * (cut < cuts - 1)
            for index in range(first + cut * apart, last + cut * apart):
                f, g = blocks[index, 1], blocks[index, 2]
                a, b, c, d = blocks[index, 3], blocks[index, 4], blocks[index, 5], blocks[index, 6]
                if blocks[index, 0] == 2:
                    begins = biases[bias + f], biases[bias + g]
                    outs = to + (f & bits) * plane, to + (g & bits) * plane
                    pair_of_filters(arena, source, packed.shifts, packed.weights, (a, b, c, d), begins, outs, sums,
                                    (f * LANES, g * LANES), residual, packed.masks, mask + lane, flags, clip,
                                    count)  # fmt: skip
                    continue
                q, done = bias + f, 0
                four = biases[q], biases[q + 1], biases[q + 2], biases[q + 3]
                while done < count:
                    some, by = MOST_SHARED, done * VECTOR
                    while some > count - done:
                        some //= 2
                    w, p = to + (f & bits) * plane + by, f * LANES + by
                    ends = w, w + plane, w + 2 * plane, w + 3 * plane
                    sharing_filters(arena, source + by, packed.shared_shifts, packed.shared_weights, (a, b, c), four,
                                    ends, sums, (p, p + LANES, p + 2 * LANES, p + 3 * LANES), residual, packed.masks,
                                    mask + lane + by, flags, clip, some)  # fmt: skip
                    done += some
        for index in range(first, last):
            for k in range(blocks[index, 0]):
                channel = blocks[index, 2] if k == 1 and blocks[index, 0] == 2 else blocks[index, 1] + k
                if k == 1 and channel == blocks[index, 1]:
                    break  # a pair of one filter
                if not simple:
                    activate_line(kind, arena, to + (channel & bits) * plane, count * VECTOR, clip)
                    if mask >= 0:
                        _mask_lanes(packed.masks, mask + lane, arena, to + (channel & bits) * plane, count * VECTOR)
                if step == 0:
                    _empty(one, channel, arena, vectors * VECTOR)


@uncounted
def _tiles(one: Any, images: int) -> int:
    return (_vectors(one, images) + MOST_VECTORS - 1) // MOST_VECTORS


@uncounted
def _chunks(one: Any, images: int, most: int, least: int) -> int:
    """Return into how many chunks threads share an operation; of convolutions those that tiles or filters allow."""
    most = max(1, min(most, one[at.WORK] * images // least))
    if one[at.KIND] != at.CONVOLVE:
        return min(most, one[at.CHANNELS])
    tiles = _tiles(one, images)
    if tiles >= most:
        return most
    of_filters: int = max(1, min((most + tiles - 1) // tiles, one[at.LAST_WINDOW] - one[at.FIRST_WINDOW]))
    return tiles * of_filters


@uncounted
def _claimed(counters: Array, number: int, thread: int, threads: int, chunks: int) -> int:
    """Return the next chunk of an operation for a thread: of its share, else of another's; `chunks` if none is left."""
    for other in range(thread, thread + threads):
        owner = other % threads
        first, last = chunks * owner // threads, chunks * (owner + 1) // threads
        place = number * (threads + 1) + owner
        if read_atomically(counters, place, 0) < last - first:
            taken: int = first + add_atomically(counters, place, 1)
            if taken < last:
                return taken
    return chunks


@uncounted
def _run_task(packed: Any, task: int, chunk: int, chunks: int, inputs: Array, row: int, images: int,
              arena: Array, line: Array, totals: Array, sums: Array, outputs: Array) -> None:  # fmt: skip
    """Run a chunk of a task: of a convolution some tiles or filters, of other operations some channels."""
    operation, first, last = packed.tasks[task, 0], packed.tasks[task, 1], packed.tasks[task, 2]
    one, clip = packed.operations[operation], packed.clips[operation]
    kind = one[at.KIND]
    if kind == at.CONVOLVE:
        tiles = _tiles(one, images)
        first_tile, last_tile = tiles * chunk // chunks, tiles * (chunk + 1) // chunks
        if tiles < chunks:  # some windows of filters at one tile
            parts, begin = chunks // tiles, one[at.FIRST_WINDOW]
            windows, first_tile, part = one[at.LAST_WINDOW] - begin, chunk // parts, chunk % parts
            last_tile = first_tile + 1
            first = packed.windows[begin + windows * part // parts]
            last = packed.windows[begin + windows * (part + 1) // parts]
        _convolve(packed, one, clip, images, first_tile, last_tile, tiles, first, last, arena, sums)
        return
    channels = last - first
    for channel in range(first + channels * chunk // chunks, first + channels * (chunk + 1) // chunks):
        if kind == at.COPY:
            _copy(packed, one, channel, inputs, row, images, arena)
        elif kind == at.OUTPUT:
            _output(one, channel, arena, row, images, outputs)
        elif kind in (at.LARGEST, at.MEAN):
            _pool(packed.pairs, one, channel, images, arena, line, totals)
        else:
            _combine(packed, one, clip, channel, images, arena)


@uncounted
def run_operations(packed: Any, begin: int, inputs: Array, row: int, images: int, arena: Array, line: Array,
                   totals: Array, sums: Array, outputs: Array, counters: Array, thread: int, threads: int, most: int,
                   least: int) -> int:  # fmt: skip
    """Take some images through all groups of tasks; returns after which of them they are.

    Threads that are called with the same counters, (groups, threads + 1) int64 and zeros at first, share each group, in
    up to `most` chunks of at least so much work, and wait for each other before the next one. A thread takes the chunks
    of its own share first, so that it finds in its cache what it wrote before, then those that others have left. Where
    waiting takes long, the call returns the number of the group, and is to be repeated with it as `begin`. So no thread
    waits for a thread that has not begun. Without counters, one thread does all.
    """
    count: int = packed.groups.shape[0]
    shared = counters.size > 0
    for number in range(begin, count):
        task, steps, chunks = packed.groups[number, 0], packed.groups[number, 1], packed.groups[number, 2]
        chunk, by_channels = 0, chunks > 1
        if shared:
            if not by_channels:
                chunks = _chunks(packed.operations[packed.tasks[task, 0]], images, most, least)
            chunk = _claimed(counters, number, thread, threads, chunks)
        while chunk < chunks:
            begin = task + chunk * steps if by_channels else task
            part, parts = (0, 1) if by_channels else (chunk, chunks)
            for each in range(begin, begin + steps):
                _run_task(packed, each, part, parts, inputs, row, images, arena, line, totals, sums, outputs)
            if shared:
                add_atomically(counters, number * (threads + 1) + threads, 1)
                chunk = _claimed(counters, number, thread, threads, chunks)
            else:
                chunk += 1
        spins = 0
        while shared and read_atomically(counters, number * (threads + 1) + threads, 0) < chunks:
            spins += 1
            if spins == SPINS:
                return number
    return count
