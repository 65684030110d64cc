"""The layers of a panel: sums over its lines, activations, counts, and lanes that leave.

Every sum takes one fused multiply-add after the other, inputs ascending, and then the bias.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.backends.cpu.activation import IDENTITY, RELU, activate_line
from sparsenn.backends.cpu.tiles import VECTOR, four_vectors, one_vector, three_vectors, two_vectors
from sparsenn.formats import Array
from sparsenn.runtime.jit import compiled

__all__ = ["finish_line", "gather_layer", "run_layers", "vectors_of"]


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
def gather_layer(packed: Any, layer: int, source: Array, target: Array, vectors: int, counts: Array) -> int:
    """Compute one layer of a panel of 1 to 4 vectors from `source` into `target`; returns the multiply-adds per lane.

    The sums of an output stay in registers; where the layer is cut, a block's lines of the source stay in the
    first-level cache while each output adds up its products with them.
    """
    outputs, blocks, offsets, lines = packed.widths[layer + 1], packed.blocks[layer], packed.offsets, packed.inputs
    biases, copies, values = packed.bias, packed.copies, packed.values
    first, v, step, slot = packed.firsts[layer], packed.value_starts[layer], packed.value_strides[layer], packed.starts[layer]  # fmt: skip
    kind, clip, across = packed.activations[layer], packed.clips[layer], vectors * VECTOR
    counts[:across] = 0
    for block in range(blocks):
        at, fresh, finish = first + block * outputs, block == 0, kind == RELU and block == blocks - 1
        for output in range(outputs):
            entry, last, to = offsets[at + output], offsets[at + output + 1], output * across
            bias, many = slot + output, copies[slot + output]
            if vectors == 4:
                four_vectors(source, lines, entry, last, values, v, step, fresh, finish, biases, bias, clip, many,
                             counts, target, to)  # fmt: skip
            elif vectors == 3:
                three_vectors(source, lines, entry, last, values, v, step, fresh, finish, biases, bias, clip, many,
                              counts, target, to)  # fmt: skip
            elif vectors == 2:
                two_vectors(source, lines, entry, last, values, v, step, fresh, finish, biases, bias, clip, many,
                            counts, target, to)  # fmt: skip
            else:
                one_vector(source, lines, entry, last, values, v, step, fresh, finish, biases, bias, clip, many,
                           counts, target, to)  # fmt: skip
    if kind != RELU:
        for output in range(outputs):
            bias = slot + output
            finish_line(kind, clip, biases[bias], copies[bias], target, output * across, across, counts)
    per_lane: int = offsets[first + blocks * outputs] - offsets[first]
    return per_lane


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
def vectors_of(lanes: int) -> int:
    """Return the vectors of a panel of some rows."""
    vectors: int = max(1, (lanes + VECTOR - 1) // VECTOR)
    return vectors


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
def run_layers(packed: Any, first: int, last: int, entered: int, edges: int, a: Array, b: Array, rows: Array,
                lanes: int, counts: Array, live: Array, weights: Array, droppable_from: int, counters: Array
                ) -> tuple[int, int, int]:  # fmt: skip
    """Take a panel through layers first to last; returns (lanes left, their vectors, which of a (0) and b (1) has them).

    entered : `first + 1` if the panel holds that layer's outputs, of `edges` multiply-adds, non-zeros in `counts`; else
        `first`. rows : the row of each lane; reordered as lanes move.
    """
    source, target, side, vectors = a, b, 0, vectors_of(lanes)
    for layer in range(first, last):
        if layer >= entered:
            edges = gather_layer(packed, layer, source, target, vectors, counts) * lanes
            source, target, side = target, source, 1 - side
        _count_layer(counters, layer - first, lanes, edges, counts, weights, rows)
        if layer >= droppable_from:
            found = _live_lanes(counts, lanes, live)
            if found == 0:
                return 0, vectors, side
            if found < lanes and (layer == last - 1 or 4 * found <= 3 * lanes):
                fewer = vectors_of(found)
                _squeeze(source, packed.widths[layer + 1], vectors * VECTOR, live, found, fewer * VECTOR)
                for lane in range(found):
                    rows[lane] = rows[live[lane]]
                lanes, vectors = found, fewer
    return lanes, vectors, side
