"""How a sparse layer is cut for `gather_chunks`: the shape of its blocks, groups of outputs, and chunks of inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from sparsenn.backends.cuda.clocks import EDGE_CLOCKS, L2_BYTES, MEMORY_CLOCKS, OUTPUT_CLOCKS, READ_BYTES
from sparsenn.backends.cuda.sparse.chunks.blocks import (
    BLOCKS,
    COUNTING_BLOCKS,
    HALF_BLOCKS,
    TEAM_BLOCK,
    TILE_ROWS,
    BlockShape,
    record_bytes,
    room,
    unit_words,
)
from sparsenn.backends.cuda.sparse.row_slices import SLICES
from sparsenn.backends.machine import Machine
from sparsenn.backends.sizes import parts_of


@dataclass(frozen=True)
class Tiling:
    """How a layer is cut."""

    block: BlockShape
    groups: int  # that the outputs are divided into, evenly; a block takes one at a time
    chunk: int  # inputs in shared memory at a time


ROUNDS = SLICES
"""Where blocks take a layer's work in more rounds than these, rows go through the layers in slices, side by side; of
fewer rounds, a slice would have too little work for all multiprocessors."""

LEAST_STAGES = 2  # chunks in shared memory: one is read while the next one arrives
MARGIN = 1.16  # longest record over the average one; `chunk_weights` shortens chunks where that is not enough


def in_slices(tiling: Tiling, rows: int, machine: Machine) -> bool:
    """Return whether a layer has enough work for rows to go through it and its neighbours in slices."""
    items = parts_of(rows, tiling.block.rows) * tiling.groups
    return items > ROUNDS * machine.multiprocessors * tiling.block.blocks


def shared_tilings(
    rows: int, shapes: Sequence[tuple[int, int, int]], machine: Machine, halves: bool = False, teams: Sequence[int] = ()
) -> tuple[Tiling, ...]:
    """Choose the tilings of layers that follow each other on the same rows: their tiles have equally many rows."""
    if not halves and (found := _in_teams(rows, shapes, machine, teams)):
        return found
    blocks = HALF_BLOCKS if halves else BLOCKS
    families = [[block for block in blocks if block.rows == side] for side in TILE_ROWS]
    return _best(filter(None, families), rows, shapes, machine)


def stage_tilings(
    rows: int, shapes: Sequence[tuple[int, int, int]], machine: Machine, teams: Sequence[int] = ()
) -> tuple[Tiling, ...]:
    """Choose the tilings of layers that are one launch and whose outputs are counted: blocks have one shape."""
    in_teams = _in_teams(rows, shapes, machine, teams)
    return in_teams or _best([[block] for block in COUNTING_BLOCKS], rows, shapes, machine)


def _in_teams(
    rows: int, shapes: Sequence[tuple[int, int, int]], machine: Machine, teams: Sequence[int]
) -> tuple[Tiling, ...]:
    if not teams or not all(teams):
        return ()
    found = []
    for (inputs, _, edges), count in zip(shapes, teams, strict=True):
        _, tiling = _cut(TEAM_BLOCK, rows, inputs, count * TEAM_BLOCK.outputs, edges, machine)
        found.append(replace(tiling, groups=min(tiling.groups, count)))
    return tuple(found) if all(occupies(tiling, rows, machine) for tiling in found) else ()


def occupies(tiling: Tiling, rows: int, machine: Machine) -> bool:
    """Return whether every multiprocessor has a block's work."""
    return parts_of(rows, tiling.block.rows) * tiling.groups >= machine.multiprocessors


def _best(
    families: Iterable[Sequence[BlockShape]], rows: int, shapes: Sequence[tuple[int, int, int]], machine: Machine
) -> tuple[Tiling, ...]:
    def cut(family: Sequence[BlockShape]) -> list[tuple[float, Tiling]]:
        return [
            min((_cut(block, rows, *shape, machine) for block in family), key=lambda found: found[0])
            for shape in shapes
        ]

    best = min(map(cut, families), key=lambda layers: sum(clocks for clocks, _ in layers))
    return tuple(tiling for _, tiling in best)


@lru_cache(maxsize=1 << 14)
def _cut(block: BlockShape, rows: int, inputs: int, outputs: int, edges: int, machine: Machine) -> tuple[float, Tiling]:
    """Cut a layer for a shape of blocks, into as many groups of outputs as cost no further round.

    The clocks are those of the multiprocessor that has most to do, for comparing shapes: what it reads of shared
    memory, what arrives there, and what its warps wait for, which partly pass side by side.
    """
    outputs, multiprocessors = max(1, outputs), machine.multiprocessors
    least, tiles = parts_of(outputs, block.slots), max(1, parts_of(rows, block.rows))
    rounds = parts_of(tiles * least, multiprocessors)
    groups = max(least, min(outputs, rounds * multiprocessors // tiles))
    tiling = Tiling(block, groups, _chunk(block, machine, inputs, edges / groups))

    share = parts_of(tiles * groups, multiprocessors)
    warp_outputs = parts_of(outputs, groups * block.warps)  # of the warp that the others wait for
    group_edges = edges / outputs * warp_outputs * block.warps
    read = group_edges * (block.line / READ_BYTES + 1 / block.edges_at_once)
    brought = (inputs * block.line + group_edges * _edge_bytes(block)) / L2_BYTES
    waited = (group_edges / block.warps * EDGE_CLOCKS + block.slots * OUTPUT_CLOCKS) / min(block.blocks, share)
    return share * (math.hypot(read, brought, waited) + MEMORY_CLOCKS), tiling


def _chunk(block: BlockShape, machine: Machine, inputs: int, group_edges: float) -> int:
    """Return the inputs of a chunk, about equally many in each: as many as fit with their records."""
    space = room(machine, block) / LEAST_STAGES - record_bytes(block, MARGIN * block.warps + 8)
    edges_bytes = MARGIN * group_edges / max(1, inputs) * _edge_bytes(block)  # of an input
    most = max(1, math.floor(space / (block.line + edges_bytes)))
    return max(1, parts_of(inputs, parts_of(max(1, inputs), most)))


def _edge_bytes(block: BlockShape) -> float:
    return 4 * unit_words(block) / block.edges_at_once
