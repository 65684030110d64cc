"""The kernel of conv2d that multiplies filters and pixels on tensor cores of any GPU, with any stride, in float32.

A launch gives the same bits every time. The precision of float32 is kept, infinities and NaN included, but denormal
numbers count as zero.

How a convolution is cut is chosen here; what its numbers mean is said in `kernels/conv2d/implicit.cuh`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import gcd
from typing import Any

import numpy as np

from sparsenn.backends.cuda.clocks import MEMORY_CLOCKS
from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, WHOLE, ConvLayer, Geometry, smallest
from sparsenn.backends.cuda.conv.kernel import convolution, new_outputs, refuse
from sparsenn.backends.cuda.runtime.activation import ACTIVATIONS
from sparsenn.backends.cuda.runtime.device import machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device, from_host
from sparsenn.backends.cuda.runtime.loader import specialised
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, LINE, Tile, counters, partial_sums, work
from sparsenn.backends.machine import WARP, Machine
from sparsenn.backends.prior import LAID_OUT, WARPS, Prior
from sparsenn.backends.sizes import parts_of
from sparsenn.errors import UsageError
from sparsenn.formats import Array

TILES = (
    Tile(64, 128, 1, 4),
    Tile(128, 128, 2, 4, blocks=1),
    Tile(128, 96, 4, 2, blocks=1),
    Tile(64, 64, 2, 2),
    Tile(32, 128, 1, 4),
    Tile(64, 32, 2, 2, stages=2),
)
"""Tiles to choose from: filters and pixels."""

LEAST_ROWS = min(tile.rows for tile in TILES)

STEP_CHANNELS = 8  # that an instruction multiplies
STRIPS = (64, 32, 16, 8)  # columns of outputs that a strip may have; all of them, too
WIDEST = 128  # columns of outputs that may be one strip
MOST_PARTS = 16  # of the depth
UNITS = LINE // 16  # of 16 bytes, that a place of the band consists of
SAME_FOR_ALL = 16  # bytes of shared memory for what all threads of a block need now and then
SECTOR = 32  # bytes that are read from memory at least

# Units that a thread reads at a time.
AT_ONCE = 4  # before the first product
SOONER = 2  # during each slab


@dataclass(frozen=True)
class Band:
    """The part of the images that the pixels of a block see, as it lies in shared memory."""

    rows: int  # of the band
    phase: int  # places of a row that are a stride apart in the images
    pitch: int  # places of a row
    tall: int  # rows that an image has in the band, padding included
    images: int  # that the band may be a slice of

    @property
    def bytes(self) -> int:
        """Size in shared memory."""
        return self.rows * self.pitch * LINE

    @property
    def entries(self) -> int:
        """Places, for each of which a unit is read at a time."""
        return self.rows * self.pitch


@cache
def band_of(geometry: Geometry, strip: int, pixels: int, count: int) -> Band:
    """Return the largest band of a block of `pixels` pixels in strips of `strip` columns, of `count` images."""
    (down, across), (apart_down, apart_across) = geometry.stride, geometry.dilation
    height = geometry.output_height
    tall = parts_of((height - 1) * down + (geometry.kernel[0] - 1) * apart_down + 1, down) * down
    period = strip * height
    start = np.arange(period // gcd(period, pixels), dtype=np.int64) * pixels % period
    first, last = start // strip, np.minimum((start + pixels - 1) // strip, count * height - 1)
    rows = last // height * tall + (last % height - first) * down
    phase = strip + (geometry.kernel[1] - 1) * apart_across // across
    most = int(rows.max()) + (geometry.kernel[0] - 1) * apart_down + 1
    return Band(most, phase, phase * across, tall, int(last.max()) // height + 1)


@dataclass(frozen=True)
class Plan:
    """How a convolution is cut, for a number of images."""

    tile: Tile  # of a block
    band: Band  # of a block's pixels
    strip: int  # columns of outputs whose pixels follow each other
    strips: int
    pixels: int  # of a strip
    tiles_down: int  # of the filters
    tiles: int  # of all outputs
    chunks: int  # of the channels
    parts: int  # of the depth, each summed by blocks of its own
    part_chunks: int  # chunks of a part, at most
    shared_bytes: int  # of a block

    @property
    def bands(self) -> int:
        """Bands that a block has room for."""
        return min(2, self.part_chunks)

    def numbers(self, geometry: Geometry, count: int) -> tuple[np.int32, ...]:
        """Return the kernel's last arguments for `count` images."""
        found = (
            *(count, geometry.channels, geometry.height, geometry.width),
            *(geometry.filters, geometry.output_height, geometry.output_width),
            *(*geometry.kernel, *geometry.stride, *geometry.padding, *geometry.dilation),
            *(self.strip, self.strips, self.pixels, self.tiles_down, self.tiles),
            *(self.band.rows, self.band.phase, self.band.tall, self.band.entries),
            *(self.chunks, self.parts, self.part_chunks, self.bands),
        )
        return tuple(map(np.int32, found))


