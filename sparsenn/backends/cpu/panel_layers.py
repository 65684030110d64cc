"""The layers of a panel: sums over its lines, activations, counts, and lanes that leave.

Every sum takes one fused multiply-add after the other, inputs ascending, and then the bias.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.backends.cpu.activation import IDENTITY, RELU, activate_line
from sparsenn.backends.cpu.tiles import TILE, VECTOR, four_vectors, one_vector, three_vectors, two_vectors
from sparsenn.formats import Array
from sparsenn.runtime.jit import compiled

__all__ = ["LANE_STEP", "finish_line", "gather_blocks", "gather_layer", "padded", "run_layers"]

LANE_STEP = 8  # panels are computed in multiples of this many lanes, one AVX register of float32


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
def gather_layer(packed: Any, layer: int, source: Array, target: Array, lanes: int, stride: int,
                  counts: Array) -> int:  # fmt: skip
    """Compute one layer of a panel from `source` into `target`; returns the multiply-adds per lane.

    A line of the target gets one term if their number is odd, then two at a time, then eight, of which the lanes hide
    the latency. What comes first is added to zero: without that the first two products would be added, and one of them
    rounded before. All is in one function: calls for a line would take narrow panels longer than the sums.
    """
    outputs = packed.widths[layer + 1]
    column = packed.starts[layer] + layer
    begin = packed.offsets[column]
    step = packed.value_strides[layer]
    kind, clip = packed.activations[layer], packed.clips[layer]
    indices, values, width, zero = packed.indices, packed.values, np.uintp(stride), np.float32(0)
    counts[:lanes] = 0
    for output in range(outputs):
        entry, last = packed.offsets[column + output], packed.offsets[column + output + 1]
        v, out, fresh = packed.value_starts[layer] + (entry - begin) * step, np.uintp(output) * width, True
        if entry == last:
            for lane in range(np.uintp(lanes)):
                target[out + lane] = zero
        if (last - entry) & 1 != 0:
            i0, w0 = np.uintp(indices[entry]) * width, values[v]
            for lane in range(np.uintp(lanes)):
                target[out + lane] = zero + source[i0 + lane] * w0
            entry, v, fresh = entry + 1, v + step, False
        while (last - entry) & 7 != 0:
            i0, i1 = np.uintp(indices[entry]) * width, np.uintp(indices[entry + 1]) * width
            w0, w1 = values[v], values[v + step]
            if fresh:
                for lane in range(np.uintp(lanes)):
                    z = zero + source[i0 + lane] * w0
                    target[out + lane] = z + source[i1 + lane] * w1
            else:
                for lane in range(np.uintp(lanes)):
                    z = target[out + lane] + source[i0 + lane] * w0
                    target[out + lane] = z + source[i1 + lane] * w1
            entry, v, fresh = entry + 2, v + 2 * step, False
        while entry < last:
            i0, i1 = np.uintp(indices[entry]) * width, np.uintp(indices[entry + 1]) * width
            i2, i3 = np.uintp(indices[entry + 2]) * width, np.uintp(indices[entry + 3]) * width
            i4, i5 = np.uintp(indices[entry + 4]) * width, np.uintp(indices[entry + 5]) * width
            i6, i7 = np.uintp(indices[entry + 6]) * width, np.uintp(indices[entry + 7]) * width
            w0, w1, w2, w3 = values[v], values[v + step], values[v + 2 * step], values[v + 3 * step]
            v += 4 * step
            w4, w5, w6, w7 = values[v], values[v + step], values[v + 2 * step], values[v + 3 * step]
            if fresh:
                for lane in range(np.uintp(lanes)):
                    z = zero + source[i0 + lane] * w0
                    z = z + source[i1 + lane] * w1
                    z = z + source[i2 + lane] * w2
                    z = z + source[i3 + lane] * w3
                    z = z + source[i4 + lane] * w4
                    z = z + source[i5 + lane] * w5
                    z = z + source[i6 + lane] * w6
                    target[out + lane] = z + source[i7 + lane] * w7
            else:
                for lane in range(np.uintp(lanes)):
                    z = target[out + lane] + source[i0 + lane] * w0
                    z = z + source[i1 + lane] * w1
                    z = z + source[i2 + lane] * w2
                    z = z + source[i3 + lane] * w3
                    z = z + source[i4 + lane] * w4
                    z = z + source[i5 + lane] * w5
                    z = z + source[i6 + lane] * w6
                    target[out + lane] = z + source[i7 + lane] * w7
            entry, v, fresh = entry + 8, v + 4 * step, False
        slot = packed.starts[layer] + output
        finish_line(kind, clip, packed.bias[slot], packed.copies[slot], target, output * stride, lanes, counts)
    per_lane: int = packed.offsets[column + outputs] - begin
    return per_lane


@compiled
def gather_blocks(packed: Any, blocks: Any, layer: int, source: Array, target: Array, lanes: int,
                  counts: Array) -> int:  # fmt: skip
    """Compute a layer that is cut into blocks, of a panel of `TILE` lanes; returns the multiply-adds per lane.

    A block's lines of the source stay in the first-level cache while each output adds up its products with them.
    """
    outputs, offsets, inputs, values = packed.widths[layer + 1], blocks.offsets, blocks.inputs, blocks.values
    start, count = blocks.starts[layer], (blocks.starts[layer + 1] - blocks.starts[layer] - 1) // outputs
    vectors = (lanes + VECTOR - 1) // VECTOR
    for block in range(count):
        fresh = block == 0
        for output in range(outputs):
            at = start + block * outputs + output
            first, last, to = offsets[at], offsets[at + 1], output * TILE
            if vectors == 4:
                four_vectors(source, inputs, first, last, values, fresh, target, to)
            elif vectors == 3:
                three_vectors(source, inputs, first, last, values, fresh, target, to)
            elif vectors == 2:
                two_vectors(source, inputs, first, last, values, fresh, target, to)
            else:
                one_vector(source, inputs, first, last, values, fresh, target, to)
    kind, clip = packed.activations[layer], packed.clips[layer]
    counts[:lanes] = 0
    for output in range(outputs):
        slot = packed.starts[layer] + output
        finish_line(kind, clip, packed.bias[slot], packed.copies[slot], target, output * TILE, lanes, counts)
    per_lane: int = offsets[start + count * outputs] - offsets[start]
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
def _squeeze(panel: Array, width: int, stride: int, live: Array, found: int) -> None:
    for line in range(width):
        base = np.uintp(line * stride)
        for lane in range(np.uintp(found)):
            panel[base + lane] = panel[base + np.uintp(live[lane])]


@compiled
def padded(lanes: int, stride: int) -> int:
    """Return the lanes of a panel that are computed so that so many are."""
    wide: int = min(stride, (lanes + LANE_STEP - 1) // LANE_STEP * LANE_STEP)
    return wide


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
def run_layers(packed: Any, blocks: Any, first: int, last: int, entered: int, edges: int, a: Array, b: Array,
                stride: int, rows: Array, lanes: int, counts: Array, live: Array, weights: Array, droppable_from: int,
                counters: Array) -> tuple[int, int]:  # fmt: skip
    """Take a panel through layers first to last; returns (lanes left, which of a (0) and b (1) holds them).

    blocks : of the layers that are cut into such; the stride is then `TILE`.
    entered : `first + 1` if the panel holds that layer's outputs, of `edges` multiply-adds, non-zeros in `counts`; else
        `first`. rows : the row of each lane; reordered as lanes move.
    """
    source, target, side = a, b, 0
    for layer in range(first, last):
        if layer >= entered:
            if blocks.starts[layer] < blocks.starts[layer + 1]:
                per_lane = gather_blocks(packed, blocks, layer, source, target, padded(lanes, stride), counts)
            else:
                per_lane = gather_layer(packed, layer, source, target, padded(lanes, stride), stride, counts)
            edges = per_lane * lanes
            source, target, side = target, source, 1 - side
        _count_layer(counters, layer - first, lanes, edges, counts, weights, rows)
        if layer >= droppable_from:
            found = _live_lanes(counts, lanes, live)
            if found == 0:
                return 0, side
            if found < lanes and (layer == last - 1 or 4 * found <= 3 * lanes):
                _squeeze(source, packed.widths[layer + 1], stride, live, found)
                for lane in range(found):
                    rows[lane] = rows[live[lane]]
                lanes = found
    return lanes, side
