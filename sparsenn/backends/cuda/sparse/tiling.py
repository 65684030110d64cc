"""How a sparse layer is cut for `gather_chunks`: shapes of blocks, what a device has room for, and which to take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from sparsenn.backends.cuda.loader import cupy

__all__ = [
    "BLOCKS",
    "MOST_STAGES",
    "WARP",
    "BlockShape",
    "Limits",
    "Tiling",
    "device_limits",
    "estimated_clocks",
    "stage_bytes",
    "tiling_for",
    "tilings",
]

WARP = 32
MOST_STAGES = 8
"""As in the kernel."""


@dataclass(frozen=True)
class BlockShape:
    """What a block of threads computes at a time; the kernel is compiled for each shape.

    Parameters
    ----------
    vector : rows of a lane.
    outputs : outputs of a warp.
    warps : that compute; one more brings in their data. Together 4, 8, 12 or 16, as registers are given to 4 at a time.
    blocks : on a multiprocessor.
    """

    vector: int
    outputs: int
    warps: int
    blocks: int

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return WARP * self.vector

    @property
    def slots(self) -> int:
        """Outputs of a block."""
        return self.warps * self.outputs

    @property
    def line(self) -> int:
        """Bytes of one input of a tile."""
        return 4 * self.rows

    @property
    def defines(self) -> dict[str, int]:
        """What the kernel is compiled with."""
        return {"VECTOR": self.vector, "OUTPUTS": self.outputs, "WARPS": self.warps, "BLOCKS": self.blocks}


BLOCKS = (
    BlockShape(4, 16, 15, 1),
    BlockShape(4, 20, 15, 1),
    BlockShape(8, 8, 15, 1),
    BlockShape(2, 32, 15, 1),
    BlockShape(4, 16, 7, 2),
    BlockShape(2, 16, 15, 1),
    BlockShape(4, 8, 15, 1),
    BlockShape(4, 4, 15, 1),
    BlockShape(4, 8, 7, 2),
    BlockShape(4, 4, 7, 2),
    BlockShape(2, 8, 7, 2),
    BlockShape(2, 4, 7, 2),
    BlockShape(1, 8, 7, 2),
)
"""Large ones first: sums take 64 to 80 of a lane's 128 registers. Smaller ones give few rows to all multiprocessors."""


