"""How a sparse layer is cut for `gather_chunks`: shapes of blocks, what a device has room for, and which to take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sparsenn.backends.cuda.sparse.chunks.blocks import (
    BLOCKS,
    COUNTING_BLOCKS,
    HALF_BLOCKS,
    TILE_ROWS,
    BlockShape,
    record_bytes,
    room,
    stage_bytes,
)
from sparsenn.backends.machine import Machine

__all__ = [
    "L2_BYTES",
    "RUN_CLOCKS",
    "Tiling",
    "chained_layers",
    "estimated_clocks",
    "in_slices",
    "shared_tilings",
    "stage_tilings",
    "tiling_for",
    "tilings",
]


@dataclass(frozen=True)
class Tiling:
    """How a layer is cut.

    Parameters
    ----------
    block : shape of a block.
    groups : into how many blocks' work the outputs are divided, evenly.
    chunk : inputs in shared memory at a time.
    """

    block: BlockShape
    groups: int
    chunk: int


WHOLE_ROUNDS = 2
"""Where blocks take a layer's work in more rounds than these, rows go through the layers in slices, side by side; of
fewer rounds, a slice would have too little work for all multiprocessors."""


def in_slices(tiling: Tiling, rows: int, machine: Machine) -> bool:
    """Return whether a layer has enough work for rows to go through it and its neighbours in slices."""
    items = -(-rows // tiling.block.rows) * tiling.groups
    return items > WHOLE_ROUNDS * machine.multiprocessors * tiling.block.blocks


# What `estimated_clocks` reckons with, in clocks of `Machine.clock`, above which a device runs where it can.
# Instructions are counted in the machine code for compute capability 9.0. The rest was fitted on an H200 to 193 tilings
# of 15 layers (512 to 32768 inputs and outputs, 0.1 to 10 % dense, 1,000 to 60,000 rows). Estimates are off by 7 %
# (root mean square), and the tilings that they choose take 0.5 % longer than the fastest, 5 % at most. For rows in
# halves, fitted on an H100 to 130 tilings of 11 layers (512 to 16384, 0.2 to 10 %), these are 9 %, 3 % and 11 %.
# `bench/record_general.py --sweep` compares on any device.

ISSUED = 4
"""Instructions that a multiprocessor begins in a clock."""

READ_CLOCKS = 0.94
"""Clocks that a multiprocessor takes to read up to 128 bytes of shared memory."""

CHUNK_INSTRUCTIONS = 35
"""Of a warp: to wait for a chunk, to find its part of it, and to give it back."""

# Of a warp.
SLOT_INSTRUCTIONS = 26  # to finish an output
HALF_SLOT_INSTRUCTIONS = 60  # to finish an output in halves that another layer reads

# Bytes per clock that arrive in a multiprocessor's shared memory while all others fill theirs.
L2_BYTES = 60.0
HALF_L2_BYTES = 45.0

RUN_CLOCKS = 55
"""That the copy engine takes for a copy, however short."""

# Clocks from reading an edge's line to having added its products, with nothing else running.
EDGE_CLOCKS = 42
HALF_EDGE_CLOCKS = 30
HALF_ROW_CLOCKS = 3  # more for each row of a lane

SHARE_CLOCKS = 1300
"""Clocks that a multiprocessor takes to begin and finish one block's work."""

# Bytes per clock of outputs that a multiprocessor finishes, with nothing else running in it.
WRITE_BYTES = 18.0
HALF_WRITE_BYTES = 14.0

SLOT_CLOCKS = 17
"""Clocks of a block to begin and finish one output."""

CHUNK_CLOCKS = 200
"""Clocks of a block to wait for the next chunk, and for its slowest warp."""

OVERLAP = 4
"""The power at which times add up that pass side by side: the longest counts for most, not alone."""


