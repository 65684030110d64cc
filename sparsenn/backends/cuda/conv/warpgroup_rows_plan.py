"""How a convolution is cut for the kernel to which rows of images go straight, past filters that stay.

The kernel is `kernels/conv2d/warpgroup_rows_half.cu`; what its numbers mean is said there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import gcd, inf

import numpy as np

from sparsenn.backends.cuda.conv.estimates import bytes_a_clock
from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.backends.cuda.conv.warpgroup_plan import (
    BARRIER_BYTES,
    LONGEST_RUN,
    ROWS,
    STEP_BYTES,
    UNIT_BYTES,
    divisor,
)
from sparsenn.backends.machine import WARP, Machine
from sparsenn.backends.sizes import parts_of

__all__ = ["COLUMNS", "GROUPS", "MOST_LINES", "SLOTS", "Plan", "Tile", "clocks", "cut", "fitting", "plan"]

STEP_CHANNELS = 16  # that an instruction multiplies
UNIT_CHANNELS = 8  # of a pixel that lie side by side

COLUMNS = (256, 224, 192, 160, 128, 112, 96, 64)
"""Outputs in line to choose from."""

GROUPS = (2, 1)
"""Warpgroups that multiply."""

SLOTS = 8
"""Lines that may lie in shared memory at most."""

OCTET = 8  # pixels that a thread brings at a time
EIGHTHS = 8  # slices of a line, of each of which a matrix has a pixel

MOST_LINES = 1 << 30
"""Of a launch: they are counted in 32 bits."""

OTHER_REGISTERS = 48
"""Of a thread, besides its sums."""

REGISTERS = 512
"""Of each lane of a quarter of a multiprocessor, which its warps share."""

# Bytes per clock of a multiprocessor.
SHARED_BYTES = 109.0  # from its shared memory while it is written to
MEMORY_BYTES = 13.0  # from and to an H200's memory

# Clocks, fitted to times of 3 x 3 and 5 x 5 filters on an H200.
LINE = 770.0  # of a line besides its products
PLACE = 4.0  # of each of its outputs
STORED = 5.0  # of storing an output, with nothing else running
BLOCK = 6000.0  # of a launch


@dataclass(frozen=True)
class Tile:
    """How a block works; a kernel is compiled for each.

    Parameters
    ----------
    columns : outputs in line, of a line.
    groups : warpgroups that multiply, each for a line.
    slots : lines of pixels in shared memory.
    """

    columns: int
    groups: int
    slots: int

    @property
    def threads(self) -> int:
        """Threads of a block: those that multiply, and a warpgroup that brings lines."""
        return 4 * WARP * (self.groups + 1)

    @property
    def registers(self) -> int:
        """Registers that a thread can have."""
        return REGISTERS // parts_of(self.threads // WARP, 4) // 8 * 8


@dataclass(frozen=True)
class Plan:
    """How a convolution is cut, for a number of images.

    Parameters
    ----------
    tile : of a block.
    steps : of 16 channels.
    octets : eights of pixels, from a multiple of eight on, that a line reaches into.
    tall, lines : lines of an image, and of a segment of columns.
    all_lines : of outputs that are wanted.
    tiles_down : 64 filters each.
    shared_bytes : of a block.
    """

    tile: Tile
    steps: int
    octets: int
    tall: int
    lines: int
    all_lines: int
    tiles_down: int
    shared_bytes: int

    def blocks(self, machine: Machine) -> int:
        """Return how many blocks share the lines: about one a multiprocessor."""
        spans = max(1, machine.multiprocessors // self.tiles_down)
        return self.tiles_down * min(spans, self.all_lines)

    def defines(self, geometry: Geometry, aligned: bool, half_rows: bool) -> dict[str, int | str]:
        """Return what the kernel is compiled with.

        Parameters
        ----------
        aligned : whether the images begin at a multiple of 16 bytes.
        half_rows : whether they are of float16.
        """
        return {
            "COLUMNS": self.tile.columns,
            "WARPGROUPS": self.tile.groups,
            "SLOTS": self.tile.slots,
            "STEPS": self.steps,
            "TAPS": geometry.kernel[1],
            "APART": geometry.dilation[1],
            "OCTETS": self.octets,
            "LOADED": OCTET if aligned and geometry.width % OCTET == 0 else 1,
            "RUN": gcd(OCTET if half_rows else LONGEST_RUN, geometry.output_width, self.tile.columns // 4),
            "INPUT": "half_bits" if half_rows else "float",
        }

    def numbers(self, geometry: Geometry, count: int) -> tuple[np.int32 | np.uint32, ...]:
        """Return the kernel's last arguments for `count` images."""
        found = (
            *(count, geometry.channels, geometry.height, geometry.width),
            *(geometry.filters, geometry.output_height, geometry.output_width, geometry.kernel[0]),
            *(*geometry.padding, geometry.dilation[0]),
            *(self.tall, self.lines, self.all_lines, self.tiles_down),
        )
        return *map(np.int32, found), *divisor(self.lines), *divisor(self.tall)


