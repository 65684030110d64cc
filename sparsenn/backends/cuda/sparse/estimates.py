"""How long layers take with the kernels that `auto` chooses among: estimates of chains that are ready, for choosing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from sparsenn.backends.cuda.sparse.chunks.tiling import (
    Tiling,
    chained_layers,
    estimated_clocks,
    shared_tilings,
    stage_tilings,
)
from sparsenn.backends.cuda.sparse.resident.stages import (
    CLUSTER,
    COUNTED_WIDTH,
    TILED_LAYERS,
    TILED_WIDTH,
    WIDE,
    few_rows,
    fits_in_shared,
    rows_at_once,
    runs_at_once,
    stage_lengths,
    tiles_of_wave,
)
from sparsenn.backends.machine import H200, Machine
from sparsenn.layers import SparseLinear

__all__ = ["chunks_seconds", "half_chunks_seconds", "resident_seconds"]

Part = TypeVar("Part")

# `chunks`. 6 us of a run go to keeping track of rows, which calls of dense layers alone are spared.
RUN_SECONDS = 26e-6  # of a run beside its layers: queueing the first launch, waiting for the last
HALF_RUN_SECONDS = 46e-6  # likewise in halves, where more launches are not part of the graph
QUEUE_SECONDS = 28e-6  # that the host queues meanwhile, where the device is not busy for longer

LAUNCH_SECONDS = 2.5e-6  # of a launch of a graph beside its kernel
TURN_LAUNCH_SECONDS = 5e-6  # of a launch that lays rows out anew

TURNED_SHARE = 0.8
"""Of the bandwidth of copies, what rows reach on their way into tiles and out of them: 0.29 ms for 60,000 of 1024."""

SAMPLED_LAYERS = 16
"""Layers of `chunks` that are looked at, evenly spread; the others take as long as these do on average."""

# ---- What `resident_seconds` reckons with -----------------------------------------------------------------------
# On an H200, fitted to the challenge's problems, merged, in which rows die and become equal, and to stacks of 3 to 24
# layers of 10 to 16384 outputs in which none does, for 1 to 60,000 rows. Most estimates are off by less than 20 %. Many
# rows, in tiles, are work of all multiprocessors, in shared memory: others take longer by their number and clock.

RESIDENT_SECONDS = 26e-6
"""A run beside its stages: queueing the graph, and waiting for it; 6 us of it are spent as in `chunks`."""

STAGE_SECONDS = 8e-6  # of a stage of many rows beside its layers
TILED_STAGE_SECONDS = 90e-6  # of a stage with rows in tiles for `chunks`
ROW_STAGE_SECONDS = 5.5e-6  # of a stage of few rows, for each that a cluster of blocks computes

# Wider layers take longer, in proportion to the width over the second number: fewer rows share an edge.
EDGE_SECONDS = 0.45e-12  # of a row's edge
EDGE_CROWDED = 4096  # width by which edges take twice as long
OUTPUT_SECONDS = 4e-12  # of a row's output
OUTPUT_CROWDED = 40_000  # width by which outputs take twice as long

COUNTED_EDGE_SECONDS = 0.05e-12  # of a row's edge of a first layer with counted inputs, many rows at a time
INPUT_SECONDS = 0.4e-12  # of a place of the row's inputs

COUNTED_SHARE = 1.07
"""What layers that are computed as `chunks` does take, in parts of that: non-zeros are counted."""

TILE_SECONDS = 8e-6
"""A layer in tiles, however few the rows."""

# A layer of one row.
BLOCK_SECONDS = 1.1e-6  # with a block for the row
CLUSTER_SECONDS = 2.1e-6  # with a cluster of blocks for the row

TURN_SECONDS = 1.5e-6  # of each further output that a thread has a share in
ROUND_SECONDS = 0.6e-6  # of each further round of reading edges for an output

ROUND_EDGES = 32  # of an output, read in a round
OUTPUTS_AT_ONCE = 1024  # of a cluster


def chunks_seconds(machine: Machine, layers: Sequence[SparseLinear], rows: int) -> float:
    """Estimate what `chunks` takes, in seconds.

    Parameters
    ----------
    rows : of a run.
    """

    def seconds(part: tuple[SparseLinear, bool]) -> float:
        layer, chained = part
        (tiling,) = shared_tilings(rows, [_size(layer)], machine, chained=[chained])
        clocks = estimated_clocks(tiling, rows, *_size(layer), machine, chained)
        return LAUNCH_SECONDS + clocks / machine.clock

    turned = 2 * TURN_LAUNCH_SECONDS + _turned_seconds(machine, rows, layers[0].inputs + layers[-1].outputs)
    *chain, last = zip(layers, chained_layers(len(layers), halves=False), strict=True)
    return RUN_SECONDS + max(QUEUE_SECONDS, turned + _over_all(chain, seconds) + seconds(last))


def half_chunks_seconds(machine: Machine, layers: Sequence[SparseLinear], rows: int, row_bytes: int = 4) -> float:
    """Estimate what `chunks` on halves takes, in seconds.

    Parameters
    ----------
    rows : of a run.
    row_bytes : of a number of the rows, and of one of the outputs.
    """

    def seconds(part: tuple[SparseLinear, bool]) -> float:
        layer, chained = part
        (tiling,) = shared_tilings(rows, [_size(layer)], machine, halves=True, chained=[chained])
        clocks = estimated_clocks(tiling, rows, *_size(layer), machine, chained=chained)
        return LAUNCH_SECONDS + clocks / machine.clock

    moved = (2 * row_bytes + 2) * layers[0].inputs + 2 * row_bytes * layers[-1].outputs  # rows are read twice
    turned = 3 * TURN_LAUNCH_SECONDS + rows * moved / machine.copy_bandwidth
    *chain, last = zip(layers, chained_layers(len(layers), halves=True), strict=True)
    return HALF_RUN_SECONDS + max(QUEUE_SECONDS, turned + _over_all(chain, seconds) + seconds(last))


def resident_seconds(
    machine: Machine,
    layers: Sequence[SparseLinear],
    rows: int,
    alive: Sequence[float] | None = None,
    form: str = "dense",
) -> float:
    """Estimate what `resident` takes, in seconds.

    Parameters
    ----------
    rows : of a run.
    alive : the share of the rows that each layer has to compute, those that have died or have become equal to others
        left out; None for all of them.
    form : of the rows: `dense`, `csr`, or `iso` for CSR whose entries all have one value; these are counted by the
        first layer, where it is wide.
    """
    counts = [rows * share for share in alive] if alive is not None else [float(rows)] * len(layers)
    counted = form == "iso" and layers[0].outputs >= COUNTED_WIDTH
    at_once, total = runs_at_once(machine, rows), RESIDENT_SECONDS
    if counted:
        total += _counted_layer(machine, layers[0], rows)
    lengths = [len(layers) - counted] if at_once else stage_lengths(len(layers) - counted)
    first = int(counted)
    for length in lengths:
        stage = layers[first : first + length]
        as_rows = first > 0 or form != "iso"
        total += _stage(machine, stage, rows, counts[first : first + length], as_rows, first + length)
        first += length
    return total


def _counted_layer(machine: Machine, layer: SparseLinear, rows: int) -> float:
    """Estimate a first layer that counts its inputs."""
    work = layer.edges * COUNTED_EDGE_SECONDS + layer.inputs * INPUT_SECONDS
    return STAGE_SECONDS + _slower(machine) * rows * work


def _stage(
    machine: Machine, layers: Sequence[SparseLinear], rows: int, counts: Sequence[float], as_rows: bool, last: int
) -> float:
    """Estimate layers that so many rows each go through in one stage.

    Parameters
    ----------
    rows : of the run, which it is laid out for.
    as_rows : whether it reads rows of numbers, not of bits, which take no room.
    last : layers up to the stage's end; early ones that read rows may run as `chunks` does.
    """
    if not layers:
        return 0.0
    may_tile = as_rows and last <= TILED_LAYERS
    widest = max(layers[0].inputs if as_rows else 0, *(layer.outputs for layer in layers))
    fits = fits_in_shared(widest, machine.block_bytes)
    if fits and counts[0] <= few_rows(machine):
        return _few_rows(machine, layers, counts)
    if fits and (not may_tile or widest < TILED_WIDTH):
        return STAGE_SECONDS + sum(
            TILE_SECONDS + _slower(machine) * count * _row_seconds(layer)
            for layer, count in zip(layers, counts, strict=True)
        )
    total = TILED_STAGE_SECONDS + _turned_seconds(machine, counts[0], layers[0].inputs + layers[-1].outputs)
    sizes = [_size(layer) for layer in layers]
    found = stage_tilings(rows, sizes, machine)
    count, block = math.ceil(counts[0]), found[0].block  # rows leave at the stage's end
    width = max(max(layer.inputs, layer.outputs) for layer in layers)
    wave = tiles_of_wave(machine, block, max(tiling.groups for tiling in found), width)
    clocks = sum(
        _rounds_of_waves(machine, tiling, count, wave) * estimated_clocks(tiling, count, *size, machine)
        for tiling, size in zip(found, sizes, strict=True)
    )
    return total + COUNTED_SHARE * clocks / machine.clock


def _rounds_of_waves(machine: Machine, tiling: Tiling, rows: int, wave: int) -> float:
    """Return the rounds in which blocks take a layer's work wave by wave, in parts of those without waves; at least 1.

    The tiles of a wave may have too few groups for all multiprocessors. These wait: the next layer needs this one.
    """
    tiles = -(-rows // tiling.block.rows)
    whole, rest = divmod(tiles, wave)
    rounds = whole * max(1.0, wave * tiling.groups / machine.multiprocessors)
    rounds += max(1.0, rest * tiling.groups / machine.multiprocessors) if rest else 0.0
    return max(1.0, rounds / max(1, -(-tiles * tiling.groups // machine.multiprocessors)))


def _few_rows(machine: Machine, layers: Sequence[SparseLinear], counts: Sequence[float]) -> float:
    """Estimate a stage whose rows have a block or a cluster of blocks each."""
    wide = max(max(layer.inputs, layer.outputs) for layer in layers) >= WIDE
    at_once = max(1, rows_at_once(machine, CLUSTER if wide else 1))
    alone = CLUSTER_SECONDS if wide else BLOCK_SECONDS
    total = 2 * LAUNCH_SECONDS + ROW_STAGE_SECONDS * math.ceil(counts[0] / at_once)
    for layer, count in zip(layers, counts, strict=True):
        rounds = max(1, math.ceil(layer.edges / max(1, layer.outputs) / ROUND_EDGES))
        turns = max(1, math.ceil(layer.outputs / OUTPUTS_AT_ONCE))
        row = alone + (turns - 1) * TURN_SECONDS + turns * (rounds - 1) * ROUND_SECONDS
        total += math.ceil(count / at_once) * row
    return total


def _row_seconds(layer: SparseLinear) -> float:
    """Estimate a layer in tiles, a row of many."""
    widest = max(layer.inputs, layer.outputs)
    edge = EDGE_SECONDS * (1 + widest / EDGE_CROWDED)
    output = OUTPUT_SECONDS * (1 + widest / OUTPUT_CROWDED)
    return layer.edges * edge + layer.outputs * output


def _slower(machine: Machine) -> float:
    """Return the time that all multiprocessors take, in parts of what an H200's do."""
    return H200.multiprocessors * H200.clock / (machine.multiprocessors * machine.clock)


def _turned_seconds(machine: Machine, rows: float, width: float) -> float:
    """Estimate what laying rows of so many numbers out anew takes."""
    return 8 * rows * width / (TURNED_SHARE * machine.copy_bandwidth)


def _size(layer: SparseLinear) -> tuple[int, int, int]:
    return layer.inputs, max(1, layer.outputs), layer.edges


def _over_all(parts: Sequence[Part], seconds: Callable[[Part], float]) -> float:
    step = max(1, len(parts) // SAMPLED_LAYERS)
    sample = parts[::step]
    return sum(map(seconds, sample)) * len(parts) / max(1, len(sample))
