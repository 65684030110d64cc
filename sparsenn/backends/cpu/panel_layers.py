"""The layers of a panel: their sums, by this thread or shared among threads, counts, and lanes that leave."""

from __future__ import annotations

import numpy as np
from numba import carray

from sparsenn.backends.cpu.panel_slices import emit_lanes, lanes_across, tile_lanes
from sparsenn.backends.cpu.panel_sums import (
    COUNTS,
    EDGES,
    ENTER,
    FIRST,
    GATHER,
    LANES,
    LAYER,
    ROWS,
    SLICES,
    SOURCE,
    TARGET,
    WIDTHS,
    windows_of,
)
from sparsenn.backends.cpu.processor import CACHE_BYTES
from sparsenn.backends.cpu.row_threads import run_slices
from sparsenn.backends.cpu.slices import pointer_of
from sparsenn.backends.cpu.tiles import TILE
from sparsenn.formats import Array
from sparsenn.runtime.jit import compiled

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
            out[to + lane, :] = out[to + live[lane], :]