@dataclass(frozen=True)
class Limits:
    """What a device offers; the defaults are those of compute capability 9.0 with 132 multiprocessors.

    Parameters
    ----------
    multiprocessors : how many there are.
    block_bytes, multiprocessor_bytes : shared memory that a block, and all blocks of a multiprocessor, can have.
    """

    multiprocessors: int = 132
    block_bytes: int = 227 << 10
    multiprocessor_bytes: int = 228 << 10

    def room(self, block: BlockShape) -> int:
        """Return the dynamic shared memory of a block: what is left by the system and by the kernel's barriers."""
        reserved, barriers = 1 << 10, 16 * MOST_STAGES
        return min(self.block_bytes, self.multiprocessor_bytes // block.blocks - reserved) // 128 * 128 - barriers


@cache
def device_limits(device: int) -> Limits:
    """Ask a device for its limits."""
    found = cupy().cuda.runtime.getDeviceProperties(device)
    return Limits(found["multiProcessorCount"], found["sharedMemPerBlockOptin"], found["sharedMemPerMultiprocessor"])


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


# What `estimated_clocks` reckons with: fitted to the times of 541 tilings on an H200 (256 to 16384 inputs and outputs,
# 1, 5 and 20 % dense, 1,000 and 10,000 rows: 15 to 24 tilings each). Of these it picks such as take 0.5 % longer than
# the fastest on average, and 4 % at most. `bench/record_general.py --sweep` compares on any device.

READ_CLOCKS = 0.8
"""Clocks that a multiprocessor takes to read a word a lane from shared memory: a pair of edges needs one such read, and
two for each row of a lane."""

L2_BYTES = 44
"""Bytes a clock that arrive in a multiprocessor's shared memory while all others fill theirs."""

PAIR_CLOCKS = 140
"""Clocks from reading two edges to having added their products, with nothing else going on."""

SHARE_CLOCKS = 3600
"""Clocks that a multiprocessor takes to begin and finish one block's work."""

SLOT_CLOCKS = 17
"""Clocks of a block to begin and finish one output."""

CHUNK_CLOCKS = 90
"""Clocks of a block to wait for the next chunk."""

SEGMENT_CLOCKS = 7
"""Clocks of a multiprocessor to go on to the next output."""


def _pairs(edges: float, segments: float) -> float:
    """Expected pairs of edges when `edges` fall at random on `segments`, each padded to an even number."""
    return edges / 2 + segments * (1 - math.exp(-2 * edges / max(1.0, segments))) / 4


def stage_bytes(block: BlockShape, chunk: int, record: int) -> int:
    """Bytes of a stage: a chunk, the line of zeros, the record and what is read past its end."""
    return -(-((chunk + 1) * block.line + record + 16) // 128) * 128


def _chunk_for(block: BlockShape, room: int, stages: int, inputs: int, edges_per_input: float, outputs: float) -> int:
    """Return the most inputs whose chunk fits `stages` times; the same for every chunk of the layer, nearly.

    edges_per_input, outputs : of a group, on average; records are given a sixth more.
    """

    def fits(chunk: int) -> bool:
        pairs = _pairs(edges_per_input * chunk, outputs)
        record = 16 + 4 * block.slots + 16 * (1.16 * pairs + 8)
        return stages * stage_bytes(block, chunk, int(record)) <= room

    most = max(1, min(inputs, room // (stages * block.line)))
    while most > 1 and not fits(most):
        most -= max(1, most // 16)
    return max(1, -(-inputs // -(-max(1, inputs) // most)))


def estimated_clocks(tiling: Tiling, rows: int, inputs: int, outputs: int, edges: int, limits: Limits) -> float:
    """Estimate a layer's time: what a multiprocessor has to do, or how long its blocks wait for their operands."""
    block, groups = tiling.block, tiling.groups
    items = -(-rows // block.rows) * groups
    share = -(-items // limits.multiprocessors)
    per_group = outputs / groups
    chunks = -(-inputs // tiling.chunk)
    pairs = _pairs(edges / groups, chunks * per_group)
    unevenness = math.ceil(per_group / block.warps) / (per_group / block.warps)
    read = (pairs * (2 * block.vector + 1) * READ_CLOCKS + chunks * per_group * SEGMENT_CLOCKS) * unevenness
    brought = (inputs * block.line + 16 * pairs + 4 * chunks * block.slots) / L2_BYTES
    waited = (
        pairs / block.warps * unevenness * PAIR_CLOCKS
        + chunks * CHUNK_CLOCKS
        + SLOT_CLOCKS * block.slots
        + block.line * tiling.chunk / L2_BYTES
    )
    return max(share * max(read, brought), -(-share // block.blocks) * waited) + share * SHARE_CLOCKS


def tilings(
    rows: int,
    inputs: int,
    outputs: int,
    edges: int,
    limits: Limits,
    stages: tuple[int, ...] = (2, 3),
    tile_rows: int | None = None,
) -> Iterator[Tiling]:
    """Yield tilings worth considering: every shape, its outputs in as few groups as can be or somewhat more.

    Parameters
    ----------
    rows, inputs, outputs, edges : shape of the product, and stored weights.
    stages : how many chunks shared memory is to hold; more of them are smaller ones.
    tile_rows : rows of the tiles that the features lie in; any unless given.
    """
    for block in (block for block in BLOCKS if tile_rows in (None, block.rows)):
        least = max(1, -(-outputs // block.slots))
        tiles = max(1, -(-rows // block.rows))
        rounds = -(-tiles * least // limits.multiprocessors)
        even = max(least, rounds * limits.multiprocessors // tiles)  # as many as cost no further round
        for groups in sorted({least, min(even, max(1, outputs))}):
            for count in stages:
                chunk = _chunk_for(
                    block, limits.room(block), count, inputs, edges / max(1, inputs * groups), outputs / groups
                )
                yield Tiling(block, groups, chunk)


def tiling_for(
    rows: int, inputs: int, outputs: int, edges: int, limits: Limits, tile_rows: int | None = None
) -> Tiling:
    """Choose a tiling by estimated time; parameters as for `tilings`."""
    found = tilings(rows, inputs, max(1, outputs), edges, limits, tile_rows=tile_rows)
    return min(found, key=lambda tiling: estimated_clocks(tiling, rows, inputs, max(1, outputs), edges, limits))