@dataclass(frozen=True)
class _Work:
    """What a block's warps do with one group's edges, on average.

    Parameters
    ----------
    block : shape of the block.
    edges : stored weights.
    chunks : that cut them into pieces.
    outputs : of the group.
    """

    block: BlockShape
    edges: float
    chunks: float
    outputs: float

    @property
    def units(self) -> float:
        """Edges read at once, and those that say where a warp's edges end."""
        return self.edges / self.block.edges_at_once + self.block.warps * self.chunks

    @property
    def instructions(self) -> float:
        """Instructions of the loop over the edges and of going on to the next output."""
        vector, lines = self.block.vector, -(-self.block.vector * self.block.number // 16)
        if self.block.halves:
            return (5.5 + lines + vector / 4) * self.edges + 6 * self.chunks * self.outputs
        return (4.5 + lines + vector) * self.edges + 2 * self.chunks * self.outputs

    @property
    def reads(self) -> float:
        """Reads of shared memory, of up to 128 bytes: units, and lines of inputs."""
        units = 2 * self.units if self.block.halves else self.units  # of float32, fitted as if a unit took one read
        return units + self.block.line / 128 * self.edges


def _chunk_for(block: BlockShape, space: int, stages: int, inputs: int, edges_per_input: float, outputs: float) -> int:
    """Return the most inputs whose chunk fits `stages` times; the same for every chunk of the layer, nearly.

    space : of all stages, in bytes.
    edges_per_input, outputs : of a group, on average; records are given a sixth more.
    """

    def fits(chunk: int) -> bool:
        record = record_bytes(block, 1.16 * _Work(block, edges_per_input * chunk, 1, outputs).units + 8)
        return stages * stage_bytes(block, chunk, int(record)) <= space

    most = max(1, min(inputs, space // (stages * block.line)))
    while most > 1 and not fits(most):
        most -= max(1, most // 16)
    return max(1, -(-inputs // -(-max(1, inputs) // most)))


def _l2_bytes(block: BlockShape) -> float:
    return HALF_L2_BYTES if block.halves else L2_BYTES


def estimated_clocks(
    tiling: Tiling,
    rows: int,
    inputs: int,
    outputs: int,
    edges: int,
    machine: Machine,
    chained: bool = False,
) -> float:
    """Estimate a layer's time: what a multiprocessor has to do, or how long its blocks wait for their operands.

    Multiprocessors wait for the one that has most to do, unless rows go through the layer in slices and another slice
    follows: if the layer has work for that, and is `chained`.
    """
    block, groups = tiling.block, tiling.groups
    items = -(-rows // block.rows) * groups
    parted = chained and in_slices(tiling, rows, machine)
    share = items / machine.multiprocessors if parted else -(-items // machine.multiprocessors)
    rounds = share / block.blocks if parted else -(-share // block.blocks)
    per_group = outputs / groups
    chunks = math.ceil(inputs / tiling.chunk)
    work = _Work(block, edges / groups, chunks, per_group)
    each = per_group / block.warps  # outputs of a warp
    unevenness = math.ceil(each) / each
    records = chunks * record_bytes(block, work.units / max(1, chunks))
    brought = (inputs * block.line + records) / _l2_bytes(block)
    # What arrives takes the port of shared memory, too. For float32, other constants were fitted without that.
    arriving = inputs * block.line / 128 if block.halves else 0
    instructions = work.instructions * unevenness + CHUNK_INSTRUCTIONS * chunks * block.warps
    instructions += (HALF_SLOT_INSTRUCTIONS if block.halves else SLOT_INSTRUCTIONS) * block.slots
    edge_clocks = HALF_EDGE_CLOCKS + HALF_ROW_CLOCKS * block.vector if block.halves else EDGE_CLOCKS
    waited = (
        edges / groups * unevenness / block.warps * edge_clocks
        + chunks * CHUNK_CLOCKS
        + SLOT_CLOCKS * block.slots
        + block.line * tiling.chunk / _l2_bytes(block)
    )
    side_by_side = (
        instructions / ISSUED,
        (work.reads * unevenness + arriving) * READ_CLOCKS,
        brought,
        waited * rounds / max(1, share),
    )
    together = math.pow(sum(clocks**OVERLAP for clocks in side_by_side), 1 / OVERLAP)
    written = per_group * block.line / (HALF_WRITE_BYTES if block.halves else WRITE_BYTES)
    return share * (together + SHARE_CLOCKS + written)


def tilings(
    rows: int,
    inputs: int,
    outputs: int,
    edges: int,
    machine: Machine,
    stages: tuple[int, ...] = (2, 3),
    tile_rows: int | None = None,
    halves: bool = False,
) -> Iterator[Tiling]:
    """Yield tilings worth considering: every shape, its outputs in as few groups as can be or somewhat more.

    Parameters
    ----------
    rows, inputs, outputs, edges : shape of the product, and stored weights.
    stages : how many chunks shared memory is to hold; more of them are smaller ones.
    tile_rows : rows of the tiles that the features lie in; any unless given.
    halves : whether rows are in half precision.
    """
    for block in (block for block in (HALF_BLOCKS if halves else BLOCKS) if tile_rows in (None, block.rows)):
        least = max(1, -(-outputs // block.slots))
        tiles = max(1, -(-rows // block.rows))
        rounds = -(-tiles * least // machine.multiprocessors)
        space = room(machine, block)
        even = max(least, rounds * machine.multiprocessors // tiles)  # as many as cost no further round
        for groups in sorted({least, min(even, max(1, outputs))}):
            for count in stages:
                per_input = edges / (max(1, inputs) * groups)
                chunk = _chunk_for(block, space, count, inputs, per_input, outputs / groups)
                yield Tiling(block, groups, chunk)


def tiling_for(
    rows: int,
    inputs: int,
    outputs: int,
    edges: int,
    machine: Machine,
    tile_rows: int | None = None,
    halves: bool = False,
    chained: bool = False,
) -> Tiling:
    """Choose a tiling by estimated time; parameters as for `tilings` and `estimated_clocks`."""
    size = rows, inputs, max(1, outputs), edges, machine
    found = tilings(*size, tile_rows=tile_rows, halves=halves)
    return min(found, key=lambda tiling: estimated_clocks(tiling, *size, chained))


def chained_layers(count: int, halves: bool) -> list[bool]:
    """Return, for each layer of a chain, whether the next layer's slices fill the multiprocessors that it leaves idle.

    Nothing does so behind the last one that rows go through in slices. Where rows are halves, the very last is launched
    for all rows, so that this is the one before it.
    """
    return [number < count - halves - 1 for number in range(count)]


def shared_tilings(
    rows: int,
    shapes: Sequence[tuple[int, int, int]],
    machine: Machine,
    halves: bool = False,
    chained: Sequence[bool] | None = None,
) -> tuple[Tiling, ...]:
    """Choose the tilings of layers that follow each other on the same rows: their tiles have equally many rows.

    Of all numbers of rows, that with the least sum of estimated times is taken.

    Parameters
    ----------
    rows : rows that all layers are computed on.
    shapes : (inputs, outputs, edges) of each layer.
    halves : whether rows are in half precision.
    chained : of each layer, as for `estimated_clocks`; as of `chained_layers` unless given.
    """
    chained = chained_layers(len(shapes), halves) if chained is None else chained
    given = list(zip(shapes, chained, strict=True))
    there = {block.rows for block in (HALF_BLOCKS if halves else BLOCKS)}
    sides = [side for side in TILE_ROWS if side in there]
    ways = [[_timed_tiling(rows, *shape, machine, side, halves, way) for shape, way in given] for side in sides]
    best = min(ways, key=lambda way: sum(clocks for _, clocks in way))
    return tuple(tiling for tiling, _ in best)


@lru_cache(maxsize=1 << 14)
def _timed_tiling(
    rows: int,
    inputs: int,
    outputs: int,
    edges: int,
    machine: Machine,
    tile_rows: int,
    halves: bool,
    chained: bool,
) -> tuple[Tiling, float]:
    """Return the best tiling for tiles of so many rows, and its estimated clocks."""
    tiling = tiling_for(rows, inputs, outputs, edges, machine, tile_rows, halves, chained)
    return tiling, estimated_clocks(tiling, rows, inputs, max(1, outputs), edges, machine, chained)


def stage_tilings(rows: int, shapes: Sequence[tuple[int, int, int]], machine: Machine) -> tuple[Tiling, ...]:
    """Choose the tilings of layers that are one launch and whose outputs are counted: all are for blocks of one shape.

    Parameters
    ----------
    shapes : as for `shared_tilings`.
    """
    ways = [[_counted_tiling(block, rows, *shape, machine) for shape in shapes] for block in COUNTING_BLOCKS]
    best = min(ways, key=lambda way: sum(clocks for _, clocks in way))
    return tuple(tiling for tiling, _ in best)


@lru_cache(maxsize=1 << 14)
def _counted_tiling(
    block: BlockShape, rows: int, inputs: int, outputs: int, edges: int, machine: Machine
) -> tuple[Tiling, float]:
    """Return how a layer is cut for blocks of a shape, and the clocks that it takes."""
    size = rows, inputs, max(1, outputs), edges, machine
    found = (tiling for tiling in tilings(*size, tile_rows=block.rows) if tiling.block == block)
    return min(((tiling, estimated_clocks(tiling, *size)) for tiling in found), key=lambda way: way[1])
