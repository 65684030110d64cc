"""Sums over the lines of a panel: each output's in registers, with the bias, ReLU and counts; others after the sums.

Every sum takes one fused multiply-add after the other, inputs ascending, and then the bias.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from sparsenn.backends.cpu.activation import IDENTITY, RELU, activate_line
from sparsenn.backends.cpu.packed import WINDOW, Packed
from sparsenn.backends.cpu.slices import pointer_of
from sparsenn.backends.cpu.tiles import GROUP, VECTOR, four_vectors, one_vector, three_vectors, two_vectors
from sparsenn.formats import Array
from sparsenn.runtime.jit import compiled

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
    windows: int = (outputs + WINDOW - 1) // WINDOW
    return windows


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