@cache
def plan(geometry: Geometry, count: int, machine: Machine) -> Plan | None:
    """Return the plan by which `count` images should take the least time; None if none fits."""
    found = min(_plans(geometry, count, machine), key=lambda found: found[0], default=None)
    return None if found is None else found[1]


def clocks(geometry: Geometry, count: int, machine: Machine) -> float:
    """Estimate the clocks of a multiprocessor for `count` images of float32; infinite where there is no plan."""
    pixels, outputs = geometry.height * geometry.width, geometry.output_height * geometry.output_width
    numbers = count * (geometry.channels * pixels + geometry.filters * outputs)
    moved = 4 * numbers / (bytes_a_clock(machine, MEMORY_BYTES) * machine.multiprocessors)
    return BLOCK + max(moved, min((found for found, _ in _plans(geometry, count, machine)), default=inf))


def fitting(geometry: Geometry, count: int, machine: Machine, tile: Tile) -> Plan | None:
    """Return the plan of a tile; None if registers, shared memory or what numbers are counted in do not suffice."""
    made = cut(geometry, count, tile)
    fits = tile.columns // 2 + OTHER_REGISTERS <= tile.registers
    down, across = _reach(geometry)
    fits = fits and across <= tile.columns // EIGHTHS and tile.slots >= down + tile.groups and made.lines <= MOST_LINES
    fits = fits and made.all_lines <= MOST_LINES and made.shared_bytes <= machine.block_bytes
    return made if fits else None


def cut(geometry: Geometry, count: int, tile: Tile) -> Plan:
    """Return the plan of a tile."""
    down, across = _reach(geometry)
    steps = parts_of(geometry.channels, STEP_CHANNELS)
    octets = parts_of(-geometry.padding[1] % OCTET + tile.columns + across, OCTET)
    tall = max(geometry.height + geometry.padding[0], geometry.output_height)
    lines = count * tall + down
    segments = parts_of(geometry.output_width, tile.columns)
    wanted = (segments - 1) * lines + (count - 1) * tall + geometry.output_height
    filters = geometry.kernel[0] * geometry.kernel[1] * steps * STEP_BYTES * ROWS
    shared = filters + tile.slots * _line_bytes(steps, tile.columns, across) + BARRIER_BYTES * (2 * tile.slots + 1)
    return Plan(tile, steps, octets, tall, lines, wanted, parts_of(geometry.filters, ROWS), shared)


def _reach(geometry: Geometry) -> tuple[int, int]:
    """Return how far the last tap sees from the first, down and across."""
    down, across = ((size - 1) * apart for size, apart in zip(geometry.kernel, geometry.dilation, strict=True))
    return down, across


def _line_bytes(steps: int, columns: int, across: int) -> int:
    return steps * (STEP_CHANNELS // UNIT_CHANNELS) * (columns // EIGHTHS + across) * EIGHTHS * UNIT_BYTES


def _plans(geometry: Geometry, count: int, machine: Machine) -> Iterator[tuple[float, Plan]]:
    least = _reach(geometry)[0] + 1
    for columns, groups, slots in product(COLUMNS, GROUPS, range(max(SLOTS, least + 1), least - 1, -1)):
        made = fitting(geometry, count, machine, Tile(columns, groups, slots))
        if made is not None:
            yield _clocks(geometry, made, machine), made


def _clocks(geometry: Geometry, made: Plan, machine: Machine) -> float:
    columns = made.tile.columns
    products = geometry.kernel[0] * geometry.kernel[1] * made.steps
    multiplied = products * max(columns / 2, STEP_BYTES * (ROWS + columns) / SHARED_BYTES)
    alone = STORED if made.tile.groups == 1 else 0.0
    line = LINE + multiplied + (PLACE + alone) * columns
    spans = made.blocks(machine) // made.tiles_down
    rounds = parts_of(made.tiles_down, machine.multiprocessors) * parts_of(made.all_lines, spans)
    return (rounds + _reach(geometry)[0]) * line