@cache
def plan(geometry: Geometry, count: int, machine: Machine) -> Plan | None:
    """Return the plan by which `count` images should take the least time; None if none fits the device."""
    found = min(_plans(geometry, count, machine), key=lambda found: found[0], default=None)
    return None if found is None else found[1]


def _plans(geometry: Geometry, count: int, machine: Machine) -> Iterator[tuple[float, Plan]]:
    width, chunks = geometry.output_width, parts_of(geometry.channels, FLOAT32.terms)
    widths = [width] * (width <= WIDEST) + [strip for strip in STRIPS if strip < width]
    for tile in TILES:
        for strip in widths:
            band = band_of(geometry, strip, tile.columns, count)
            if not _countable(geometry, band):
                continue
            for wanted in range(1, min(chunks, MOST_PARTS) + 1):
                made = _cut(geometry, count, tile, band, strip, chunks, parts_of(chunks, wanted))
                resident = tile.resident(made.shared_bytes, machine)
                if made.parts == wanted and resident and made.tiles * wanted <= MOST_NUMBERS:
                    yield _clocks(geometry, made, resident, machine), made


def _countable(geometry: Geometry, band: Band) -> bool:
    plane = geometry.height * geometry.width
    return (band.images * geometry.channels + FLOAT32.terms) * plane <= MOST_NUMBERS


def _cut(geometry: Geometry, count: int, tile: Tile, band: Band, strip: int, chunks: int, part_chunks: int) -> Plan:
    strips, tiles_down = parts_of(geometry.output_width, strip), parts_of(geometry.filters, tile.rows)
    pixels = count * geometry.output_height * strip
    tiles = tiles_down * strips * parts_of(pixels, tile.columns)
    taps = geometry.kernel[0] * geometry.kernel[1]
    shared = tile.stages * tile.rows * LINE + min(2, part_chunks) * band.bytes
    shared += 8 * band.entries + 4 * taps + SAME_FOR_ALL
    parts = parts_of(chunks, part_chunks)
    return Plan(tile, band, strip, strips, pixels, tiles_down, tiles, chunks, parts, part_chunks, shared)


def _clocks(geometry: Geometry, made: Plan, resident: int, machine: Machine) -> float:
    taps = geometry.kernel[0] * geometry.kernel[1]
    rounds = parts_of(UNITS * made.band.entries, made.tile.threads)
    late = max(0, rounds - SOONER * taps) * (made.part_chunks - 1)
    filters = made.tile.rows * LINE
    row = SECTOR * (parts_of(made.band.pitch * FLOAT32.factor_bytes, SECTOR) + 1)
    read = made.band.rows * min(FLOAT32.terms, geometry.channels) * row
    steps = parts_of(geometry.channels, STEP_CHANNELS)
    return work(
        FLOAT32,
        made.tile,
        copied=filters + made.band.bytes / taps,
        read=filters + read / taps,
        slabs=taps * made.part_chunks,
        tiles=made.tiles,
        parts=made.parts,
        resident=resident,
        machine=machine,
        filled=steps / (4 * made.chunks),
        waiting=MEMORY_CLOCKS * (parts_of(rounds, AT_ONCE) + late),
    )


# ---- Filters in the kernel's order -------------------------------------------------------------------------------


def arranged(weights: Array) -> Array:
    """Return filters as the kernel reads them, in bytes: chunk, tap, step of 32 bytes, 16 filters, lane, 16 bytes.

    Lane 4 g + t has, of filters g and g + 8, the terms that it multiplies: t, then t + 4 of 8 floats."""
    filters, channels, *kernel = weights.shape
    taps, chunks = kernel[0] * kernel[1], parts_of(channels, FLOAT32.terms)
    tiles = parts_of(filters, 16)
    padded = np.zeros((tiles * 16, chunks * FLOAT32.terms, taps), np.float32)
    padded[:filters, :channels] = weights.reshape(filters, channels, taps)
    # tile, upper or lower filter, g; chunk, step, first or second unit, t; tap
    parted = padded.reshape(tiles, 2, 8, chunks, 4, 2, 4, taps)
    ordered = np.ascontiguousarray(parted.transpose(3, 7, 4, 0, 2, 6, 5, 1))
    return ordered.reshape(chunks, taps, 4, tiles, WARP, -1).view(np.uint8)


