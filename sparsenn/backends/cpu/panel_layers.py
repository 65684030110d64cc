"""The layers of a panel: their sums, by this thread or shared among threads in slices, counts, and lanes that leave.

Each output's sum stays in registers, with the bias, ReLU and counts; other activations come after the sums. Every sum
takes one fused multiply-add after the other, inputs ascending, and then the bias.

Threads share inputs of rows that enter, and outputs of a layer. A slice of outputs is computed for all tiles of rows,
one after the other, so that its weights stay in a core's own cache meanwhile. Outputs of the last layer leave as rows
at once, from that cache.
"""

from __future__ import annotations

import numpy as np
from numba import carray
from numba.core import types

from sparsenn.backends.cpu.activation import IDENTITY, RELU, activate_line
from sparsenn.backends.cpu.packed import WINDOW, Packed
from sparsenn.backends.cpu.processor import CACHE_BYTES
from sparsenn.backends.cpu.row_threads import run_slices
from sparsenn.backends.cpu.slices import pointer_of
from sparsenn.backends.cpu.tiles import (
    GROUP,
    TILE,
    VECTOR,
    four_vectors,
    one_vector,
    three_vectors,
    transpose_square,
    two_vectors,
)
from sparsenn.backends.sizes import FLOAT_BYTES
from sparsenn.formats import Array
from sparsenn.runtime.jit import address_of, compiled

ARRAYS = len(Packed._fields)
(WIDTHS, STARTS, BLOCKS, EDGES, FIRSTS, OFFSETS, OUTPUTS, INPUTS, VALUES, VALUE_STARTS, VALUE_STRIDES, BIAS, COPIES,
 ACTIVATIONS, CLIPS) = range(1, ARRAYS + 1)  # fmt: skip
(IS_WIDE, ENTER, GATHER, LAYER, SLICES, LANES, SOURCE, TARGET, COUNTS, ROWS, FIRST,
 JOB) = range(ARRAYS + 1, ARRAYS + 13)  # fmt: skip
# Numbers of a job, behind the addresses of a function of slices and of the arrays of `Packed`: whether inputs have 32
# bits, and the functions of rows that enter and of outputs. Of work that threads share: the layer, its slices, lanes of
# all its tiles, the addresses of the tiles that it reads, of the tile that it writes, one after the other, of counts of
# the lanes for each slice, and of the rows that enter or leave (or 0), and the first of these. Then how many numbers a
# job has.


@compiled
def finish_line(kind: int, clip: float, bias: float, copies: int, line: Array, base: int, lanes: int,
                 counts: Array) -> None:  # fmt: skip
    """Add the bias to the sums of a panel line, activate, and count its non-zeros as often as the output has copies."""
    zero, top = np.float32(0), np.float32(clip)
    start, many, shift = np.uintp(base), np.int32(copies), np.float32(bias)
    if kind == RELU:
        for lane in range(np.uintp(lanes)):
            z = line[start + lane] + shift
            z = zero if z < zero else z
            z = top if z > top else z
            line[start + lane] = z
            counts[lane] += many if z != zero else np.int32(0)
        return
    for lane in range(np.uintp(lanes)):
        line[start + lane] += shift
    if kind != IDENTITY:
        activate_line(kind, line, base, lanes, top)
    for lane in range(np.uintp(lanes)):
        counts[lane] += many if line[start + lane] != zero else np.int32(0)


@compiled
def windows_of(outputs: int) -> int:
    """Return how many windows some outputs are."""
    return (outputs + WINDOW - 1) // WINDOW


@compiled
def gather_layer(job: Array, layer: int, source: Array, target: Array, vectors: int, counts: Array, start: int,
                  stop: int) -> None:  # fmt: skip
    """Compute windows start to stop of the outputs of a layer of a panel of 1 to 4 vectors from `source` into `target`.

    The sums of a group stay in registers; where the layer is cut, a block's lines of the source stay in the first-level
    cache while each group adds up its products with them.
    """
    if job[IS_WIDE] != 0:
        inputs = carray(pointer_of(job[INPUTS]), 1, np.int32)
        _gather_layer(job, inputs, layer, source, target, vectors, counts, start, stop)
    else:
        few = carray(pointer_of(job[INPUTS]), 1, np.uint16)
        _gather_layer(job, few, layer, source, target, vectors, counts, start, stop)


