"""Slices of the work on panels, which threads share: inputs of rows that enter, and outputs of a layer.

A slice of outputs is computed for all tiles of rows, one after the other, so that its weights stay in a core's own
cache meanwhile. Outputs of the last layer leave as rows at once, from that cache.
"""

from __future__ import annotations

import numpy as np
from numba import carray
from numba.core import types

from sparsenn.backends.cpu.packed import WINDOW, Packed
from sparsenn.backends.cpu.panel_sums import (
    ARRAYS,
    COUNTS,
    ENTER,
    FIRST,
    GATHER,
    IS_WIDE,
    JOB,
    LANES,
    LAYER,
    ROWS,
    SLICES,
    SOURCE,
    TARGET,
    WIDTHS,
    gather_layer,
    windows_of,
)
from sparsenn.backends.cpu.slices import pointer_of
from sparsenn.backends.cpu.tiles import TILE, VECTOR, transpose_square
from sparsenn.backends.sizes import FLOAT_BYTES
from sparsenn.formats import Array
from sparsenn.runtime.jit import address_of, compiled


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
    whole: int = (lanes + TILE - 1) // TILE * TILE
    return whole


@compiled
def lanes_across(lanes: int) -> int:
    """Return the numbers of a line of a tile of some lanes: whole vectors of them."""
    across: int = max(1, (lanes + VECTOR - 1) // VECTOR) * VECTOR
    return across


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
    address: int = job[SOURCE] + FLOAT_BYTES * lane * (inputs + 1)
    return address


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
