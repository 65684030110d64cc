"""The layers of a panel: their sums, by this thread or shared among threads, counts, and lanes that leave."""

from __future__ import annotations

import numpy as np
from numba import carray

from sparsenn.backends.cpu.panel_sums import (
    COUNTS,
    EDGES,
    LAYER,
    SLICES,
    SOURCE,
    TARGET,
    VECTORS,
    WIDTHS,
    gather_layer,
    windows_of,
)
from sparsenn.backends.cpu.row_threads import run_slices
from sparsenn.backends.cpu.slices import pointer_of
from sparsenn.backends.cpu.tiles import TILE, VECTOR
from sparsenn.formats import Array
from sparsenn.runtime.jit import compiled

__all__ = ["SLICE_WORK", "run_layers", "vectors_of"]

SLICE_WORK = 1 << 18
"""Multiply-adds of a slice at least: 7 us, in which another thread sees that there is work."""


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
def _share_layer(job: Array, layer: int, source: Array, target: Array, vectors: int, counts: Array,
                 state: Array) -> None:  # fmt: skip
    """Compute a layer, by all threads where it is large enough, in slices of its outputs."""
    widths, edges = carray(pointer_of(job[WIDTHS]), 1, np.int64), carray(pointer_of(job[EDGES]), 1, np.int64)
    across, windows = vectors * VECTOR, windows_of(widths[layer + 1])
    for lane in range(across):  # the line of what fills a group
        source[widths[layer] * across + lane] = np.float32(0)
    most = counts.size // TILE if state.size > 0 else 1
    slices = min(most, windows, edges[layer] * across // SLICE_WORK)
    if slices < 2:
        gather_layer(job, layer, source, target, vectors, counts, 0, windows)
        return
    job[LAYER], job[SLICES], job[VECTORS], job[COUNTS] = layer, slices, vectors, counts.ctypes.data
    job[SOURCE], job[TARGET] = source.ctypes.data, target.ctypes.data
    run_slices(state, job, slices, True)
    for number in range(1, slices):
        for lane in range(across):
            counts[lane] += counts[number * TILE + lane]


@compiled
def run_layers(job: Array, first: int, last: int, entered: int, edges: int, a: Array, b: Array, rows: Array,
                lanes: int, counts: Array, live: Array, weights: Array, droppable_from: int, counters: Array,
                state: Array) -> tuple[int, int, int]:  # fmt: skip
    """Take a panel through layers first to last; returns (lanes left, their vectors, which of a (0) and b (1) it is).

    job : of `job_of`. entered : `first + 1` if the panel holds that layer's outputs, of `edges` multiply-adds,
        non-zeros in `counts`; else `first`. rows : the row of each lane; reordered as lanes move. counts : `TILE` int32
        for each slice of a layer. counters : of each layer, or empty. state : of `row_threads`, which share each layer,
        or empty.
    """
    widths, weights_of = carray(pointer_of(job[WIDTHS]), 1, np.int64), carray(pointer_of(job[EDGES]), 1, np.int64)
    source, target, side, vectors = a, b, 0, vectors_of(lanes)
    for layer in range(first, last):
        if layer >= entered:
            _share_layer(job, layer, source, target, vectors, counts, state)
            edges = weights_of[layer] * lanes
            source, target, side = target, source, 1 - side
        if counters.shape[0] > 0:
            _count_layer(counters, layer - first, lanes, edges, counts, weights, rows)
        if layer >= droppable_from:
            found = _live_lanes(counts, lanes, live)
            if found == 0:
                return 0, vectors, side
            if found < lanes and (layer == last - 1 or 4 * found <= 3 * lanes):
                fewer = vectors_of(found)
                _squeeze(source, widths[layer + 1], vectors * VECTOR, live, found, fewer * VECTOR)
                for lane in range(found):
                    rows[lane] = rows[live[lane]]
                lanes, vectors = found, fewer
    return lanes, vectors, side
