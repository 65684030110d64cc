"""Panels: a tile of rows side by side along the vector lanes, taken through many layers while it stays in cache.

A panel holds `stride` rows as a (width, stride) matrix: element (i, l) is neuron i of row l. An output neuron is a
weighted sum of a few panel lines, each line a run of consecutive floats, so every multiply-add works on full vector
registers whatever the sparsity pattern, and the pattern is read once for all rows of the panel. Zeros are multiplied
too; that pays because a lane of a vector costs far less than a scattered scalar update. Where the rows that enter
are very sparse, their first layer is computed by scattering each non-zero through its row of weights instead.

Rows that have died leave the panel as soon as a quarter of it is dead; the rest move together.
"""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.contract import LayerCounts, SparseKernel, StepInput, StepOutput, Tunable
from sparsenn.backends.cpu.scratch import Scratch
from sparsenn.backends.cpu.stack import IDENTITY, RELU, SIGMOID, Packed, Stack
from sparsenn.backends.registry import register
from sparsenn.backends.sizes import about
from sparsenn.formats import CSR, Array
from sparsenn.jit import compiled
from sparsenn.workers import chunks, map_threads, thread_count

__all__ = [
    "PANEL",
    "SCATTER",
    "launch_panel",
    "launch_scatter",
    "panel_sizes",
    "run_csr",
    "run_dense",
]

CACHE_BYTES = 2 << 20
"""Room for a panel before and after a layer: a 2 MiB second-level cache."""

MOST_LANES = 256
"""Wider panels gain nothing: 512 lanes were no faster than 256 on the challenge's 1024 x 120."""

LANE_STEP = 8
"""Panels are computed in multiples of this many lanes, one AVX register of float32."""

CHUNK_ROWS = 2048
"""Rows a thread takes at a time: enough to hide the call, few enough to balance the load."""

LANES_TO_TRY = (8, 16, 32, 64, 128, 256, 512)
CHUNK_ROWS_TO_TRY = (512, 2048, 8192)
"""What `tune` tries in place of the lanes that the cache holds, and of `CHUNK_ROWS`."""

CHUNK_BYTES = 8 << 20
"""And no more than this many bytes of outputs."""

BLOCK = 16
"""Neurons moved at a time when rows become lanes or lanes rows: 16 floats are a cache line."""


@compiled
def _activate(kind: int, clip: float, copies: int, line: Array, base: int, lanes: int, counts: Array) -> None:
    """Apply the activation to one panel line and count its non-zeros, each as often as the output has copies."""
    zero, one = np.float32(0), np.float32(1)
    start, many = np.uintp(base), np.int32(copies)
    if kind == RELU:
        top = np.float32(clip)
        for lane in range(np.uintp(lanes)):
            z = line[start + lane]
            z = zero if z < zero else z
            z = top if z > top else z
            line[start + lane] = z
            counts[lane] += many if z != zero else np.int32(0)
        return
    for lane in range(np.uintp(lanes)):
        z = line[start + lane]
        if kind == SIGMOID:
            decay = np.float32(math.exp(-abs(z)))
            z = (one if z >= zero else decay) / (one + decay)
        elif kind != IDENTITY:
            z = np.float32(math.tanh(z))
        line[start + lane] = z
        counts[lane] += many if z != zero else np.int32(0)


@compiled
def _gather_line(packed: Any, first: int, last: int, value: int, step: int, source: Array, target: Array,
                 base: int, lanes: int, stride: int) -> None:  # fmt: skip
    """Add the weighted sum of the panel lines of one output column to the line at `base`."""
    indices, values = packed.indices, packed.values
    width, out, entry = np.uintp(stride), np.uintp(base), first
    while entry + 8 <= last:
        i0, i1 = np.uintp(indices[entry]) * width, np.uintp(indices[entry + 1]) * width
        i2, i3 = np.uintp(indices[entry + 2]) * width, np.uintp(indices[entry + 3]) * width
        i4, i5 = np.uintp(indices[entry + 4]) * width, np.uintp(indices[entry + 5]) * width
        i6, i7 = np.uintp(indices[entry + 6]) * width, np.uintp(indices[entry + 7]) * width
        w0, w1, w2, w3 = values[value], values[value + step], values[value + 2 * step], values[value + 3 * step]
        v = value + 4 * step
        w4, w5, w6, w7 = values[v], values[v + step], values[v + 2 * step], values[v + 3 * step]
        for lane in range(np.uintp(lanes)):
            target[out + lane] += (
                (source[i0 + lane] * w0 + source[i1 + lane] * w1) + (source[i2 + lane] * w2 + source[i3 + lane] * w3)
            ) + ((source[i4 + lane] * w4 + source[i5 + lane] * w5) + (source[i6 + lane] * w6 + source[i7 + lane] * w7))
        entry += 8
        value += 8 * step
    while entry < last:
        i0, w0 = np.uintp(indices[entry]) * width, values[value]
        for lane in range(np.uintp(lanes)):
            target[out + lane] += source[i0 + lane] * w0
        entry += 1
        value += step


