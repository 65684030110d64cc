"""How a convolution is cut for the kernels in which whole warpgroups multiply.

The kernel is `kernels/conv2d/warpgroup.cuh`; what its numbers mean is said there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import gcd, inf

import numpy as np

from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, Geometry
from sparsenn.backends.cuda.runtime.precision import split_tf32
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, HALF, RESERVED, TF32, Kind
from sparsenn.backends.machine import WARP, Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array

__all__ = ["SHAPES", "Plan", "Row", "Tile", "arranged", "clocks", "cut", "divisor", "fitting", "plan", "row_of"]

ROWS = 64
"""Filters that an instruction multiplies."""

UNIT_BYTES = 16

STEP_BYTES = 32
"""Of depth, that an instruction multiplies."""

MOST_BANDS = 2
"""Chunks whose pixels may lie in shared memory at a time."""

STAGES = (6, 5, 4, 3, 2)
"""Slabs of filters that may lie in shared memory: as many as there is room for."""

_NARROW = ((1, 2, 128), (2, 1, 128), (2, 1, 112), (2, 1, 96), (1, 2, 64), (2, 1, 64), (1, 1, 32))
_WIDE = ((1, 4, 128), (1, 3, 128), (2, 2, 128))

SHAPES: dict[Kind, tuple[tuple[int, int, int], ...]] = {
    HALF: (*_NARROW, *_WIDE),
    TF32: (*_NARROW, *_WIDE),
    FLOAT32: (*_NARROW, (2, 2, 64)),
}
"""Tiles to choose from: warpgroups down and across, and places of each."""

STEPS = (4, 2, 1)
"""Of depth, that a chunk may have."""

BARRIER_BYTES = 8

PLACES = (1 << 14) - 1
"""That a band may have: more cannot be told to the instructions."""

LONGEST_RUN = 4
"""Outputs that are stored at once."""

RUNS_COST = 1.07
"""Places for one, at most, that a pitch may take of which outputs can be stored several at once."""

OTHER_REGISTERS = 32
"""Of a thread, besides its sums."""

# Bytes per clock of a multiprocessor.
SHARED_BYTES = 128  # from its shared memory
COPIED_BYTES = 39.0  # from the level 2 cache, which all share

SLAB = 90.0  # clocks of a slab's barriers
FETCH = 95.0  # clocks from a request for a copy to its beginning
CROWD = 2.1  # copies of the same size that are waited for, when one is needed sooner than that

# Clocks of a warpgroup that is alone.
ADDED = 1.9  # of adding a place's sums to others
STORED = 20.5  # of storing a place's outputs

# With these numbers the chosen tiles for the shapes of `bench/record_conv2d.py` take an H200 at most a tenth longer
# than the fastest of all tiles that were tried.
BLOCK = 7600.0  # clocks of a launch
LATENCY = 790.0  # clocks from a request for pixels to the first ones


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
    taps : of a slab: 1, or those of a row.
    """

    down: int
    across: int
    columns: int
    steps: int
    stages: int
    blocks: int
    bands: int = MOST_BANDS
    taps: int = 1

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
        return STEP_BYTES * self.steps * self.taps * self.filters * _pieces(kind)

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
            "TAPS": self.taps,
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

    def numbers(self, geometry: Geometry, count: int) -> tuple[np.int32 | np.uint32, ...]:
        """Return the kernel's last arguments for `count` images."""
        found = (
            *(count, geometry.channels, geometry.height, geometry.width),
            *(geometry.filters, geometry.output_height, geometry.output_width),
            *(*geometry.kernel, *geometry.padding, *geometry.dilation),
            *(self.row.pitch, self.row.tall, self.places, self.band),
            *(self.chunks, self.tiles_down, self.tiles),
        )
        return *map(np.int32, found), *divisor(self.row.pitch), *divisor(self.row.tall)

    def layout_numbers(self, geometry: Geometry, count: int) -> tuple[np.int32, ...]:
        """Return the last arguments of the kernel that lays images out."""
        found = (
            *(count, geometry.channels, geometry.height, geometry.width),
            *(self.row.pitch, self.row.tall, self.row.front, self.units, self.places),
        )
        return tuple(map(np.int32, found))


