"""How a convolution is cut for the kernels in which whole warpgroups multiply.

The kernel is `kernels/conv2d/warpgroup.cuh`; what its numbers mean is said there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import gcd, inf
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, Geometry
from sparsenn.backends.cuda.dense.image import split_tf32
from sparsenn.backends.cuda.gemm.tensor_tiles import CACHE_BYTES, FLOAT32, HALF, RESERVED, TF32, Kind, parts_of
from sparsenn.backends.cuda.sparse.tiling import WARP, Limits
from sparsenn.formats import Array

__all__ = ["SHAPES", "Plan", "Row", "Tile", "arranged", "clocks", "cut", "fitting", "plan", "row_of"]

ROWS = 64
"""Filters that an instruction multiplies."""

UNIT_BYTES = 16

STEP_BYTES = 32
"""Of depth, that an instruction multiplies."""

MOST_BANDS = 2
"""Chunks whose pixels may lie in shared memory at a time."""

STAGES = (2, 3, 4, 5, 6)
"""Slabs of filters that may lie in shared memory."""

SHAPES: dict[Kind, tuple[tuple[int, int, int], ...]] = {
    HALF: ((1, 2, 128), (2, 1, 128), (2, 1, 112), (2, 1, 96), (2, 2, 128), (1, 2, 64), (2, 1, 64), (1, 1, 32)),
    TF32: ((1, 2, 128), (2, 1, 128), (2, 1, 112), (2, 1, 96), (2, 2, 128), (1, 2, 64), (2, 1, 64), (1, 1, 32)),
    FLOAT32: ((1, 2, 128), (2, 1, 128), (2, 1, 112), (2, 1, 96), (2, 2, 64), (1, 2, 64), (2, 1, 64), (1, 1, 32)),
}
"""Tiles to choose from: warpgroups down and across, and places of each."""

STEPS = (4, 2, 1)
"""Of depth, that a chunk may have."""

BARRIER_BYTES = 8

PLACES = (1 << 14) - 1
"""That a band may have: more cannot be told to the instructions."""

LONGEST_RUN = 4
"""Outputs that are stored at once."""

RUNS_COST = 1.02
"""Places for one, at most, that a pitch may take of which outputs can be stored several at once."""

OTHER_REGISTERS = 32
"""Of a thread, besides its sums."""

BUSY = 0.85
"""The part of the time in which the tensor cores multiply, at best."""

SHARED_BYTES = 128
"""That come from shared memory in a clock."""

SLAB, FETCH, ALONE = 40.0, 1600.0, 120.0
"""Clocks of a slab's barriers, from asking for filters to having them, and of sums that nobody else's products hide."""

BLOCK, LATENCY, STORED = 3000.0, 800.0, 6.0
"""Clocks of a block's beginning, from asking for pixels to having the first, and of storing a place's outputs."""


@dataclass(frozen=True)
class Row:
    """How pixels, and outputs, follow each other in one row of places.

    Parameters
    ----------
    pitch, tall : places from one row of an image to the next, and rows from one image to the next.
    front : place of the first pixel; that of the first output is 0.
    reach : how far the last tap sees from the first.
    """

    pitch: int
    tall: int
    front: int
    reach: int

    def outputs(self, geometry: Geometry, count: int) -> int:
        """Return the places from the first output of `count` images to the last one."""
        rows = (count - 1) * self.tall + geometry.output_height - 1
        return rows * self.pitch + geometry.output_width

    def run(self, geometry: Geometry) -> int:
        """Return of how many places in line, counted from 0, all have outputs, side by side and aligned, or none."""
        return gcd(LONGEST_RUN, self.pitch, geometry.output_width)


def row_of(geometry: Geometry) -> Row:
    """Return how a convolution's pixels follow each other: with about as few places as can be."""
    tall = max(geometry.height + geometry.padding[0], geometry.output_height)
    least = max(geometry.width + geometry.padding[1], geometry.output_width)
    run = gcd(LONGEST_RUN, geometry.output_width)
    pitch = parts_of(least, run) * run
    while pitch > RUNS_COST * least:
        run //= 2
        pitch = parts_of(least, run) * run
    down, across = ((size - 1) * apart for size, apart in zip(geometry.kernel, geometry.dilation, strict=True))
    return Row(pitch, tall, geometry.padding[0] * pitch + geometry.padding[1], down * pitch + across)