@compiled
def _gather_layer(job: Array, lines: Array, layer: int, source: Array, target: Array, vectors: int, counts: Array,
                  start: int, stop: int) -> None:  # fmt: skip
    offsets, outputs = carray(pointer_of(job[OFFSETS]), 1, np.int64), carray(pointer_of(job[OUTPUTS]), 1, np.int32)
    values, biases = carray(pointer_of(job[VALUES]), 1, np.float32), carray(pointer_of(job[BIAS]), 1, np.float32)
    copies, blocks = carray(pointer_of(job[COPIES]), 1, np.int32), carray(pointer_of(job[BLOCKS]), 1, np.int64)[layer]
    width = carray(pointer_of(job[WIDTHS]), 1, np.int64)[layer + 1]
    slot = carray(pointer_of(job[STARTS]), 1, np.int64)[layer]
    v = carray(pointer_of(job[VALUE_STARTS]), 1, np.int64)[layer]
    step = carray(pointer_of(job[VALUE_STRIDES]), 1, np.int64)[layer]
    kind = carray(pointer_of(job[ACTIVATIONS]), 1, np.int64)[layer]
    clip = carray(pointer_of(job[CLIPS]), 1, np.float32)[layer]
    is_range, low = kind in (RELU, IDENTITY), np.float32(0 if kind == RELU else -np.inf)
    of_layer = carray(pointer_of(job[FIRSTS]), 1, np.int64)[layer]
    groups, across = (width + GROUP - 1) // GROUP, vectors * VECTOR
    begin, end = start * WINDOW // GROUP, min(groups, stop * WINDOW // GROUP)
    for lane in range(across):
        counts[lane] = 0
    for block in range(blocks):
        first, fresh, finish = of_layer + block * groups, block == 0, is_range and block == blocks - 1
        for at in range(first + begin, first + end):
            entry, last, group = offsets[at], offsets[at + 1], at * GROUP
            if vectors == 4:
                four_vectors(source, lines, entry, last, values, v, step, fresh, finish, biases, slot, low, clip,
                             copies, counts, outputs, group, target)  # fmt: skip
            elif vectors == 3:
                three_vectors(source, lines, entry, last, values, v, step, fresh, finish, biases, slot, low, clip,
                              copies, counts, outputs, group, target)  # fmt: skip
            elif vectors == 2:
                two_vectors(source, lines, entry, last, values, v, step, fresh, finish, biases, slot, low, clip,
                            copies, counts, outputs, group, target)  # fmt: skip
            else:
                one_vector(source, lines, entry, last, values, v, step, fresh, finish, biases, slot, low, clip, copies,
                           counts, outputs, group, target)  # fmt: skip
    if not is_range:
        for output in range(start * WINDOW, min(width, stop * WINDOW)):
            bias = slot + output
            finish_line(kind, clip, biases[bias], copies[bias], target, output * across, across, counts)


def job_of(packed: Packed) -> Array:
    """Return a job for layers."""
    job = np.zeros(JOB, np.int64)
    job[1 : ARRAYS + 1] = [array.ctypes.data for array in packed]
    job[IS_WIDE] = packed.inputs.dtype != np.uint16
    job[ENTER], job[GATHER] = (address_of(each, types.int64, types.int64) for each in (_enter_slice, _gather_slice))
    return job


@compiled
def tile_lanes(lanes: int) -> int:
    """Return some lanes, rounded up to whole tiles."""
    return (lanes + TILE - 1) // TILE * TILE


