"""Plans of convolutions by the weights that are left: places of pixels in shared memory, and how a grid shares outputs.

A place is a number of an image's row in shared memory. Rows follow each other, and so do images, with zeros after each,
so that a tap of a window is one distance from all outputs' places (`conv2d/sparse_direct.cu`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sparsenn.backends.cuda.clocks import RESERVED_BYTES, SHARED_L2_BYTES
from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.backends.machine import REGISTERS, WARP, Machine
from sparsenn.backends.sizes import FLOAT_BYTES, parts_of
from sparsenn.formats import Array

MOST_SUMS = 64  # of a thread: more leave too few registers for pixels
MOST_PIXELS = 12  # of a thread: more take registers for the pixels of two weights, and gain little
ADDRESSES = 40  # registers that find pixels and weights
MOST_WARPS = 32  # of a multiprocessor: more leave fewer registers than these
PAIR_BYTES = 16  # of two weights and their distances
MOST_CHUNK = 512  # channels

# Clocks, fitted to 93 times of nine layers of ResNet-50 by eleven tilings each on an H200, which they meet within 8 %.
WEIGHT_CLOCKS = 4  # of shared memory for a pair of weights, which each lane gets: four reads of 128 bytes
LIST_CLOCKS = 8  # of a warp for a filter's weights of a chunk, however few
PAIR_CLOCKS = 95  # of a pair where no other warp is in its way: its weights, then its pixels, then products
CHUNK_CLOCKS = 4500  # between a chunk and the next, or an item and the next


@dataclass(frozen=True)
class Axis:
    """Places down or across an image."""

    shifts: tuple[int, ...]  # of each tap: places from an output's own
    phases: tuple[int, ...]  # of each tap, counted from the first
    first_phase: int
    phase_count: int
    places: int  # of an image, zeros included

    @property
    def before(self) -> int:
        """Places before an output's own that its window reaches."""
        return -min(self.shifts)

    @property
    def span(self) -> int:
        """Places from a window's first to its last."""
        return max(self.shifts) - min(self.shifts)


def _axis(size: int, outputs: int, taps: int, stride: int, padding: int, dilation: int) -> Axis:
    distances = [tap * dilation - padding for tap in range(taps)]
    shifts, phases = zip(*(divmod(distance, stride) for distance in distances), strict=True)
    before, after = -min(shifts), max(shifts)
    # Zeros after a row stand before the next one, too, unless the row's pixels go on where windows reach past it.
    shares = after <= 0 or parts_of(size, stride) <= outputs
    gap = max(before, after) if shares else before + after
    first = min(phases)
    own = tuple(phase - first for phase in phases)
    return Axis(shifts, own, first, max(own) + 1, outputs + max(gap, 0))


@dataclass(frozen=True)
class Places:
    """Places of a convolution's images."""

    geometry: Geometry
    down: Axis
    across: Axis

    @property
    def of_image(self) -> int:
        """Places of an image, of each phase."""
        return self.down.places * self.across.places

    @property
    def phases(self) -> int:
        """Phases of a channel."""
        return self.down.phase_count * self.across.phase_count

    @property
    def reach(self) -> int:
        """Places before an output's own that its window reaches."""
        return self.down.before * self.across.places + self.across.before

    @property
    def span(self) -> int:
        """Places from a window's first to its last."""
        return self.down.span * self.across.places + self.across.span

    @property
    def has_one_tap(self) -> bool:
        """Whether a window is a pixel of each channel."""
        return self.geometry.kernel == (1, 1)

    @property
    def is_gapless(self) -> bool:
        """Whether outputs follow each other as their places do, in whole fours."""
        outputs = self.geometry.output_height, self.geometry.output_width
        return (self.down.places, self.across.places) == outputs and self.of_image % 4 == 0

    @property
    def copies_fours(self) -> bool:
        """Whether pixels follow each other as their places do, in whole fours."""
        geometry = self.geometry
        return self.is_gapless and geometry.is_plain and self.has_one_tap and geometry.padding == (0, 0)

    def distances(self, pitch: int) -> Array:
        """Return, of each tap, its distance in a channel that a block sees, (taps,) int64."""
        rows = [phase * self.across.phase_count * pitch for phase in self.down.phases]
        down = [row + shift * self.across.places for row, shift in zip(rows, self.down.shifts, strict=True)]
        across = [phase * pitch + shift for phase, shift in zip(self.across.phases, self.across.shifts, strict=True)]
        return np.add.outer(np.array(down, np.int64), np.array(across, np.int64)).ravel() + self.reach


@lru_cache(maxsize=1024)
def places_of(geometry: Geometry) -> Places:
    """Return the places of a convolution's images."""
    down, across = (
        _axis(size, outputs, *each)
        for size, outputs, *each in (
            (geometry.height, geometry.output_height, *_of_axis(geometry, 0)),
            (geometry.width, geometry.output_width, *_of_axis(geometry, 1)),
        )
    )
    return Places(geometry, down, across)


def _of_axis(geometry: Geometry, axis: int) -> tuple[int, int, int, int]:
    return geometry.kernel[axis], geometry.stride[axis], geometry.padding[axis], geometry.dilation[axis]