@compiled
def _finish_line(packed: Any, layer: int, output: int, target: Array, lanes: int, stride: int, counts: Array) -> None:
    slot = packed.starts[layer] + output
    _activate(
        packed.activations[layer], packed.clips[layer], packed.copies[slot], target, output * stride, lanes, counts
    )


@compiled
def _gather_layer(packed: Any, layer: int, source: Array, target: Array, lanes: int, stride: int,
                  counts: Array) -> int:  # fmt: skip
    """Compute one layer of a panel from `source` into `target`; returns the multiply-adds per lane."""
    outputs = packed.widths[layer + 1]
    column = packed.starts[layer] + layer
    begin = packed.offsets[column]
    step = packed.value_strides[layer]
    counts[:lanes] = 0
    for output in range(outputs):
        line, bias = np.uintp(output * stride), packed.bias[packed.starts[layer] + output]
        for lane in range(np.uintp(lanes)):
            target[line + lane] = bias
        first, last = packed.offsets[column + output], packed.offsets[column + output + 1]
        value = packed.value_starts[layer] + (first - begin) * step
        _gather_line(packed, first, last, value, step, source, target, output * stride, lanes, stride)
        _finish_line(packed, layer, output, target, lanes, stride, counts)
    per_lane: int = packed.offsets[column + outputs] - begin
    return per_lane


@compiled
def _live_lanes(counts: Array, lanes: int, live: Array) -> int:
    """List the lanes that have a non-zero; returns how many they are."""
    found = 0
    for lane in range(lanes):
        if counts[lane] > 0:
            live[found] = lane
            found += 1
    return found


@compiled
def _squeeze(panel: Array, width: int, stride: int, live: Array, found: int) -> None:
    """Move the live lanes of every line together at its front."""
    for line in range(width):
        base = line * stride
        for lane in range(found):
            panel[base + lane] = panel[base + live[lane]]