SOURCE = "conv2d/implicit_float32.cu"

_PROGRAM = specialised(SOURCE, dynamic_shared=True, carveout=WHOLE)

ONE_GROUP = "one group"  # what the kernel needs of a convolution, in words
MANY = 1 << 10  # images of which a block sees as many as of any larger number


def fits(machine: Machine, geometry: Geometry) -> str | None:
    """Return why a machine cannot run a convolution with the kernel; None if it can."""
    if geometry.groups > 1:
        return f"{geometry.groups} groups; the kernel is written for one"
    pixels = geometry.output_height * geometry.output_width
    if max(geometry.channels * geometry.height * geometry.width, 2 * geometry.filters * pixels) > MOST_NUMBERS:
        return f"an image or its outputs have more numbers than the {MOST_NUMBERS:,} that the kernel counts"
    if plan(geometry, MANY, smallest(machine)) is None:
        return (
            f"the pixels that a block of outputs sees, of {geometry.kernel[0]} x {geometry.kernel[1]} taps, stride "
            f"{geometry.stride} and dilation {geometry.dilation}, do not fit into the "
            f"{smallest(machine).block_bytes >> 10} KiB of shared memory that every device has"
        )
    return None


def kernel_defines(tile: Tile, activation: int) -> dict[str, int | str]:
    """Return what the kernel is compiled with; the activation is its place in `ACTIVATIONS`."""
    return tile.defines(FLOAT32) | {"ACTIVATION": ACTIVATIONS[activation]}


@cache
def _prepared(geometry: Geometry, count: int, activation: int, device: int) -> tuple[Any, Plan, tuple[np.int32, ...]]:
    """Return the kernel, the plan, and the kernel's last arguments."""
    machine = machine_of(device)
    refuse(fits(machine, geometry))
    made = plan(geometry, count, machine)
    if made is None:
        held = machine.block_bytes >> 10
        raise UsageError(f"the device's {held} KiB of shared memory have no room for {geometry}")
    kernel = _PROGRAM.kernel("conv2d", **kernel_defines(made.tile, activation))
    return kernel, made, made.numbers(geometry, count)


def launch_implicit_float32(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution of one group."""
    outputs, geometry = new_outputs(layer, images), layer.geometry
    # Pixels, and outputs of a strip, are counted in 32 bits; strips together may be wider than the outputs.
    most = max(1, MOST_NUMBERS // (2 * geometry.output_height * geometry.output_width + 128 * geometry.output_height))
    for first in range(0, images.shape[0], most):
        some = images if images.shape[0] <= most else images[first : first + most]
        _launch(layer, some, outputs if some is images else outputs[first : first + most])
    if not images.shape[0]:
        refuse(fits(machine_of(layer.device), geometry))
    return outputs


def _launch(layer: ConvLayer, images: Array, outputs: Array) -> None:
    kernel, made, numbers = _prepared(layer.geometry, images.shape[0], int(layer.activation), layer.device)
    filters = cache_on_device(layer, "implicit", lambda: from_host(arranged, layer.source.weights))
    partials = partial_sums(made.tile, made.tiles, made.parts), counters(made.tiles if made.parts > 1 else 0)
    arguments = images, filters, layer.weights, layer.bias, outputs, *partials, layer.clip, *numbers
    blocks, threads = made.tiles * made.parts, made.tile.threads
    launch("conv2d", kernel, (blocks,), (threads,), *arguments, shared_bytes=made.shared_bytes)


IMPLICIT_FLOAT32 = convolution(
    "conv_implicit_float32",
    launch_implicit_float32,
    "filters times pixels on tensor cores, numbers split in two",
    fits,
    needs=(ONE_GROUP,),
    auto=True,
    prior=Prior(WARPS / FLOAT32.products, LAID_OUT, precision="tf32"),
    multiples=(LEAST_ROWS, STEP_CHANNELS),
    tf32_products=FLOAT32.products,
)
