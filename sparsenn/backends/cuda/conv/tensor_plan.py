"""How a convolution is cut for the tensor-core kernels of few channels, which they can run, and the order of weights.

A product of `kernels/conv2d/tensor.cuh` takes 16 items, which are ACROSS neighbouring output pixels each, and 8
columns, each of which is a filter and one of those pixels. Filters are laid out as a band: the weights of pixel p lie p
numbers further to the right in the row of the image that all pixels of the item share. Which of them each lane of a
warp holds follows from the instructions m16n8k8 and m16n8k16 (PTX ISA, "Matrix Fragments for mma").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from sparsenn.backends.cuda.conv.geometry import Geometry, smallest
from sparsenn.backends.cuda.conv.kernel import sizes, why_not_plain
from sparsenn.backends.cuda.runtime.precision import SPLIT_PRODUCTS, split_tf32
from sparsenn.backends.machine import WARP, Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array


@dataclass(frozen=True)
class Kind:
    """The differences between the kernels."""

    source: str  # the kernel
    quad: int  # numbers of an image's row that the four lanes of an item read at once: 1 or 2 each
    words: int  # registers of a lane for a step's weights of 8 columns
    passes: int  # products for each step
    number: int  # bytes of a number of an image

    @property
    def multiplied(self) -> str:
        """The precision that tensor cores multiply in."""
        return "float16" if self.quad == 8 else "tf32"


FLOAT32 = Kind("conv2d/tensor_float32.cu", quad=4, words=4, passes=SPLIT_PRODUCTS, number=4)
TF32 = Kind("conv2d/tensor_tf32.cu", quad=4, words=2, passes=1, number=4)
HALF = Kind("conv2d/tensor_half.cu", quad=8, words=2, passes=1, number=4)
HALF_ROWS = Kind("conv2d/tensor_half.cu", quad=8, words=2, passes=1, number=2)
"""HALF with images and outputs of half precision."""


@dataclass(frozen=True)
class Layout:
    """How weights are cut for a kernel."""

    across: int  # output pixels of an item beside each other, a power of 2 up to 8
    at_once: int  # channels that are multiplied one after the other; divides the channels
    panel: int  # tiles of 8 columns that a warp sums at a time

    def quads(self, kind: Kind, geometry: Geometry) -> int:
        """Return the quads of a row of the image that an item meets."""
        return -(-(geometry.kernel[1] + self.across - 1) // kind.quad)

    def steps(self, kind: Kind, geometry: Geometry) -> int:
        """Return the steps of a turn, each of two quads."""
        return -(-self.at_once * geometry.kernel[0] * self.quads(kind, geometry) // 2)

    def turns(self, geometry: Geometry) -> int:
        """Return how often `at_once` channels are taken."""
        return geometry.channels // self.at_once

    def panels(self, geometry: Geometry) -> int:
        """Return how often `panel` tiles of columns are taken."""
        return -(-columns_of(geometry.filters, self.across) // (8 * self.panel))

    def weight_bytes(self, kind: Kind, geometry: Geometry) -> int:
        """Return the size of `weight_image`."""
        tiles = self.panels(geometry) * self.turns(geometry) * self.steps(kind, geometry) * self.panel
        return 4 * kind.words * WARP * tiles


def columns_of(filters: int, across: int) -> int:
    """Return the columns of a layer, padded to whole tiles."""
    return -(-filters * across // 8) * 8


def places(kind: Kind, geometry: Geometry, layout: Layout) -> Array:
    """Return which weight each lane holds, in the order of the kernels' steps.

    Lane 4 g + t has weights of column g of a tile, and of quad q those that belong to number 4 q + t of the row that an
    item meets. If numbers are read in pairs (across > 1), it is 8 (q // 2) + 2 t + q % 2 instead, for all quads but an
    odd last one. In half precision it is 8 q + 2 t and the one after it.

    Returns (panels, turns, steps, panel, 32, 2 quads, numbers of a lane in a quad) int64: places in the row-major
    weights, -1 where a weight is zero because no pixel of the item, filter or row of the filters is there.
    """
    kernel_y, kernel_x = geometry.kernel
    quads = layout.quads(kind, geometry)
    quad = np.arange(2 * layout.steps(kind, geometry)).reshape(-1, 1, 1, 2, 1)  # step, tile, lane, quad, number
    row, quad_of_row = quad // quads, quad % quads
    channel = np.arange(layout.turns(geometry)).reshape(-1, 1, 1, 1, 1, 1) * layout.at_once + row // kernel_y
    g, t = np.divmod(np.arange(WARP).reshape(-1, 1, 1), 4)
    if kind.quad == 8:
        x = 8 * quad_of_row + 2 * t + np.arange(2)
    else:
        pairs = quads // 2 if layout.across > 1 else 0
        x = np.where(quad_of_row < 2 * pairs, 8 * (quad_of_row // 2) + 2 * t + quad_of_row % 2, 4 * quad_of_row + t)
    tiles = np.arange(layout.panels(geometry) * layout.panel).reshape(-1, 1, 1, layout.panel, 1, 1, 1)
    filters, pixel = np.divmod(8 * tiles + g, layout.across)
    tap = x - pixel
    place = ((filters * geometry.channels + channel) * kernel_y + row % kernel_y) * kernel_x + tap
    there = (filters < geometry.filters) & (row < layout.at_once * kernel_y) & (tap >= 0) & (tap < kernel_x)
    return np.where(there, place, -1)


def weight_image(kind: Kind, geometry: Geometry, layout: Layout, weights: Array) -> Array:
    """Return weights in the order in which a kernel reads them, as bytes."""
    found = places(kind, geometry, layout)
    held = np.where(found < 0, np.float32(0), weights.ravel()[np.maximum(found, 0)])
    if kind.quad == 8:
        image = held.astype(np.float16)
    else:
        high, low = split_tf32(held)
        image = np.concatenate((high, low), axis=5) if kind.passes > 1 else high
    return np.ascontiguousarray(image).reshape(-1).view(np.uint8)


LEAST_DEPTH = 32  # products of a sum from where on tensor_float32 is no less precise than plain multiply-adds
TILE = 16  # items of a product

MOST_STAGES = 4
MOST_DOWN = 8

MOST_SUMS = 64  # registers of a lane for sums

MOST_PRODUCTS = 400, 1200
"""Products of one turn, which are unrolled, if weights are in shared memory, and if they are in registers."""

WARPS_FOR_REGISTERS = ((124, 16), (164, 12), (248, 8))
"""Registers that a lane may have, and the warps of a block that then have room."""

# Of blocks with the most registers for a lane; ptxas spills some of TF32 with held weights and more rows than these.
FEWEST_WARPS = 8
MOST_DOWN_OF_FEWEST = 4

MANY = 1 << 14  # images from where on more of them change nothing
BARRIER_BYTES = 128  # as in the kernel


# ---- How a convolution is cut ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How a kernel is compiled and launched."""

    layout: Layout  # how weights are cut
    down: int  # output rows of an item
    held: bool  # weights are in registers, not in shared memory
    band: int  # output rows of an image that a block takes at a time
    pitch: int  # numbers from one row of an image to the next in shared memory
    stages: int  # bands in shared memory
    slot_bytes: int  # of a band
    warps: int  # of a block
    shared_bytes: int  # of a block

    def bands(self, geometry: Geometry) -> int:
        """Return into how many bands an image's outputs are cut."""
        return parts_of(geometry.output_height, self.band)

    def items(self, geometry: Geometry) -> int:
        """Return the items of a band."""
        return parts_of(self.band, self.down) * parts_of(geometry.output_width, self.layout.across)

    def defines(self, geometry: Geometry) -> dict[str, int]:
        """Return what `kernels/conv2d/tensor.cuh` is compiled with, but for COPY, ACTIVATION and INPUT."""
        return {
            **sizes(geometry),
            "ACROSS": self.layout.across,
            "DOWN": self.down,
            "AT_ONCE": self.layout.at_once,
            "PANEL": self.layout.panel,
            "HELD": int(self.held),
            "BAND": self.band,
            "PITCH": self.pitch,
            "STAGES": self.stages,
            "SLOT": self.slot_bytes,
            "WARPS": self.warps,
        }


def fits_float32(machine: Machine, geometry: Geometry) -> str | None:
    """Return why a machine cannot run a convolution by tensor_float32; None if it can.

    What is lost of each product does not add up as the roundings of many sums do. A sum of few products would be less
    precise than plain multiply-adds make it.
    """
    if geometry.depth < LEAST_DEPTH:
        return (
            f"an output is a sum of {geometry.depth} products; from {LEAST_DEPTH} on, two TF32 numbers for one are as "
            "precise as float32"
        )
    return fits_any_precision(machine, geometry)


@cache
def fits_any_precision(machine: Machine, geometry: Geometry) -> str | None:
    """Return why a machine cannot run a convolution by tensor_tf32 and tensor_half; None if it can."""
    reason = why_not_plain(geometry)
    if reason is not None:
        return reason
    if any(plan(kind, geometry, 1, smallest(machine)) is None for kind in (FLOAT32, TF32, HALF, HALF_ROWS)):
        return (
            f"{geometry.filters} filters of {geometry.channels} x {geometry.kernel[0]} x {geometry.kernel[1]} weights "
            f"on rows of {geometry.width} pixels need more than the registers and the "
            f"{smallest(machine).block_bytes >> 10} KiB of shared memory that every device has"
        )
    return None


def plan(kind: Kind, geometry: Geometry, images: int, machine: Machine) -> Plan | None:
    """Return the plan with the least work of a multiprocessor for a number of images; None if there is none."""
    return _plan(kind, geometry, min(MANY, 1 << max(0, images - 1).bit_length()), machine)


@cache
def _plan(kind: Kind, geometry: Geometry, images: int, machine: Machine) -> Plan | None:
    plans = _plans(kind, geometry, machine)
    return min(plans, key=lambda made: _clocks(kind, geometry, made, images, machine), default=None)


def _plans(kind: Kind, geometry: Geometry, machine: Machine) -> Iterator[Plan]:
    for across in (2, 4, 8) if kind.quad == 8 else (1, 2, 4, 8):
        for down in range(1, min(MOST_DOWN, geometry.output_height) + 1):
            tiles = columns_of(geometry.filters, across) // 8
            panel = parts_of(tiles, parts_of(tiles, max(1, MOST_SUMS // (4 * down))))
            for held in (False, True):
                layout = _layout(kind, geometry, across, down, panel, held)
                if layout is None:
                    continue
                registers = _registers(kind, geometry, layout, down, held)
                warps = next((count for most, count in WARPS_FOR_REGISTERS if registers <= most), 0)
                spills = kind is TF32 and held and warps == FEWEST_WARPS and down > MOST_DOWN_OF_FEWEST
                if not warps or spills:
                    continue
                for band in _bands(geometry, down):
                    found = _staged(kind, geometry, layout, down, held, band, warps, machine)
                    if found is not None:
                        yield found


def _layout(kind: Kind, geometry: Geometry, across: int, down: int, panel: int, held: bool) -> Layout | None:
    """Return the layout with as many channels at once as can be unrolled; None if not even one can."""
    for at_once in range(geometry.channels, 0, -1):
        layout = Layout(across, at_once, panel)
        if held and (layout.turns(geometry) > 1 or layout.panels(geometry) > 1):
            return None
        products = layout.steps(kind, geometry) * panel * down * kind.passes
        if geometry.channels % at_once == 0 and products <= MOST_PRODUCTS[held]:
            return layout
    return None


def _registers(kind: Kind, geometry: Geometry, layout: Layout, down: int, held: bool) -> int:
    """Estimate the registers of a lane: sums, weights, rows of an image, products under way, and what is left."""
    quads, split = layout.quads(kind, geometry), kind.passes > 1
    group = min(layout.panel, max(1, 8 // down))
    words = kind.words * (layout.steps(kind, geometry) * layout.panel if held else group * parts_of(quads, 2))
    # A step of two rows needs the first one longer, that of two channels all that an item meets of the first one's; and
    # as instructions want their registers in order, many of them twice.
    odd = quads % 2
    rows = (1 if held else down) + odd * (down if layout.at_once > 1 else 1)
    inputs = 2 * quads * (1 + split) * rows * (1 + odd) + 2 * quads * (2 if kind is HALF else 1)
    products = 4 * group * down if split else 0
    others = 18 + 12 * (not held) + 22 * (held and not split) + 12 * (layout.panels(geometry) > 1)
    return 4 * down * layout.panel + words + inputs + products + others


def _bands(geometry: Geometry, down: int) -> list[int]:
    """Return the output rows that a band may have: all, or a multiple of an item's."""
    height = geometry.output_height
    cut = {parts_of(parts_of(height, count), down) * down for count in (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, height)}
    return [height, *sorted((band for band in cut if band < height), reverse=True)]


def _staged(
    kind: Kind, geometry: Geometry, layout: Layout, down: int, held: bool, band: int, warps: int, machine: Machine
) -> Plan | None:
    pitch = geometry.width + 2 * geometry.padding[1]
    if layout.across > 1:
        pitch += pitch % 2
    rows = geometry.channels * (band + geometry.kernel[0] - 1) + parts_of(band, down) * down - band
    slot = parts_of(kind.number * (rows * pitch + layout.quads(kind, geometry) * kind.quad), 16) * 16
    biases = layout.panels(geometry) * layout.panel * 8 // layout.across
    fixed = BARRIER_BYTES + parts_of(4 * biases, 16) * 16
    if not held:
        fixed += layout.weight_bytes(kind, geometry)
    stages = min(MOST_STAGES, (machine.block_bytes - fixed) // slot)
    if stages < 2:
        return None
    return Plan(layout, down, held, band, pitch, stages, slot, warps, fixed + stages * slot)


# ---- Which one to take --------------------------------------------------------------------------------------------


def _clocks(kind: Kind, geometry: Geometry, made: Plan, images: int, machine: Machine) -> float:
    """Return about the clocks of a multiprocessor for its share of the images: all that it does, one after the other.

    An H200's tensor cores take a product a clock; 128 bytes of shared memory are read in one, 64 are stored, and 4
    instructions begin. The last warp of a round is waited for.
    """
    layout, down = made.layout, made.down
    tiles = layout.panels(geometry) * layout.panel
    steps = layout.turns(geometry) * layout.steps(kind, geometry)
    products = steps * tiles * down * kind.passes
    rows = layout.panels(geometry) * geometry.channels * (geometry.kernel[0] + down - 1)
    reads = 2 * rows * layout.quads(kind, geometry)
    weights = 0 if made.held else steps * tiles
    sums = 4 * down * tiles
    instructions = products + reads + weights + sums
    shared = reads + weights * kind.words + kind.number * sums / 2
    item = products / machine.share(kind.multiplied) + shared + instructions / 4
    bands = parts_of(images * made.bands(geometry), machine.multiprocessors)
    rounds = parts_of(bands * parts_of(made.items(geometry), TILE), made.warps)
    inputs = geometry.channels * (made.band + geometry.kernel[0] - 1) * geometry.width
    outputs = geometry.filters * made.band * geometry.output_width
    copied = machine.copy_bandwidth / (machine.multiprocessors * machine.clock)  # bytes a clock
    return rounds * item * (made.warps + 1) + bands * kind.number * (inputs + outputs) / copied