@compiled
def _padded(lanes: int, stride: int) -> int:
    padded: int = min(stride, (lanes + LANE_STEP - 1) // LANE_STEP * LANE_STEP)
    return padded


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
def _run_layers(packed: Any, first: int, last: int, entered: int, edges: int, a: Array, b: Array, stride: int,
                rows: Array, lanes: int, counts: Array, live: Array, weights: Array, droppable_from: int,
                counters: Array) -> tuple[int, int]:  # fmt: skip
    """Take a panel through layers first to last; returns (lanes left, which of a (0) and b (1) holds them).

    entered : `first` if the panel holds that layer's inputs, `first + 1` if it already holds its outputs, which
        took `edges` multiply-adds and whose non-zeros are in `counts`.
    rows : the row of each lane; reordered as lanes move.
    """
    source, target, side = a, b, 0
    for layer in range(first, last):
        if layer >= entered:
            per_lane = _gather_layer(packed, layer, source, target, _padded(lanes, stride), stride, counts)
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


@compiled
def _emit(panel: Array, width: int, stride: int, lanes: int, out: Array, at: int) -> None:
    """Write lanes back as rows `at` and following of `out`, a cache line of each at a time."""
    for block in range(0, width, BLOCK):
        stop = min(width, block + BLOCK)
        for lane in range(lanes):
            for line in range(block, stop):
                out[at + lane, line] = panel[line * stride + lane]


@compiled
def _clear(panel: Array, width: int, stride: int, lanes: int) -> None:
    for line in range(width):
        base = np.uintp(line * stride)
        for lane in range(np.uintp(lanes)):
            panel[base + lane] = np.float32(0)


@compiled
def _finish_scatter(packed: Any, layer: int, panel: Array, stride: int, lanes: int, counts: Array) -> None:
    """Add the bias to a scattered layer and apply its activation."""
    counts[:lanes] = 0
    for output in range(packed.widths[layer + 1]):
        line, bias = np.uintp(output * stride), packed.bias[packed.starts[layer] + output]
        for lane in range(np.uintp(lanes)):
            panel[line + lane] += bias
        _finish_line(packed, layer, output, panel, lanes, stride, counts)


@compiled
def run_csr(indptr: Array, indices: Array, values: Array, start: int, stop: int, packed: Any, first: int, last: int,
            by_rows: tuple[Array, Array, Array], scatter: bool, weights: Array, droppable_from: int, a: Array,
            b: Array, stride: int, out: Array, kept: Array, counters: Array) -> int:  # fmt: skip
    """Run CSR rows start to stop, panel by panel; returns how many rows were written to `out` and `kept`."""
    counts, live, rows = np.empty(stride, np.int32), np.empty(stride, np.int64), np.empty(stride, np.int64)
    pointers, targets, multipliers = by_rows
    iso = values.size == 1
    written = 0
    for base in range(start, stop, stride):
        lanes = min(stride, stop - base)
        padded = _padded(lanes, stride)
        _clear(a, packed.widths[first + 1] if scatter else packed.widths[first], stride, padded)
        edges = 0
        for lane in range(lanes):
            rows[lane] = base + lane
            for entry in range(indptr[base + lane], indptr[base + lane + 1]):
                value = values[0] if iso else values[entry]
                if scatter:
                    column = indices[entry]
                    edges += pointers[column + 1] - pointers[column]
                    for edge in range(pointers[column], pointers[column + 1]):
                        a[np.intp(targets[edge]) * stride + lane] += value * multipliers[edge]
                else:
                    a[np.intp(indices[entry]) * stride + lane] = value
        if scatter:
            _finish_scatter(packed, first, a, stride, padded, counts)
        lanes, side = _run_layers(packed, first, last, first + (1 if scatter else 0), edges, a, b, stride, rows,
                                  lanes, counts, live, weights, droppable_from, counters)  # fmt: skip
        _emit(b if side else a, packed.widths[last], stride, lanes, out, written)
        kept[written : written + lanes] = rows[:lanes]
        written += lanes
    return written


@compiled
def run_dense(features: Array, start: int, stop: int, packed: Any, first: int, last: int,
              by_rows: tuple[Array, Array, Array], scatter: bool, weights: Array, droppable_from: int, a: Array,
              b: Array, stride: int, out: Array, kept: Array, counters: Array) -> int:  # fmt: skip
    """Run dense rows start to stop, panel by panel; returns how many rows were written to `out` and `kept`."""
    counts, live, rows = np.empty(stride, np.int32), np.empty(stride, np.int64), np.empty(stride, np.int64)
    pointers, targets, multipliers = by_rows
    width = packed.widths[first]
    written = 0
    for base in range(start, stop, stride):
        lanes = min(stride, stop - base)
        padded = _padded(lanes, stride)
        edges = 0
        for lane in range(lanes):
            rows[lane] = base + lane
        if scatter:
            _clear(a, packed.widths[first + 1], stride, padded)
            for lane in range(lanes):
                for column in range(width):
                    value = features[base + lane, column]
                    if value != np.float32(0):
                        edges += pointers[column + 1] - pointers[column]
                        for edge in range(pointers[column], pointers[column + 1]):
                            a[np.intp(targets[edge]) * stride + lane] += value * multipliers[edge]
            _finish_scatter(packed, first, a, stride, padded, counts)
        else:
            if padded > lanes:
                _clear(a, width, stride, padded)
            for block in range(0, width, BLOCK):
                for lane in range(lanes):
                    for line in range(block, min(width, block + BLOCK)):
                        a[line * stride + lane] = features[base + lane, line]
        lanes, side = _run_layers(packed, first, last, first + (1 if scatter else 0), edges, a, b, stride, rows,
                                  lanes, counts, live, weights, droppable_from, counters)  # fmt: skip
        _emit(b if side else a, packed.widths[last], stride, lanes, out, written)
        kept[written : written + lanes] = rows[:lanes]
        written += lanes
    return written


_scratch = Scratch()


def _stride(rows: int, widest: int, lanes: int | None) -> int:
    """Lanes of a panel: as many as asked for, else as the cache holds, but no more than give every thread a panel."""
    cached = CACHE_BYTES // (2 * 4 * max(1, widest)) // LANE_STEP * LANE_STEP
    most = min(cached, MOST_LANES) if lanes is None else lanes
    share = -(-rows // thread_count())
    needed = -(-share // LANE_STEP) * LANE_STEP
    return max(LANE_STEP, min(most, needed))


def _chunk(rows: int, width: int, stride: int, most: int) -> int:
    """Rows a thread takes at a time, a multiple of the panel's."""
    wanted = min(most, CHUNK_BYTES // (4 * width), -(-rows // thread_count()))
    return max(1, wanted // stride) * stride


class _Collector:
    """Joins the rows that the threads hand in, in the order they come, in one buffer of the workspace."""

    def __init__(self, out: Array) -> None:
        self.out = out
        self.kept = np.empty(out.shape[0], np.int64)
        self.count = 0
        self._lock = threading.Lock()

    def add(self, rows: Array, kept: Array) -> None:
        with self._lock:
            start = self.count
            self.count += kept.size
        self.out[start : start + kept.size] = rows
        self.kept[start : start + kept.size] = kept


def _launch(step: StepInput, scatter: bool, lanes: int | None = None, chunk_rows: int = CHUNK_ROWS) -> StepOutput:
    stack: Stack = step.stack
    packed: Packed = stack.packed
    widths = packed.widths[step.first : step.last + 1]
    rows, outputs = step.features.shape[0], int(widths[-1])
    panel_width = int(widths[1:].max() if scatter else widths.max())
    stride = _stride(rows, panel_width, lanes)
    by_rows = stack.by_rows(step.first) if scatter else stack.no_rows
    collector = _Collector(stack.workspace.next(rows, outputs))

    def run(bounds: tuple[int, int]) -> Array:
        start, stop = bounds
        counters = np.zeros((step.last - step.first, 4), np.int64)
        kept = np.empty(stop - start, np.int64)
        out = _scratch.take("out", (stop - start) * outputs).reshape(stop - start, outputs)
        shared = (
            start, stop, packed, step.first, step.last, by_rows, scatter, step.multiplicity, step.droppable_from,
            _scratch.take("a", panel_width * stride), _scratch.take("b", panel_width * stride), stride,
            out, kept, counters,
        )  # fmt: skip
        if isinstance(step.features, CSR):
            written = run_csr(step.features.indptr, step.features.indices, step.features.values, *shared)
        else:
            written = run_dense(step.features, *shared)
        collector.add(out[:written], kept[:written])
        return counters

    work = chunks(rows, _chunk(rows, max(1, outputs), stride, chunk_rows))
    counters = sum(map_threads(run, work), np.zeros((step.last - step.first, 4), np.int64))
    return StepOutput(
        features=collector.out[: collector.count],
        kept=collector.kept[: collector.count],
        counts=tuple(
            LayerCounts("scatter" if scatter and layer == 0 else "panel", *map(int, counted))
            for layer, counted in enumerate(counters)
        ),
    )


def launch_panel(step: StepInput, lanes: int | None = None, chunk_rows: int = CHUNK_ROWS) -> StepOutput:
    """Run any number of layers in panels; the first one by scattering if `step.scatter` asks for it.

    Parameters
    ----------
    step : the layers and the rows.
    lanes : of a panel at most, one of `LANES_TO_TRY`; by default as many as the second-level cache holds.
    chunk_rows : that a thread takes at a time at most.
    """
    return _launch(step, step.scatter, lanes, chunk_rows)


def launch_scatter(step: StepInput) -> StepOutput:
    """Run one layer by scattering each non-zero through its row of weights (Gustavson's row-wise product)."""
    return _launch(step, scatter=True)


def panel_sizes(step: StepInput) -> str:
    """Return the sizes of a launch: the widest of its layers, and about how many rows there are."""
    widest = int(step.stack.packed.widths[step.first : step.last + 1].max())
    return f"width {widest}, rows {about(step.features.shape[0])}"


PANEL = register(
    SparseKernel(
        name="panel",
        device="cpu",
        summary="rows along the vector lanes, many layers while a tile of rows stays in cache",
        launch=launch_panel,
        auto=True,
        fuses=True,
        tunable=Tunable(
            parameters={"lanes": LANES_TO_TRY, "chunk_rows": CHUNK_ROWS_TO_TRY},
            launch_with=lambda numbers: partial(launch_panel, lanes=numbers["lanes"], chunk_rows=numbers["chunk_rows"]),
            sizes=panel_sizes,
        ),
    )
)
SCATTER = register(
    SparseKernel(
        name="scatter",
        device="cpu",
        summary="only non-zeros, each scattered through its row of weights",
        launch=launch_scatter,
    )
)