def divisor(number: int) -> tuple[np.uint32, np.int32]:
    """Return how to divide by a number: a factor, and by how many bits more than 31 a product with it is shifted.

    2^bits is not below the number, and the factor is the least integer that is not below 2^(31 + bits) / number. So the
    quotient of what is below 2^31 comes out too large by less than 1 / number (Granlund and Montgomery, "Division by
    invariant integers using multiplication", 1994).
    """
    bits = (number - 1).bit_length()
    return np.uint32(-(-(1 << 31 + bits) // number)), np.int32(bits)


@cache
def plan(kind: Kind, geometry: Geometry, count: int, machine: Machine) -> Plan | None:
    """Return the plan by which `count` images should take the least time; None if none fits."""
    found = min(_plans(kind, geometry, count, machine), key=lambda found: found[0], default=None)
    return None if found is None else found[1]


def clocks(kind: Kind, geometry: Geometry, count: int, machine: Machine) -> float:
    """Estimate the clocks of a multiprocessor for `count` images that are laid out; infinite where there is no plan."""
    return min((found for found, _ in _plans(kind, geometry, count, machine)), default=inf)


def fitting(kind: Kind, geometry: Geometry, count: int, machine: Machine, tile: Tile) -> Plan | None:
    """Return the plan of a tile; None if registers, shared memory or what numbers are counted in do not suffice."""
    made = cut(kind, geometry, count, tile)
    room = min(machine.block_bytes, machine.multiprocessor_bytes // tile.blocks - RESERVED)
    fits = made.shared_bytes <= room and made.band <= PLACES and made.places <= MOST_NUMBERS
    fits = fits and (tile.bands > 1 or made.chunks == 1) and tile.taps in (1, geometry.kernel[1])
    return made if fits and _enough_registers(kind, tile) else None


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


def _plans(kind: Kind, geometry: Geometry, count: int, machine: Machine) -> Iterator[tuple[float, Plan]]:
    slabs = sorted({1, geometry.kernel[1]})
    choices = product(SHAPES[kind], STEPS, STAGES, (1, 2), range(1, MOST_BANDS + 1), slabs)
    for shape, *numbers in choices:
        made = fitting(kind, geometry, count, machine, Tile(*shape, *numbers))
        if made is not None:
            yield _clocks(kind, geometry, made, machine), made


def _enough_registers(kind: Kind, tile: Tile) -> bool:
    """Return whether a thread has registers for its sums, and for those of a slab where they start anew with each."""
    of_quarter = parts_of(tile.blocks * tile.threads // WARP, 4)  # warps; each may have 512 / warps registers a lane
    return _pieces(kind) * tile.columns // 2 + OTHER_REGISTERS <= 512 // of_quarter // 8 * 8


def _clocks(kind: Kind, geometry: Geometry, made: Plan, machine: Machine) -> float:
    tile = made.tile
    slabs = geometry.kernel[0] * geometry.kernel[1] // tile.taps  # of a chunk
    rounds = parts_of(made.tiles, machine.multiprocessors)
    together = min(rounds, tile.blocks)
    groups = tile.down * tile.across * together  # of a multiprocessor
    products = tile.down * tile.across * tile.steps * tile.taps * kind.products
    copied = (tile.slab_bytes(kind) + tile.band_bytes(kind, made.band) / slabs) / COPIED_BYTES
    read = products * STEP_BYTES * (ROWS + tile.columns) / SHARED_BYTES
    busy = max(products * tile.columns / 2, read, copied)
    late = max(0.0, FETCH + CROWD * copied - (tile.stages - 1) * busy * together) / together
    slab = busy + SLAB / together + late
    if kind is FLOAT32:
        slab += ADDED * tile.taps * tile.columns / groups
    first = tile.band_bytes(kind, made.band) / COPIED_BYTES + LATENCY  # of pixels that nothing else is done during
    waits = rounds / together if tile.bands == 1 else 1.0
    stored = STORED * tile.columns * (rounds / groups + 0.5)
    return rounds * made.chunks * slabs * slab + stored + waits * first + BLOCK


# ---- Filters in the kernel's order -------------------------------------------------------------------------------


def arranged(kind: Kind, steps: int, weights: Array) -> Array:
    """Return filters as a kernel reads them, in bytes: 64 filters, chunk, tap, piece, unit, filter, 16 bytes.

    A float32 number has two pieces: TF32's, and the rest rounded to it. TF32 is rounded to. Filters and channels past
    the last are zeros.

    Parameters
    ----------
    steps : of depth, in a chunk.
    weights : (filters, channels, kernel height, kernel width) float32.
    """
    filters, channels, *kernel = weights.shape
    numbers = UNIT_BYTES // kind.factor_bytes
    units = steps * STEP_BYTES // UNIT_BYTES
    taps, chunks, tiles = kernel[0] * kernel[1], parts_of(channels, units * numbers), parts_of(filters, ROWS)
    padded = np.zeros((tiles * ROWS, chunks * units * numbers, taps), np.float32)
    padded[:filters, :channels] = weights.reshape(filters, channels, taps)
    pieces = [padded.astype(np.float16)] if kind is HALF else split_tf32(padded)[: _pieces(kind)]
    parted = np.stack([piece.reshape(tiles, ROWS, chunks, units, numbers, taps) for piece in pieces])
    # piece, tile, filter, chunk, unit, number, tap
    ordered = parted.transpose(1, 3, 6, 0, 4, 2, 5)
    found: Array = np.ascontiguousarray(ordered).view(np.uint8)
    return found
