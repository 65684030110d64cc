"""Blocks of `gather_chunks` and its double on halves: their shapes, and the shared memory that they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparsenn.backends.cuda.sparse.chunks.teams import TEAM
from sparsenn.backends.machine import WARP, Machine
from sparsenn.backends.sizes import parts_of

MOST_STAGES = 8  # as in the kernel


@dataclass(frozen=True)
class BlockShape:
    """What a block of threads computes at a time; the kernel is compiled for each shape."""

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
    """Bytes of a record with so many units, before it is filled up to a multiple of 16.

    A unit is the edges that are read in one go; or an input, with the weights of a team.
    """
    return 4 * (header_words(block) + unit_words(block) * units)


def header_words(block: BlockShape) -> int:
    """Words of a record before its units."""
    return 4 * block.teams + parts_of(block.warps, 4) * 4


def unit_words(block: BlockShape) -> int:
    """Words of a unit."""
    return 4 + block.outputs if block.teams else 4


def stage_bytes(block: BlockShape, chunk: int, record: int) -> int:
    """Bytes of a stage: a chunk, and the longest record."""
    return -(-(chunk * block.line + record) // 128) * 128
