"""How a sparse layer is cut for `gather_chunks`: the shape of its blocks, groups of outputs, and chunks of inputs.

Shapes of blocks are also those of its double on halves.

Outputs of a layer that read the same inputs make up teams: `gather_chunks` reads each input once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from sparsenn.backends.cuda.clocks import EDGE_CLOCKS, L2_BYTES, MEMORY_CLOCKS, OUTPUT_CLOCKS, READ_BYTES
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_host
from sparsenn.backends.cuda.sparse.row_slices import SLICES
from sparsenn.backends.machine import WARP, Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import CSC, Array
from sparsenn.formats.equality import equal_patterns
from sparsenn.layers import SparseLinear

TEAM = 16  # outputs of a team, at most: those of a warp
LEAST_SHARED = 4  # outputs for each list of inputs, on average, from which on there are teams; fewer gain little


@dataclass(frozen=True, eq=False)
class Teams:
    """How the outputs of a layer are dealt to teams, which are ordered by the first input that they read."""

    place: Array  # (outputs,) int64, `TEAM` times the team of each output, and its place there
    count: int  # number of teams


def teams_of(layer: SparseLinear) -> Teams | None:
    """Return the teams of a layer's outputs; None where too few outputs read the same inputs."""
    weights = layer.weights
    return cache_on_host(layer, "teams", lambda: teams_of_weights(weights) if _may_share(weights) else None)


def teams_of_weights(weights: CSC) -> Teams:
    """Return the teams of the outputs of weights; an output that is like no other is a team by itself."""
    representative, pattern = equal_patterns(weights)
    first = _ends(weights)[0][representative][pattern]
    order = np.lexsort((pattern, first))
    ordered, number = pattern[order], np.arange(order.size)
    begins = np.diff(ordered, prepend=-1) != 0
    rank = number - np.maximum.accumulate(np.where(begins, number, 0))
    team = np.cumsum(begins | (rank % TEAM == 0)) - 1
    place = np.empty(order.size, np.int64)
    place[order] = TEAM * team + rank % TEAM
    return Teams(place, int(team[-1]) + 1 if team.size else 0)


def _ends(weights: CSC) -> tuple[Array, Array]:
    """Return the first and last input that each output reads, int64; the number of inputs where it reads none."""
    degrees, inputs = np.diff(weights.indptr), weights.shape[0]
    found = np.full((2, degrees.size), inputs, np.int64)
    some = degrees > 0
    found[0, some] = weights.indices[weights.indptr[:-1][some]]
    found[1, some] = weights.indices[weights.indptr[1:][some] - 1]
    return found[0], found[1]


def _may_share(weights: CSC) -> bool:
    """Whether enough outputs begin and end with the same inputs, and have as many."""
    first, last = _ends(weights)
    keys = np.stack([first * (weights.shape[0] + 1) + last, np.diff(weights.indptr)])
    keys = keys[:, np.lexsort(keys)]
    different = 1 + np.count_nonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0))
    return LEAST_SHARED * int(different) <= first.size


MOST_STAGES = 8  # as in the kernel


@dataclass(frozen=True)
class BlockShape:
    """The outputs that a block of threads computes at a time; the kernel is compiled for each shape."""

    vector: int  # rows of a lane
    outputs: int  # of a warp
    warps: int  # that compute; with the one that copies a multiple of 4, as registers are allocated for 4 at a time
    blocks: int  # on a multiprocessor
    teams: bool = False  # whether the outputs of a warp are a team, and an input is read once for all of them
    halves: bool = False  # whether rows are in half precision, not float32

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return WARP * self.vector

    @property
    def slots(self) -> int:
        """Outputs of a block."""
        return self.warps * self.outputs

    @property
    def number(self) -> int:
        """Bytes of a number of the rows."""
        return 2 if self.halves else 4

    @property
    def line(self) -> int:
        """Bytes of one input of a tile."""
        return self.number * self.rows

    @property
    def edges_at_once(self) -> int:
        """Edges that a warp reads in one go."""
        return self.outputs if self.teams else 4 if self.halves else 2

    @property
    def output_places(self) -> int:
        """Step of an edge's place from output to output, above the bytes of any chunk, as in `ptx/*edges.cuh`."""
        return 1 << (18 if self.halves else 17)


BLOCKS = (
    BlockShape(8, 8, 19, 1),
    BlockShape(4, 14, 27, 1),
    BlockShape(2, 28, 27, 1),
    BlockShape(4, 8, 15, 1),
    BlockShape(4, 4, 7, 2),
    BlockShape(1, 8, 7, 2),
)
"""Large ones first: sums take 56 to 64 of a lane's 64 to 128 registers, for the more outputs the sparser layers are.
Smaller ones give few rows to all multiprocessors."""

HALF_BLOCKS = (
    BlockShape(8, 10, 15, 1, halves=True),
    BlockShape(4, 12, 23, 1, halves=True),
    BlockShape(4, 8, 15, 1, halves=True),
    BlockShape(4, 4, 7, 2, halves=True),
)
"""Those for rows of halves: four to the lane, or eight. Finishing takes more registers than where rows are float32."""

COUNTING_BLOCKS = (BlockShape(8, 8, 15, 1), BlockShape(4, 16, 15, 1), BlockShape(2, 32, 15, 1), BlockShape(2, 8, 7, 2))
"""Those in which outputs are counted, too, which takes registers: more sums, or more warps, would spill before compute
capability 9.0."""

TEAM_BLOCK = BlockShape(4, TEAM, 15, 1, teams=True)  # that for layers whose outputs make up teams, counted or not

TILE_ROWS = tuple(sorted({block.rows for block in BLOCKS}))  # that a tile can have


def room(machine: Machine, block: BlockShape) -> int:
    """Return the dynamic shared memory of a block: what is left by the system and by the kernel's own variables."""
    reserved, own = 1 << 10, 256 + (4 * block.rows if block.halves else 0)
    return min(machine.block_bytes, machine.multiprocessor_bytes // block.blocks - reserved) // 128 * 128 - own


def record_bytes(block: BlockShape, units: Any) -> Any:
    """Return the bytes of a record with some number of units, before it is filled up to a multiple of 16.

    A unit is the edges that are read in one go; or an input, with the weights of a team.
    """
    return 4 * (header_words(block) + unit_words(block) * units)


def header_words(block: BlockShape) -> int:
    """Return the words of a record before its units."""
    return 4 * block.teams + parts_of(block.warps, 4) * 4


def unit_words(block: BlockShape) -> int:
    """Words of a unit."""
    return 4 + block.outputs if block.teams else 4


def stage_bytes(block: BlockShape, chunk: int, record: int) -> int:
    """Bytes of a stage: a chunk, and the longest record."""
    return -(-(chunk * block.line + record) // 128) * 128


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