@dataclass(frozen=True)
class Tile:
    """What a block computes; a kernel is compiled for each.

    Parameters
    ----------
    down, across : warpgroups that share it.
    columns : places of each.
    steps : of depth, in a chunk.
    stages : slabs of filters in shared memory.
    blocks : of a multiprocessor.
    bands : of pixels in shared memory: two, one of which comes while the other is multiplied; or, if the channels are
        one chunk, one.
    """

    down: int
    across: int
    columns: int
    steps: int
    stages: int
    blocks: int
    bands: int = MOST_BANDS

    @property
    def filters(self) -> int:
        """Filters of a block."""
        return ROWS * self.down

    @property
    def places(self) -> int:
        """Places of a block."""
        return self.across * self.columns

    @property
    def threads(self) -> int:
        """Threads of a block: those that multiply, and a warp that asks for copies."""
        return WARP * (4 * self.down * self.across + 1)

    def slab_bytes(self, kind: Kind) -> int:
        """Size of a slab in shared memory."""
        return STEP_BYTES * self.steps * self.filters * _pieces(kind)

    def band_bytes(self, kind: Kind, band: int) -> int:
        """Size of a band of `band` places in shared memory."""
        return STEP_BYTES * self.steps * band * _pieces(kind)

    def defines(self, kind: Kind) -> dict[str, int | str]:
        """Return what `kernels/conv2d/warpgroup.cuh` is compiled with."""
        return {
            "KIND": kind.define,
            "WARPGROUPS_M": self.down,
            "WARPGROUPS_N": self.across,
            "COLUMNS": self.columns,
            "STEPS": self.steps,
            "STAGES": self.stages,
            "BANDS": self.bands,
            "BLOCKS": self.blocks,
        }


def _pieces(kind: Kind) -> int:
    return 2 if kind is FLOAT32 else 1


@dataclass(frozen=True)
class Plan:
    """How a convolution is cut, for a number of images.

    Parameters
    ----------
    tile : of a block.
    row : how pixels follow each other.
    band : places that a block sees.
    chunks : of the channels.
    tiles_down, tiles : of the filters, and of all outputs.
    shared_bytes : of a block.
    """

    tile: Tile
    row: Row
    band: int
    chunks: int
    tiles_down: int
    tiles: int
    shared_bytes: int

    @property
    def places(self) -> int:
        """Places that are laid out."""
        return self.tiles // self.tiles_down * self.tile.places + self.row.reach

    @property
    def units(self) -> int:
        """Units of 16 bytes that a pixel has, in each piece."""
        return self.chunks * self.tile.steps * STEP_BYTES // UNIT_BYTES

    def laid_bytes(self, kind: Kind) -> int:
        """Size of the images when they are laid out."""
        return _pieces(kind) * self.units * self.places * UNIT_BYTES

    def numbers(self, geometry: Geometry, count: int) -> tuple[np.int32, ...]:
        """Return the kernel's last arguments for `count` images."""
        found = (
            *(count, geometry.channels, geometry.height, geometry.width),
            *(geometry.filters, geometry.output_height, geometry.output_width),
            *(*geometry.kernel, *geometry.padding, *geometry.dilation),
            *(self.row.pitch, self.row.tall, self.places, self.band),
            *(self.chunks, self.tiles_down, self.tiles),
        )
        return tuple(map(np.int32, found))

    def layout_numbers(self, geometry: Geometry, count: int) -> tuple[np.int32, ...]:
        """Return the last arguments of the kernel that lays images out."""
        found = (
            *(count, geometry.channels, geometry.height, geometry.width),
            *(self.row.pitch, self.row.tall, self.row.front, self.units, self.places),
        )
        return tuple(map(np.int32, found))


@cache
def plan(kind: Kind, geometry: Geometry, count: int, limits: Limits, tile: Tile | None = None) -> Plan | None:
    """Return the plan by which `count` images should take the least time, or that of a tile; None if none fits."""
    if tile is not None:
        return fitting(kind, geometry, count, limits, tile)
    found = min(_plans(kind, geometry, count, limits), key=lambda found: found[0], default=None)
    return None if found is None else found[1]


def clocks(kind: Kind, geometry: Geometry, count: int, limits: Limits) -> float:
    """Estimate the clocks of a multiprocessor for `count` images that are laid out; infinite where there is no plan."""
    return min((found for found, _ in _plans(kind, geometry, count, limits)), default=inf)