@dataclass(frozen=True)
class Tiling:
    """How a grid shares outputs."""

    pixels: int  # of a thread
    filters: int  # of a warp
    warps: int  # of a block
    shares: int  # of places; other warps of a block have other filters
    chunk: int  # channels that a stage holds
    stages: int

    @property
    def block_filters(self) -> int:
        """Filters of a block."""
        return self.filters * (self.warps // self.shares)

    @property
    def block_places(self) -> int:
        """Places of outputs of a block."""
        return self.pixels * WARP * self.shares

    @property
    def blocks(self) -> int:
        """Blocks of a multiprocessor that the compiler leaves registers for."""
        return max(1, _warps(self.pixels, self.filters) // self.warps)

    def pitch(self, places: Places) -> int:
        """Return the places of a phase that a block sees, whole fours."""
        return parts_of(self.block_places + places.span, 4) * 4

    def pixel_bytes(self, places: Places) -> int:
        """Return the bytes of a stage's pixels, and the zeros after them."""
        return FLOAT_BYTES * (self.chunk * places.phases * self.pitch(places) + self.block_places)

    def shared_bytes(self, places: Places, weight_bytes: int) -> int:
        """Return the bytes of a block's shared memory, with `weight_bytes` of weights in a stage."""
        return self.stages * (self.pixel_bytes(places) + weight_bytes)

    def resident(self, shared_bytes: int, machine: Machine) -> int:
        """Return the blocks that a multiprocessor has at a time at least, each with `shared_bytes` of shared memory."""
        return max(1, min(self.blocks, machine.multiprocessor_bytes // (shared_bytes + RESERVED_BYTES)))


def _warps(pixels: int, filters: int) -> int:
    """Estimate the warps of a multiprocessor that registers suffice for: sums, pixels of two weights, addresses."""
    return min(MOST_WARPS, REGISTERS // WARP // (parts_of(pixels * filters + 2 * pixels + ADDRESSES, 8) * 8))


def smallest_tiling() -> Tiling:
    """Return the tiling that needs least shared memory."""
    return Tiling(1, 1, 8, 1, 1, 1)


class _Choices(NamedTuple):
    """Numbers of all tilings, an array each."""

    pixels: Array
    filters: Array
    warps: Array
    shares: Array
    chunk: Array
    stages: Array
    blocks: Array  # that registers suffice for


@lru_cache(maxsize=1)
def _choices() -> _Choices:
    rows_of_choices = [
        (pixels, filters, warps, shares, chunk, stages, _warps(pixels, filters) // warps)
        for pixels in range(1, MOST_PIXELS + 1)
        for filters in (1, 2, 4, 8, 16)
        if pixels * filters <= MOST_SUMS
        for warps in (8, 16)
        for shares in (1, 2)
        for chunk in (4, 8, 16, 32, 64, 128, 256, MOST_CHUNK)
        for stages in (1, 2)
    ]
    return _Choices(*np.array(rows_of_choices, np.int64).T)


def tilings(geometry: Geometry, nonzeros: int, count: int, machine: Machine) -> Iterator[Tiling]:
    """Yield tilings for `count` images that should fit a machine, the one of the least estimated time first.

    `nonzeros` are the layer's weights that are left, spread evenly for all that is known here.
    """
    choices = _choices()
    places = places_of(geometry)
    chunk = np.minimum(choices.chunk, geometry.channels)
    chunks = -(-geometry.channels // chunk)
    block_places = choices.pixels * WARP * choices.shares
    pitch = (block_places + places.span + 3) // 4 * 4
    of_warp = choices.filters * chunks * (nonzeros / geometry.filters / chunks / 2 + 0.5)  # pairs
    block_filters = choices.filters * (choices.warps // choices.shares)
    weight_bytes = PAIR_BYTES * of_warp * (choices.warps // choices.shares)
    numbers = chunk * places.phases * pitch
    shared = choices.stages * (FLOAT_BYTES * (numbers + block_places) + weight_bytes / chunks)
    resident = np.minimum(machine.multiprocessor_bytes // (shared + RESERVED_BYTES), choices.blocks)
    sets = -(-geometry.filters // block_filters)
    tiles = -(-count * places.of_image // block_places)
    rounds = -(-sets * tiles // machine.multiprocessors)
    live = np.maximum(1, np.minimum(resident, rounds))
    blocks = np.minimum(sets * tiles, live * machine.multiprocessors)
    reads = choices.warps * (of_warp * (2 * choices.pixels + WEIGHT_CLOCKS) + LIST_CLOCKS * choices.filters * chunks)
    stay = (choices.stages % chunks == 0) & (blocks % sets == 0)  # weights in their stages
    again = np.where(stay, 0, weight_bytes)
    brought = (FLOAT_BYTES * chunks * numbers + again) / SHARED_L2_BYTES
    stored = FLOAT_BYTES * block_places * block_filters / SHARED_L2_BYTES
    # What comes and goes takes shared memory's time from warps that read, whatever a stage or another block holds.
    waiting = CHUNK_CLOCKS * chunks
    busy = rounds * (reads + brought + stored + waiting / live)
    late = -(-rounds // live) * (PAIR_CLOCKS * of_warp + waiting)
    clocks = np.maximum(busy, late) + np.where(choices.stages > 1, brought / chunks, 0) + stored
    useful = (resident >= 1) & (shared <= machine.block_bytes)
    least = smallest_tiling()
    seen = {least}
    for number in np.argsort(np.where(useful, clocks, np.inf), kind="stable"):
        if not useful[number]:
            break
        tiling = Tiling(*(int(each[number]) for each in (*choices[:4], chunk, choices.stages)))
        if tiling not in seen:
            seen.add(tiling)
            yield tiling
    yield least
