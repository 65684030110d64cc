"""Blocks of `two_of_four`: how much each takes at a time, and the programs that are compiled for them."""

from __future__ import annotations

from dataclasses import dataclass

from sparsenn.backends.cuda.conv.warpgroup import ARCHITECTURE
from sparsenn.backends.cuda.runtime.activation import ACTIVATIONS
from sparsenn.backends.cuda.runtime.loader import Program, program
from sparsenn.backends.cuda.sparse.half_chain import LAST, LAST_AS_HALVES
from sparsenn.backends.cuda.sparse.two_of_four.input_order import RUNS, UNITS
from sparsenn.backends.cuda.sparse.two_of_four.packing import GROUP, group_bytes
from sparsenn.backends.machine import WARP

WARPGROUP = 128  # threads that carry out an instruction together
TURNED_BYTES = 2 * 2 * 16 * 16  # of shared memory for each warp and plane: 16 outputs of 16 rows, twice
OUTPUT_BYTES = 2 * 4 * 16  # likewise for each warp and tile: scales and biases of 16 outputs


@dataclass(frozen=True)
class BlockShape:
    """What a block of the kernel computes."""

    planes: int  # 2 where numbers are split into two halves, else 1
    rows: int  # at a time
    stages: int  # slabs in shared memory
    groups: int = 2  # warpgroups
    tiles: int = 2  # 64 outputs of each warpgroup

    @property
    def neurons(self) -> int:
        """Outputs of a block's tile."""
        return GROUP * self.groups * self.tiles

    @property
    def threads(self) -> int:
        """Of a block; a further warpgroup copies."""
        return WARPGROUP * (self.groups + 1)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        weights = group_bytes(self.planes) * self.groups * self.tiles
        stage = weights + self.planes * UNITS * 16 * self.rows
        told = 8 * self.rows + OUTPUT_BYTES * self.tiles
        own = self.groups * WARPGROUP // WARP * (self.planes * TURNED_BYTES + told)
        return self.stages * stage + own + 16 * self.stages

    def programs(self) -> tuple[Program, Program]:
        """Declare the kernels for blocks of this shape: the one that multiplies, and the one that lays rows out."""
        multiplying = program(
            "sparse/two_of_four.cu",
            ARCHITECTURE,
            dynamic_shared=True,
            PLANES=(self.planes,),
            ROWS=(self.rows,),
            STAGES=(self.stages,),
            GROUPS=(self.groups,),
            TILES=(self.tiles,),
            ACTIVATION=tuple(range(len(ACTIVATIONS) + 1)),
            LAST=(0, LAST) if self.planes == 2 else (0, LAST, LAST_AS_HALVES),
        )
        laying_out = program(
            "sparse/rows_to_units.cu",
            dynamic_shared=True,
            PLANES=(self.planes,),
            ROWS=(self.rows,),
            TAKEN=(16, 8, 4, 2, 1),
            RUN=RUNS,
            INPUT=("float",) if self.planes == 2 else ("float", "half_bits"),
        )
        return multiplying, laying_out


SPLIT = BlockShape(2, 128, 3)  # for numbers that are split
SINGLE = BlockShape(1, 192, 4)  # for numbers that are not

PROGRAMS = {shape: shape.programs() for shape in (SPLIT, SINGLE)}