def fitting(kind: Kind, geometry: Geometry, count: int, limits: Limits, tile: Tile) -> Plan | None:
    """Return the plan of a tile; None if registers, shared memory or what numbers are counted in do not suffice."""
    made = cut(kind, geometry, count, tile)
    room = min(limits.block_bytes, limits.multiprocessor_bytes // tile.blocks - RESERVED)
    fits = made.shared_bytes <= room and made.band <= PLACES and made.places <= MOST_NUMBERS
    return made if fits and (tile.bands > 1 or made.chunks == 1) and _enough_registers(kind, tile) else None


def cut(kind: Kind, geometry: Geometry, count: int, tile: Tile) -> Plan:
    """Return the plan of a tile."""
    row = row_of(geometry)
    chunks = parts_of(geometry.channels, STEP_BYTES // kind.factor_bytes * tile.steps)
    down = parts_of(geometry.filters, tile.filters)
    tiles = down * parts_of(row.outputs(geometry, count), tile.places)
    band = tile.places + row.reach
    shared = tile.stages * tile.slab_bytes(kind) + tile.bands * tile.band_bytes(kind, band)
    shared += BARRIER_BYTES * 2 * (tile.stages + tile.bands)
    return Plan(tile, row, band, chunks, down, tiles, shared)


def _plans(kind: Kind, geometry: Geometry, count: int, limits: Limits) -> Iterator[tuple[float, Plan]]:
    choices = product(SHAPES[kind], STEPS, STAGES, (1, 2), range(1, MOST_BANDS + 1))
    for shape, steps, stages, blocks, bands in choices:
        made = fitting(kind, geometry, count, limits, Tile(*shape, steps, stages, blocks, bands))
        if made is not None:
            yield _clocks(kind, geometry, made, limits), made


def _enough_registers(kind: Kind, tile: Tile) -> bool:
    """Return whether a thread has registers for its sums, and for those of a slab where they start anew with each."""
    of_quarter = parts_of(tile.blocks * tile.threads // WARP, 4)  # warps; each may have 512 / warps registers a lane
    return _pieces(kind) * tile.columns // 2 + OTHER_REGISTERS <= 512 // of_quarter // 8 * 8


def _clocks(kind: Kind, geometry: Geometry, made: Plan, limits: Limits) -> float:
    tile, taps = made.tile, geometry.kernel[0] * geometry.kernel[1]
    groups = tile.down * tile.across
    products = groups * tile.steps * kind.products
    band_bytes = tile.band_bytes(kind, made.band)
    blocks = parts_of(made.tiles, limits.multiprocessors)
    together = min(blocks, tile.blocks)
    busy = max(
        products * tile.columns / 2 / BUSY,
        products * STEP_BYTES * (ROWS + tile.columns) / SHARED_BYTES,
        (tile.slab_bytes(kind) + band_bytes / taps) / CACHE_BYTES,
    )
    waiting = SLAB + max(0.0, FETCH / (tile.stages - 1) / together - busy)
    if kind is FLOAT32 and groups * together == 1:
        waiting += ALONE
    clocks = blocks * made.chunks * taps * (busy + waiting) + BLOCK
    begun = blocks * made.chunks if together * tile.bands == 1 else 1  # bands that nothing else is done during
    ended = blocks if together == 1 else 1
    return clocks + begun * (band_bytes / CACHE_BYTES + LATENCY) + ended * tile.columns * STORED


# ---- Filters in the kernel's order -------------------------------------------------------------------------------


def arranged(xp: Any, kind: Kind, steps: int, weights: Array) -> Array:
    """Return filters as a kernel reads them, in bytes: 64 filters, chunk, tap, piece, unit, filter, 16 bytes.

    A float32 number has two pieces: TF32's, and the rest rounded to it. TF32 is rounded to. Filters and channels past
    the last are zeros.

    Parameters
    ----------
    xp : NumPy or CuPy, whichever the weights are of.
    steps : of depth, in a chunk.
    weights : (filters, channels, kernel height, kernel width) float32.
    """
    filters, channels, *kernel = weights.shape
    numbers = UNIT_BYTES // kind.factor_bytes
    units = steps * STEP_BYTES // UNIT_BYTES
    taps, chunks, tiles = kernel[0] * kernel[1], parts_of(channels, units * numbers), parts_of(filters, ROWS)
    padded = xp.zeros((tiles * ROWS, chunks * units * numbers, taps), np.float32)
    padded[:filters, :channels] = weights.reshape(filters, channels, taps)
    pieces = [padded.astype(np.float16)] if kind is HALF else split_tf32(xp, padded)[: _pieces(kind)]
    parted = xp.stack([piece.reshape(tiles, ROWS, chunks, units, numbers, taps) for piece in pieces])
    # piece, tile, filter, chunk, unit, number, tap
    ordered = parted.transpose(1, 3, 6, 0, 4, 2, 5)
    found: Array = xp.ascontiguousarray(ordered).view(np.uint8)
    return found
