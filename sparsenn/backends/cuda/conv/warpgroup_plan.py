"""How a convolution is cut for the kernels in which whole warpgroups multiply.

The kernel is `kernels/conv2d/warpgroup.cu`; what its numbers mean is said there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from math import gcd

import numpy as np

from sparsenn.backends.cuda.clocks import OUTPUT_CLOCKS, READ_BYTES, RESERVED_BYTES, SHARED_L2_BYTES
from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, Geometry
from sparsenn.backends.cuda.runtime.precision import split_tf32
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, HALF, TF32, Kind
from sparsenn.backends.machine import WARP, Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array

ROWS = 64  # filters that an instruction multiplies

UNIT_BYTES = 16

STEP_BYTES = 32  # of depth, that an instruction multiplies
BANDS = 2  # chunks whose pixels lie in shared memory: one comes while the other is multiplied
STAGES = (6, 5, 4, 3, 2)  # slabs of filters that may lie in shared memory: as many as there is room for
ENOUGH_STAGES = 3  # slabs, of which two are on their way while one is multiplied

_WIDE = ((1, 4, 128), (2, 2, 128), (1, 2, 128), (2, 1, 96), (1, 2, 64), (1, 1, 32))

SHAPES: dict[Kind, tuple[tuple[int, int, int], ...]] = {
    HALF: _WIDE,
    TF32: _WIDE,
    FLOAT32: ((1, 2, 128), (2, 2, 64), (2, 1, 96), (1, 2, 64), (1, 1, 32)),
}
"""Tiles to choose from: warpgroups down and across, and places of each."""

STEPS = (4, 2, 1)  # of depth, that a chunk may have

BARRIER_BYTES = 8

PLACES = (1 << 14) - 1  # that a band may have: the instructions encode no more
LONGEST_RUN = 4  # outputs that are stored at once
RUNS_COST = 1.07  # places for one, at most, that a pitch may take of which outputs can be stored several at once
OTHER_REGISTERS = 32  # of a thread, besides its sums


@dataclass(frozen=True)
class Row:
    """How pixels, and outputs, follow each other in one row of places."""

    pitch: int  # places from one row of an image to the next
    tall: int  # rows from one image to the next
    front: int  # place of the first pixel; that of the first output is 0
    reach: int  # how far the last tap sees from the first

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
    """The sums of a block; a kernel is compiled for each shape."""

    down: int  # warpgroups one below the other
    across: int  # warpgroups beside each other
    columns: int  # places of a warpgroup
    steps: int  # of depth, in a chunk
    stages: int  # slabs of filters in shared memory
    taps: int = 1  # of a slab: 1, or those of a row

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
        """Return what `kernels/conv2d/warpgroup.cu` is compiled with."""
        return {
            "KIND": kind.define,
            "WARPGROUPS_M": self.down,
            "WARPGROUPS_N": self.across,
            "COLUMNS": self.columns,
            "STEPS": self.steps,
            "STAGES": self.stages,
            "TAPS": self.taps,
        }


def _pieces(kind: Kind) -> int:
    return 2 if kind is FLOAT32 else 1


@dataclass(frozen=True)
class Plan:
    """How a convolution is cut, for a number of images."""

    tile: Tile  # of a block
    row: Row  # how pixels follow each other
    band: int  # places that a block sees
    chunks: int  # of the channels
    tiles_down: int  # of the filters
    tiles: int  # of all outputs
    shared_bytes: int  # of a block

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
    """Return the plan of `count` images; None if none fits.

    Each shape of tile has one; of those, it is the one whose rounds of tiles take the fewest clocks.
    """
    found = (_plan_of(kind, geometry, count, machine, shape) for shape in SHAPES[kind])
    plans = [made for made in found if made is not None]
    return min(plans, key=lambda made: _clocks(kind, geometry, made, machine), default=None)


def _plan_of(kind: Kind, geometry: Geometry, count: int, machine: Machine, shape: tuple[int, int, int]) -> Plan | None:
    """Return the plan of a shape of tile.

    Slabs should come ahead of time; chunks pad the channels little, then be deep; slabs have a row's taps.
    """
    slabs = sorted({1, geometry.kernel[1]})
    tiles = (Tile(*shape, *numbers) for numbers in product(STEPS, STAGES, slabs))
    found = (fitting(kind, geometry, count, machine, tile) for tile in tiles)

    def preference(made: Plan) -> tuple[int, ...]:
        tile = made.tile
        return min(tile.stages, ENOUGH_STAGES), -made.chunks * tile.steps, tile.steps, tile.taps, tile.stages

    return max((made for made in found if made is not None), key=preference, default=None)


def fitting(kind: Kind, geometry: Geometry, count: int, machine: Machine, tile: Tile) -> Plan | None:
    """Return the plan of a tile; None if registers, shared memory or what numbers are counted in do not suffice."""
    made = cut(kind, geometry, count, tile)
    room = min(machine.block_bytes, machine.multiprocessor_bytes - RESERVED_BYTES)
    fits = made.shared_bytes <= room and made.band <= PLACES and made.places <= MOST_NUMBERS
    return made if fits and _enough_registers(kind, tile) else None


def cut(kind: Kind, geometry: Geometry, count: int, tile: Tile) -> Plan:
    """Return the plan of a tile."""
    row = row_of(geometry)
    chunks = parts_of(geometry.channels, STEP_BYTES // kind.factor_bytes * tile.steps)
    down = parts_of(geometry.filters, tile.filters)
    tiles = down * parts_of(row.outputs(geometry, count), tile.places)
    band = tile.places + row.reach
    shared = tile.stages * tile.slab_bytes(kind) + BANDS * tile.band_bytes(kind, band)
    shared += BARRIER_BYTES * 2 * (tile.stages + BANDS)
    return Plan(tile, row, band, chunks, down, tiles, shared)


def _enough_registers(kind: Kind, tile: Tile) -> bool:
    """Return whether a thread has registers for its sums, and for those of a slab where they start anew with each."""
    of_quarter = parts_of(tile.threads // WARP, 4)  # warps; each may have 512 / warps registers a lane
    return _pieces(kind) * tile.columns // 2 + OTHER_REGISTERS <= 512 // of_quarter // 8 * 8


def _clocks(kind: Kind, geometry: Geometry, made: Plan, machine: Machine) -> float:
    """Return about the clocks of a multiprocessor: of products or of copies, whichever take longer, and of stores."""
    tile = made.tile
    slabs = geometry.kernel[0] * geometry.kernel[1] // tile.taps  # of a chunk
    products = tile.down * tile.across * tile.steps * tile.taps * kind.products
    multiplied = products * max(tile.columns / 2, 32 * (ROWS + tile.columns) / READ_BYTES)
    copied = (tile.slab_bytes(kind) + tile.band_bytes(kind, made.band) / slabs) / SHARED_L2_BYTES
    rounds = parts_of(made.tiles, machine.multiprocessors)
    return rounds * (made.chunks * slabs * max(multiplied, copied) + OUTPUT_CLOCKS * tile.columns)


# ---- Filters in the kernel's order -------------------------------------------------------------------------------


def arranged(kind: Kind, steps: int, weights: Array) -> Array:
    """Return filters as a kernel reads them, in bytes: 64 filters, chunk, tap, piece, unit, filter, 16 bytes.

    A float32 number has two pieces: TF32's, and the rest rounded to it. TF32 is rounded to. Filters and channels past
    the last are zeros."""
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
    return np.ascontiguousarray(ordered).view(np.uint8)