@compiled
def lanes_across(lanes: int) -> int:
    """Return the numbers of a line of a tile of some lanes: whole vectors of them."""
    return max(1, (lanes + VECTOR - 1) // VECTOR) * VECTOR


@compiled
def emit_lanes(panel: Array, lanes: int, start: int, stop: int, rows: Array, row: int, width: int) -> None:
    """Write lines start to stop of a tile of lanes to these columns of rows of a width, from `row` on."""
    across = lanes_across(lanes)
    whole, squares = start + (stop - start) // VECTOR * VECTOR, lanes // VECTOR * VECTOR
    for line in range(start, whole, VECTOR):
        for lane in range(0, squares, VECTOR):
            transpose_square(panel, line * across + lane, across, rows, (row + lane) * width + line, width)
    for lane in range(lanes):
        for line in range(whole if lane < squares else start, stop):
            rows[(row + lane) * width + line] = panel[line * across + lane]


@compiled
def _enter_lanes(rows: Array, row: int, width: int, lanes: int, panel: Array, start: int, stop: int) -> None:
    """Write columns start to stop of rows as these lines of a tile; further lanes of the last vector become zeros."""
    across = lanes_across(lanes)
    if across > lanes:
        for place in range(np.uintp(start * across), np.uintp(stop * across)):
            panel[place] = np.float32(0)
    whole, squares = start + (stop - start) // VECTOR * VECTOR, lanes // VECTOR * VECTOR
    for line in range(start, whole, VECTOR):
        for lane in range(0, squares, VECTOR):
            transpose_square(rows, (row + lane) * width + line, width, panel, line * across + lane, across)
    for lane in range(lanes):
        for line in range(whole if lane < squares else start, stop):
            panel[line * across + lane] = rows[(row + lane) * width + line]


@compiled
def _tile(job: Array, lane: int, inputs: int) -> int:
    """Return the address of the tile of a job's panels whose first lane is one of all."""
    return job[SOURCE] + FLOAT_BYTES * lane * (inputs + 1)


@compiled
def _enter_slice(address: int, number: int) -> None:
    """Have a slice of the inputs of the rows of the job at an address enter its tiles."""
    job = carray(pointer_of(address), 1, np.int64)
    inputs, slices = carray(pointer_of(job[WIDTHS]), 1, np.int64)[job[LAYER]], job[SLICES]
    rows = carray(pointer_of(job[ROWS]), 1, np.float32)
    squares = (inputs + VECTOR - 1) // VECTOR
    start, stop = squares * number // slices * VECTOR, min(inputs, squares * (number + 1) // slices * VECTOR)
    for tile in range(0, job[LANES], TILE):
        lanes = min(TILE, job[LANES] - tile)
        panel = carray(pointer_of(_tile(job, tile, inputs)), 1, np.float32)
        _enter_lanes(rows, job[FIRST] + tile, inputs, lanes, panel, start, stop)


@compiled
def _gather_slice(address: int, number: int) -> None:
    """Compute a slice of the outputs of the layer of the job at an address, with counts of its own."""
    job = carray(pointer_of(address), 1, np.int64)
    layer, slices, widths = job[LAYER], job[SLICES], carray(pointer_of(job[WIDTHS]), 1, np.int64)
    inputs, outputs, every = widths[layer], widths[layer + 1], tile_lanes(job[LANES])
    windows = windows_of(outputs)
    start, stop = windows * number // slices, windows * (number + 1) // slices
    for tile in range(0, job[LANES], TILE):
        lanes = min(TILE, job[LANES] - tile)
        counts = carray(pointer_of(job[COUNTS] + FLOAT_BYTES * (every * number + tile)), 1, np.int32)
        across = lanes_across(lanes)
        # of several tiles, the last may be narrower: a slice's lines begin at one place, wherever other slices are
        shift = start * WINDOW * (TILE - across) if job[LANES] > TILE else 0
        target = carray(pointer_of(job[TARGET] + FLOAT_BYTES * shift), 1, np.float32)
        source = carray(pointer_of(_tile(job, tile, inputs)), 1, np.float32)
        gather_layer(job, layer, source, target, across // VECTOR, counts, start, stop)
        if job[ROWS] != 0:
            rows = carray(pointer_of(job[ROWS]), 1, np.float32)
            first, last = start * WINDOW, min(outputs, stop * WINDOW)
            emit_lanes(target, lanes, first, last, rows, job[FIRST] + tile, outputs)


SLICES_OF_THREAD = 4  # of a layer that threads share, at most

WEIGHT_BYTES = 6  # of a weight and the number of its input

SLICE_BYTES = CACHE_BYTES // 4  # of weights of a slice, where a layer has so few slices

SLICE_WORK = 1 << 18
"""Multiply-adds of a slice at least: 7 us, in which another thread sees that there is work."""

SLICE_NUMBERS = 1 << 15
"""Numbers of rows that enter in a slice at least: as long."""


@compiled
def _live_lanes(counts: Array, lanes: int, live: Array) -> int:
    found = 0
    for lane in range(lanes):
        if counts[lane] > 0:
            live[found] = lane
            found += 1
    return found


@compiled
def _squeeze(panel: Array, width: int, across: int, live: Array, found: int, fewer: int) -> None:
    """Move the lanes that live to the front of a panel, whose lines become `fewer` numbers long."""
    for line in range(width):
        base, to = np.uintp(line * across), np.uintp(line * fewer)
        for lane in range(np.uintp(found)):
            panel[to + lane] = panel[base + np.uintp(live[lane])]
        for lane in range(np.uintp(found), np.uintp(fewer)):
            panel[to + lane] = np.float32(0)


@compiled
def _count_layer(counters: Array, row: int, rows: int, edges: int, counts: Array, weights: Array, lanes: Array) -> None:
    """Add one layer of one panel to the counters: rows, active inputs, non-zeros, multiply-adds."""
    active = np.int64(0)
    nonzeros = np.int64(0)
    for lane in range(rows):
        many = weights[lanes[lane]]
        active += many if counts[lane] > 0 else 0
        nonzeros += np.int64(counts[lane]) * many
    counters[row, 0] += rows
    counters[row, 1] += active
    counters[row, 2] += nonzeros
    counters[row, 3] += edges


@compiled
def enter_rows(job: Array, layer: int, features: Array, first: int, lanes: int, panel: Array, counts: Array,
               state: Array) -> None:  # fmt: skip
    """Write rows from `first` on as lanes of a panel, the inputs of a layer."""
    job[LAYER], job[LANES], job[SOURCE] = layer, lanes, panel.ctypes.data
    job[ROWS], job[FIRST] = features.ctypes.data, first
    job[0], job[SLICES] = job[ENTER], max(1, min(counts.size // TILE, lanes * features.shape[1] // SLICE_NUMBERS))
    run_slices(state, job, job[SLICES], job[SLICES] > 1)


@compiled
def _share_layer(job: Array, layer: int, source: Array, target: Array, lanes: int, counts: Array, rows: int, first: int,
                 state: Array) -> None:  # fmt: skip
    """Compute a layer, by all threads where it is large enough, in slices of its outputs.

    rows : address of the rows that outputs leave as, from `first` on; or 0.
    """
    widths, edges = carray(pointer_of(job[WIDTHS]), 1, np.int64), carray(pointer_of(job[EDGES]), 1, np.int64)
    inputs, every = widths[layer], tile_lanes(lanes)
    for tile in range(0, lanes, TILE):  # the line of what fills a group
        across = lanes_across(min(TILE, lanes - tile))
        begin = tile * (inputs + 1) + inputs * across
        source[begin : begin + across] = np.float32(0)
    most = counts.size // every
    slices = max(most // SLICES_OF_THREAD, edges[layer] * WEIGHT_BYTES // SLICE_BYTES)
    slices = min(most, slices, windows_of(widths[layer + 1]), edges[layer] * lanes_across(lanes) // SLICE_WORK)
    job[LAYER], job[LANES], job[SOURCE], job[TARGET] = layer, lanes, source.ctypes.data, target.ctypes.data
    job[COUNTS], job[ROWS], job[FIRST] = counts.ctypes.data, rows, first
    job[0], job[SLICES] = job[GATHER], max(1, slices)
    run_slices(state, job, job[SLICES], slices > 1)
    for number in range(1, slices):
        for lane in range(lanes):
            counts[lane] += counts[number * every + lane]


@compiled
def run_layers(job: Array, first: int, last: int, entered: int, edges: int, a: Array, b: Array, rows: Array,
                lanes: int, counts: Array, live: Array, weights: Array, droppable_from: int, out: Array, to: int,
                counters: Array, state: Array) -> int:  # fmt: skip
    """Take lanes through layers first to last; write those left as rows of `out`, from `to` on; return how many.

    job : of `job_of`. entered : `first + 1` if the panel holds that layer's outputs, of `edges` multiply-adds,
        non-zeros in `counts`; else `first`. a, b : panels for lines of all layers, the lanes in `a`; of a single layer
        that is not entered, `a` holds any number of tiles, else there is one. rows : the row of each lane; reordered
        as lanes move. counts : int32, all lanes of whole tiles, for each slice of a layer. counters : of each layer, or
        empty. state : of `row_threads`, which share each layer, or empty.
    """
    widths, weights_of = carray(pointer_of(job[WIDTHS]), 1, np.int64), carray(pointer_of(job[EDGES]), 1, np.int64)
    source, target = a, b
    for layer in range(first, last):
        is_last = layer == last - 1
        if layer >= entered:
            leaving = out.ctypes.data if is_last else 0
            _share_layer(job, layer, source, target, lanes, counts, leaving, to, state)
            edges = weights_of[layer] * lanes
            source, target = target, source
        elif is_last:
            emit_lanes(source, lanes, 0, widths[last], out.reshape(-1), to, widths[last])
        if counters.shape[0] > 0:
            _count_layer(counters, layer - first, lanes, edges, counts, weights, rows)
        if layer >= droppable_from:
            found = _live_lanes(counts, lanes, live)
            if found == 0:
                return 0
            if found < lanes and (is_last or 4 * found <= 3 * lanes):
                if is_last:
                    _close_up(out, to, live, found)
                else:
                    _squeeze(source, widths[layer + 1], lanes_across(lanes), live, found, lanes_across(found))
                for lane in range(found):
                    rows[lane] = rows[live[lane]]
                lanes = found
    return lanes


@compiled
def _close_up(out: Array, to: int, live: Array, found: int) -> None:
    """Move the rows of lanes that live to the front of all lanes' rows, which begin at `to`."""
    for lane in range(found):
        if live[lane] != lane:
            for column in range(out.shape[1]):
                out[to + lane, column] = out[to + live[lane], column]
