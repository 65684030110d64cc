"""Priors of the kernels of sparse layers, from their rooflines: right within a factor of two on an H200."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from sparsenn.backends.cuda.sparse.chunks.tiling import BLOCKS, HALF_BLOCKS, BlockShape
from sparsenn.backends.cuda.sparse.resident.stages import CLUSTER, WIDE, few_rows, fits_in_shared, rows_at_once
from sparsenn.backends.machine import Machine
from sparsenn.backends.prior import CACHED, LAUNCH_SECONDS, TUNED, WARPS, Prior
from sparsenn.backends.sizes import FLOAT_BYTES, HALF_BYTES, parts_of
from sparsenn.layers import SparseLinear

EDGE_BYTES = 8  # a weight and a place

RUN_LAUNCHES = 2  # of a run beside its layers: rows are laid out, and outputs laid back

# `chunks`: a multiply-add reads shared memory, which is what bounds it, and chunks come from the L2 cache. On halves,
# shared memory bounds it likewise: float32's peak is what it is compared with.
CHUNKS = Prior(WARPS, CACHED)

# `two_of_four`: tensor cores, for which shared memory is too slow.
TWO_OF_FOUR = Prior(TUNED, precision="float16")
MENDED_OUTPUTS = 8  # that have three weights in a group of four, and an order of inputs avoids; more take a second pass

# `resident`: rows in tiles, each layer with its share of the stage's launches; and rows with a cluster of blocks each,
# which reads a layer's edges for its row alone.
TILES = Prior(0.12, launch=2 * LAUNCH_SECONDS)
CLUSTERS = Prior(1.0, 1.3, LAUNCH_SECONDS / 2)

# `few_rows`: each group of rows reads the weights, all but the first from the L2 cache; sums wait for shared memory.
FEW_ROWS = Prior(TILES.compute, launch=LAUNCH_SECONDS / 2)


def _chunks_seconds(
    blocks: Sequence[BlockShape],
    number_bytes: int,
    machine: Machine,
    layers: Sequence[SparseLinear],
    rows: int,
    row_bytes: int = 4,
) -> float:
    ends, least = layers[0].inputs + layers[-1].outputs, min(block.rows for block in blocks)
    return _run_seconds(machine, rows * (row_bytes + number_bytes) * ends) + sum(
        _in_chunks(machine, layer, rows, number_bytes, least) for layer in layers
    )


chunks_seconds = partial(_chunks_seconds, BLOCKS, FLOAT_BYTES)
"""Estimate the time of `chunks`."""

half_chunks_seconds = partial(_chunks_seconds, HALF_BLOCKS, HALF_BYTES)
"""Estimate the time of `chunks` on halves; `row_bytes` is of a number of the rows, and of the outputs."""


def few_rows_seconds(
    group: int,
    edge_bytes: int,
    number_bytes: int,
    machine: Machine,
    layers: Sequence[SparseLinear],
    rows: int,
    row_bytes: int = 4,
) -> float:
    """Estimate the time of `few_rows`, for groups of `group` rows and weights and numbers of these bytes.

    Each multiprocessor copies the numbers of a group, from the cache, and once more for each further round of groups.
    """
    groups = parts_of(rows, group)
    cached, copied = FEW_ROWS.memory / CACHED, number_bytes * min(group, rows) * max(machine.multiprocessors, groups)
    return RUN_LAUNCHES * LAUNCH_SECONDS + sum(
        FEW_ROWS.seconds(
            machine,
            layer.edges * rows,
            edge_bytes * layer.edges * (1 + (groups - 1) * cached) + copied * layer.inputs * cached,
        )
        for layer in layers
    )


def two_of_four_seconds(
    planes: int,
    rows_at_once: int,
    neurons: int,
    machine: Machine,
    layers: Sequence[SparseLinear],
    rows: int,
    row_bytes: int = 4,
) -> float:
    """Estimate the time of `two_of_four`, for blocks of so many halves per number, rows and outputs."""
    products = 3 if planes == 2 else 1
    seconds = _run_seconds(machine, rows * layers[0].inputs * (row_bytes + HALF_BYTES * planes))
    for layer in layers:
        tiles = parts_of(rows, rows_at_once) * parts_of(layer.outputs, neurons)
        places = max(tiles, machine.multiprocessors) * rows_at_once * neurons
        moved = HALF_BYTES * planes * rows * (layer.inputs + layer.outputs)
        products_of_layer = products * _passes(layer) * places * layer.inputs / 2
        seconds += TWO_OF_FOUR.seconds(machine, products_of_layer, moved)
    return seconds


def resident_seconds(machine: Machine, layers: Sequence[SparseLinear], rows: int) -> float:
    """Estimate the time of `resident`, all of whose rows go through all layers; their form hardly matters."""
    return _run_seconds(machine, 0) + sum(_resident_layer(machine, layer, rows) for layer in layers)


def _run_seconds(machine: Machine, nbytes: float) -> float:
    return RUN_LAUNCHES * LAUNCH_SECONDS + nbytes / machine.copy_bandwidth


def _in_chunks(machine: Machine, layer: SparseLinear, rows: int, number_bytes: int, least_rows: int) -> float:
    """Return the seconds of a layer whose inputs come in chunks, once for each block's outputs.

    Fewer rows than `least_rows`, a tile's, take as long.
    """
    blocks = parts_of(max(1, layer.outputs), max(block.slots for block in BLOCKS))
    inputs_read = layer.inputs * max(rows * blocks, least_rows * machine.multiprocessors)
    moved = number_bytes * (inputs_read + rows * layer.outputs)
    return CHUNKS.seconds(machine, layer.edges * max(rows, least_rows), moved)


def _passes(layer: SparseLinear) -> int:
    """Return how often inputs are multiplied, for weights at random places: twice where too many groups have three."""
    density = layer.edges / max(1, layer.inputs * layer.outputs)
    crowded = layer.outputs * (4 * density**3 * (1 - density) + density**4)
    return 2 if crowded > MENDED_OUTPUTS else 1


def _resident_layer(machine: Machine, layer: SparseLinear, rows: int) -> float:
    width = max(layer.inputs, layer.outputs)
    if rows > few_rows(machine) or not fits_in_shared(width, machine.block_bytes):
        return TILES.seconds(machine, rows * layer.edges, FLOAT_BYTES * rows * (layer.inputs + layer.outputs))
    rounds = math.ceil(rows / rows_at_once(machine, CLUSTER if width >= WIDE else 1))
    clusters = rows_at_once(machine, CLUSTER)  # of which each has its share of the bandwidth
    return rounds * CLUSTERS.seconds(machine, 0, clusters * EDGE_BYTES * layer.edges)
