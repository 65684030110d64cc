"""Products on tensor cores: precisions, tiles of a block, estimates, and room for sums in parts."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from sparsenn.backends.cuda.clocks import MEMORY_CLOCKS, RESERVED_BYTES, SHARED_L2_BYTES, busy_share
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.layer_cache import stream_key
from sparsenn.backends.cuda.runtime.memory import lasting_memory
from sparsenn.backends.cuda.runtime.precision import SPLIT_PRODUCTS
from sparsenn.backends.machine import WARP, Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.errors import UsageError
from sparsenn.formats import Array

LINE = 128  # bytes of a row or a column of the factors in a slab


@dataclass(frozen=True)
class Kind:
    """A precision."""

    name: str  # of the factors' numbers: float32, tf32 or float16
    define: str  # as kernels know it
    factor_bytes: int  # of a number as it is multiplied
    products: int  # instructions for each tile of factors

    @property
    def terms(self) -> int:
        """Terms of a slab."""
        return LINE // self.factor_bytes


FLOAT32 = Kind("float32", "TENSOR_FLOAT32", 4, SPLIT_PRODUCTS)
TF32 = Kind("tf32", "TENSOR_TF32", 4, 1)
HALF = Kind("float16", "TENSOR_HALF", 2, 1)


@dataclass(frozen=True)
class Tile:
    """The share of a block at a time; a kernel is compiled for each."""

    rows: int
    columns: int
    warps_down: int
    warps_across: int
    slices: int = 1  # groups of so many warps that share a slab's terms
    stages: int = 3  # slabs in shared memory
    blocks: int = 2  # of a multiprocessor, which registers are given for

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.warps_down * self.warps_across * self.slices

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps

    @property
    def sums(self) -> int:
        """Numbers of a tile."""
        return self.rows * self.columns

    def defines(self, kind: Kind) -> dict[str, int | str]:
        """Return what `kernels/products/tensor.cuh` is compiled with."""
        return {
            "KIND": kind.define,
            "BM": self.rows,
            "BN": self.columns,
            "WARPS_M": self.warps_down,
            "WARPS_N": self.warps_across,
            "SLICES": self.slices,
            "STAGES": self.stages,
            "BLOCKS": self.blocks,
        }

    def resident(self, shared_bytes: int, machine: Machine) -> int:
        """Return how many blocks of so much shared memory a multiprocessor has at a time; 0 if it has no room."""
        if shared_bytes > machine.block_bytes:
            return 0
        return min(self.blocks, machine.multiprocessor_bytes // (shared_bytes + RESERVED_BYTES))


BLOCK_CLOCKS = 2 * MEMORY_CLOCKS  # of a block's beginning and end; and of waiting for the sums of other blocks


def work(
    kind: Kind,
    tile: Tile,
    *,
    copied: float,
    read: float,
    slabs: int,
    tiles: int,
    parts: int,
    resident: int,
    machine: Machine,
    filled: float = 1.0,
    waiting: float = 0.0,
) -> float:
    """Estimate the clocks from the first block to the last.

    A block writes `copied` bytes of a slab to its shared memory, and takes `read` from the cache for that; it has
    `slabs`, of which the share `filled` is multiplied, one of `tiles` of the sums, one of `parts` of the depth, and
    waits for `waiting` clocks. A multiprocessor has `resident` blocks at a time. An H200's tensor cores take a clock
    for 16 x 8 sums and 32 bytes of each row and column; numbers of float32 are split into those of TF32.
    """
    share = machine.share("tf32" if kind is FLOAT32 else kind.name)
    instructions = tile.sums / 128 * 4 * kind.products / share
    warps = tile.warps_down * tile.warps_across
    lines = warps * (tile.rows // tile.warps_down + tile.columns // tile.warps_across)
    busy = max(filled * instructions, filled * lines + copied / LINE, read / SHARED_L2_BYTES)
    blocks = parts_of(tiles * parts, machine.multiprocessors)
    together = min(blocks, resident)
    clocks = blocks * slabs * busy / busy_share(together * tile.threads)
    clocks += parts_of(blocks, together) * (BLOCK_CLOCKS + waiting)
    if parts > 1:
        clocks += BLOCK_CLOCKS + blocks * 2 * 4 * tile.sums / SHARED_L2_BYTES
    return clocks


# ---- On the device -----------------------------------------------------------------------------------------------


_counters: dict[tuple[int, Hashable], Array] = {}
"""By device and stream: launches of one stream follow each other, and each leaves zeros behind."""


def counters(tiles: int) -> Array:
    """Return zeros, one for each tile, for a launch on the current stream.

    On a stream that a graph captures, and on which nothing was launched before, they would be zeros in the graph only:
    that is refused by a UsageError.
    """
    cp = cupy()
    stream = cp.cuda.get_current_stream()
    key = cp.cuda.runtime.getDevice(), stream_key(stream)
    if key not in _counters or _counters[key].size < tiles:
        if stream.is_capturing():
            if tiles:
                raise UsageError("launch the kernel once on this stream before a graph captures it")
            return cp.empty(0, np.uint32)
        with lasting_memory():
            _counters[key] = cp.zeros(max(tiles, 1 << 12), np.uint32)
    return _counters[key]


def partial_sums(tile: Tile, tiles: int, parts: int) -> Array:
    """Return room for the sums of each part of each tile; none where there is one part."""
    return cupy().empty(tiles * parts * tile.sums if parts > 1 else 0, np.float32)
