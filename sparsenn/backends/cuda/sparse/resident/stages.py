"""How resident cuts a network into stages, and which kernels a stage has: what launches and priors agree on."""

from __future__ import annotations

from sparsenn.backends.cuda.sparse.chunks.tiling import ROUNDS, BlockShape
from sparsenn.backends.machine import Machine
from sparsenn.backends.sizes import parts_of

WIDE = 128
"""Width from which on a row is shared by a cluster of blocks: 8 of them then take 1 to 6 microseconds a layer, one
block 3 to 40 (4096 to 65536 neurons, merged); and outputs of the first layer from which on the inputs are counted in a
stage of their own, where fewer are computed with the layers behind them, by testing bits. 64 outputs took 8 % longer in
all by counting (1024 x 120), 256 took 23 % less."""

CLUSTER = 8  # blocks of a cluster
FEW_ROWS = 2  # rows of a multiprocessor up to which each has a block to itself, all at once

FIRST_STAGE = 3
"""Layers of the first stage; each later one has half of those before it, if that is more. Rows go fastest at the start,
and a stage costs some ten microseconds. Equal rows are looked for from the second stage on."""

TILED_WIDTH = 1024
"""Width from which on stages with many rows are computed in tiles that pass through the L2 cache. Rows of 64, 256, 1024
and 4096 (the challenge's networks, merged) took 0.35, 0.20 more, 0.09 and 0.37 less of the time that way."""

TILED_LAYERS = 30
"""Layers up to which that is done: laying weights out for it takes milliseconds a layer. Rows that do not fit into
shared memory are computed in tiles in all layers, however few they are."""

CACHE_BYTES = 24 << 20  # half of an H200's L2 cache: of features of a wave before and after a layer; of weights
KERNEL_BYTES = 1 << 10  # shared memory that the kernels declare themselves, rounded up


def fits_in_shared(width: int, room: int) -> bool:
    """Return whether two rows fit into the shared memory of a block, beside what kernels declare themselves."""
    return 8 * (width + 1) + KERNEL_BYTES <= room


def few_rows(machine: Machine) -> int:
    """Return the rows up to which each has a block or a cluster of blocks."""
    return FEW_ROWS * machine.multiprocessors


def rows_at_once(machine: Machine, cluster: int) -> int:
    """Return how many rows are computed at a time; a cluster's blocks have a multiprocessor each, for registers."""
    return few_rows(machine) if cluster == 1 else machine.multiprocessors // cluster


def stage_lengths(layers: int) -> list[int]:
    """Cut the layers into stages: short ones first, then ever longer ones; the last has what makes no further one."""
    lengths: list[int] = []
    while rest := layers - sum(lengths):
        length = max(FIRST_STAGE, sum(lengths) // 2)
        lengths.append(rest if rest < 2 * length else length)
    return lengths


def tiles_of_wave(machine: Machine, block: BlockShape, groups: int, width: int) -> int:
    """Return how many tiles go through the layers of a stage together, before the next ones begin.

    Blocks that are done with a tile's layer continue with another's.
    """
    blocks = machine.multiprocessors * block.blocks
    return max(ROUNDS, parts_of(ROUNDS * blocks, groups), CACHE_BYTES // (2 * block.line * width))
