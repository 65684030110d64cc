"""The plain float32 kernel of conv2d that is meant to be fast: sums of several filters and pixels in registers.

Denormal numbers count as zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from sparsenn.backends.cuda.clocks import MEMORY_CLOCKS, busy_share
from sparsenn.backends.cuda.conv.geometry import ConvLayer, Geometry
from sparsenn.backends.cuda.conv.kernel import activation_define, convolution, new_outputs, refuse, sizes, why_not_plain
from sparsenn.backends.cuda.runtime.device import machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device, from_host
from sparsenn.backends.cuda.runtime.loader import specialised
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.machine import REGISTERS, WARP, Machine
from sparsenn.backends.prior import TUNED, Prior
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array

SOURCE = "conv2d/register_tiled.cu"

_PROGRAM = specialised(SOURCE, dynamic_shared=True)

# Of a thread: more leave too few registers for pixels and weights.
MOST_PIXELS = 24
MOST_SUMS = 96

MOST_ROWS = 32  # of a window: a thread has a column of them in registers
MOST_SLICE = 32  # channels of a slice, unless it is all: more need more shared memory, and leave fewer blocks at a time

MOST_UNROLLED = 1600
"""Multiply-adds that the compiler may write out one after the other: more do not fit into the instruction cache."""

MANY = 1 << 14  # images from which on their number makes no difference to the choice of a tiling
MOST_REGISTERS = 255  # of a thread


@dataclass(frozen=True)
class Tiling:
    """How outputs are cut among blocks and threads; the kernel is compiled for it."""

    threads: int  # of a block
    blocks: int  # that fit on a multiprocessor
    images: int  # of a block
    pixels: int  # of a thread, one below the other
    each: int  # filters of a thread
    bundles: int  # of `each` filters, of a block
    slice: int  # channels that a block has in shared memory at a time
    strip: int  # columns of a block
    band: int  # tiles of `pixels` rows of a block
    vector: int  # numbers that are copied at a time

    @property
    def tiles(self) -> int:
        """Tiles of a block, of which a thread computes one at a time."""
        return self.strip * self.band * self.images * self.bundles


# ---- Which tilings there are --------------------------------------------------------------------------------------


def _row_tiles(geometry: Geometry, pixels: int) -> int:
    return parts_of(geometry.output_height, pixels)


def _takes_whole_images(geometry: Geometry, tiling: Tiling) -> bool:
    all_rows = tiling.band == _row_tiles(geometry, tiling.pixels) and tiling.strip == geometry.output_width
    return all_rows and tiling.slice == geometry.channels and geometry.padding == (0, 0)


def _weight_floats(geometry: Geometry, tiling: Tiling) -> int:
    column = parts_of(geometry.kernel[0] * tiling.each, 4) * 4
    return tiling.bundles * tiling.slice * geometry.kernel[1] * column


def _staged_floats(geometry: Geometry, tiling: Tiling) -> int:
    height, width = geometry.kernel
    if _takes_whole_images(geometry, tiling):
        beyond = _row_tiles(geometry, tiling.pixels) * tiling.pixels - geometry.output_height
        return (tiling.images * geometry.channels * geometry.height + beyond) * geometry.width
    margin = parts_of(geometry.padding[1], tiling.vector) * tiling.vector
    columns = margin - geometry.padding[1] + tiling.strip + width - 1
    pitch = parts_of(columns, tiling.vector) * tiling.vector
    return tiling.images * tiling.slice * (tiling.band * tiling.pixels + height - 1) * pitch


def shared_bytes(geometry: Geometry, tiling: Tiling) -> int:
    """Return the shared memory of a block."""
    biases = parts_of(tiling.bundles * tiling.each, 4) * 4
    return 4 * (_weight_floats(geometry, tiling) + biases + _staged_floats(geometry, tiling))


def _registers(geometry: Geometry, pixels: int, each: int) -> int:
    return parts_of(pixels * each + pixels + geometry.kernel[0] - 1 + 28, 8) * 8


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _widths(geometry: Geometry) -> list[int]:
    """Return the columns that a block may have: all, or a multiple of 4."""
    every = geometry.output_width
    return [every, *(size for size in (128, 96, 64, 48, 32, 16, 8) if size < every)]


def _shapes(geometry: Geometry) -> Iterator[tuple[int, int]]:
    pixels = {parts_of(geometry.output_height, tiles) for tiles in range(1, geometry.output_height + 1)}
    for each in (1, 2, 4, 8, 16):
        if each > 1 and each >= 2 * geometry.filters:
            continue
        for count in sorted(pixels):
            unrolled = count * each * geometry.kernel[0]
            if count <= MOST_PIXELS and count * each <= MOST_SUMS and (unrolled <= MOST_UNROLLED or count == each == 1):
                yield count, each


def tilings(geometry: Geometry, machine: Machine) -> Iterator[Tiling]:
    """Yield the tilings that come into question for a convolution."""
    channels = [size for size in _divisors(geometry.channels) if size <= MOST_SLICE or size == geometry.channels]
    for pixels, each in _shapes(geometry):
        registers = _registers(geometry, pixels, each)
        bundles_of_all = parts_of(geometry.filters, each)
        bundles = sorted({bundles_of_all, *(size for size in (1, 2, 4, 8, 16, 32) if size < bundles_of_all)})
        row_tiles = _row_tiles(geometry, pixels)
        bands = sorted({row_tiles, *(size for size in (1, 2, 4, 8) if size < row_tiles)})
        for strip, band, count in itertools.product(_widths(geometry), bands, bundles):
            whole = strip == geometry.output_width and band == row_tiles
            for images, threads in itertools.product((1, 2, 3, 4, 6, 8, 12, 16) if whole else (1,), (128, 256)):
                tiles = strip * band * count * images
                for size in channels:
                    # a thread keeps its sums from slice to slice; and most threads should have some
                    if (
                        size < geometry.channels
                        and not threads // 2 < tiles <= threads
                        and (tiles > threads or not whole)
                    ):
                        continue
                    shape = Tiling(threads, 1, images, pixels, each, count, size, strip, band, 1)
                    found = _completed(geometry, shape, registers, machine)
                    if found is not None:
                        yield found


def _completed(geometry: Geometry, shape: Tiling, registers: int, machine: Machine) -> Tiling | None:
    """Return a tiling with its vectors and blocks; None if it has no room, in registers or in shared memory."""
    if registers > min(MOST_REGISTERS, REGISTERS // shape.threads):
        return None
    whole = _takes_whole_images(geometry, shape)
    strips = shape.strip < geometry.output_width
    length = geometry.channels * geometry.height * geometry.width if whole else geometry.width
    vector = next(size for size in (4, 2, 1) if length % size == 0 and not (strips and shape.strip % size))
    tiling = replace(shape, vector=vector)
    needed = shared_bytes(geometry, tiling)
    if needed > machine.block_bytes:
        return None
    by_shared = machine.multiprocessor_bytes // (needed + 1024)
    blocks = min(by_shared, REGISTERS // (registers * shape.threads), machine.warps * WARP // shape.threads, 16)
    return replace(tiling, blocks=max(1, blocks))


# ---- Which one to take --------------------------------------------------------------------------------------------

STEP = 6  # instructions of a thread for an iteration of a loop, besides its work, for storing a sum, or for a copy


class _Rates(NamedTuple):
    multiprocessors: int
    multiply_adds: float  # of a multiprocessor, 1 for an H200's
    moved: float  # bytes of a multiprocessor in a clock


def _rates(machine: Machine) -> _Rates:
    copied = machine.copy_bandwidth / (machine.multiprocessors * machine.clock)
    return _Rates(machine.multiprocessors, machine.share("float32"), copied)


def _clocks(geometry: Geometry, tiling: Tiling, count: int, rates: _Rates) -> float:
    """Estimate the clocks that `count` images take.

    Each of a multiprocessor's four schedulers issues an instruction a clock; a multiply-add takes it longer where there
    are fewer units for those. A block's instructions are those of its warps, full or not; while it waits for pixels,
    other blocks compute.
    """
    height, width = geometry.kernel
    sums = tiling.pixels * tiling.each
    column = height * sums / rates.multiply_adds + tiling.pixels + height - 1 + parts_of(height * tiling.each, 4) + STEP
    rounds = parts_of(tiling.tiles, tiling.threads)
    slices = geometry.channels // tiling.slice
    computing = rounds * (geometry.channels * width * column + STEP * (sums + 1))
    staged, weights = _staged_floats(geometry, tiling), _weight_floats(geometry, tiling)
    copying = STEP * (staged / tiling.vector + weights / 4)
    warps = tiling.threads // WARP
    issued = warps * (computing + slices * (copying / tiling.threads + STEP)) / 4
    sets = parts_of(geometry.filters, tiling.bundles * tiling.each)
    bands = parts_of(_row_tiles(geometry, tiling.pixels), tiling.band)
    strips = parts_of(geometry.output_width, tiling.strip)
    blocks = parts_of(parts_of(count, tiling.images) * sets * bands * strips, rates.multiprocessors)
    resident = min(tiling.blocks, blocks)
    outputs = tiling.images * min(geometry.filters, tiling.bundles * tiling.each) * tiling.band * tiling.pixels
    moved = 4 * (slices * (staged + weights) + outputs * tiling.strip) / rates.moved
    waiting = slices * MEMORY_CLOCKS + moved
    return blocks * max(issued / busy_share(resident * tiling.threads), (issued + waiting) / resident, moved)


def tiling_for(geometry: Geometry, count: int, machine: Machine) -> Tiling | None:
    """Return the tiling by which `count` images are estimated to be done first; None if there is none."""
    return _tiling_for(geometry, min(MANY, 1 << max(0, count - 1).bit_length()), machine)


@cache
def _tiling_for(geometry: Geometry, count: int, machine: Machine) -> Tiling | None:
    rates = _rates(machine)
    return min(tilings(geometry, machine), key=lambda tiling: _clocks(geometry, tiling, count, rates), default=None)


@cache
def fits(machine: Machine, geometry: Geometry) -> str | None:
    """Return why a machine cannot run a convolution; None if it can."""
    reason = why_not_plain(geometry)
    if reason is None and geometry.kernel[0] > MOST_ROWS:
        return f"a window has {geometry.kernel[0]} rows; registers suffice for {MOST_ROWS}"
    if reason is None and next(tilings(geometry, machine), None) is None:
        return f"a window of {geometry.kernel[0]} x {geometry.kernel[1]} pixels and what it meets exceed shared memory"
    return reason


# ---- Launching ----------------------------------------------------------------------------------------------------


def arranged(tiling: Tiling, weights: Array) -> Array:
    """Return weights in the order in which blocks take them, zeros where there is no filter.

    The result is (sets, slices, bundles, channels of a slice, kernel width, column), where a column is the kernel's
    height times the filters of a thread, padded to a multiple of 4.
    """
    filters, channels, height, width = weights.shape
    sets = parts_of(filters, tiling.bundles * tiling.each)
    padded = np.zeros((sets * tiling.bundles * tiling.each, channels, height, width), np.float32)
    padded[:filters] = weights
    cut = padded.reshape(
        sets, tiling.bundles, tiling.each, channels // tiling.slice, tiling.slice, height, width
    ).transpose(0, 3, 1, 4, 6, 5, 2)
    column = parts_of(height * tiling.each, 4) * 4
    laid_out: Array = np.zeros((*cut.shape[:5], column), np.float32)
    laid_out[..., : height * tiling.each] = cut.reshape(*cut.shape[:5], height * tiling.each)
    return laid_out


def launch_register_tiled(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution that `fits`."""
    refuse(fits(machine_of(layer.device), layer.geometry))
    outputs = new_outputs(layer, images)
    compute_register_tiled(layer, images, outputs)
    return outputs


def compute_register_tiled(layer: ConvLayer, images: Array, outputs: Array) -> None:
    """As `launch_register_tiled`, of a convolution that fits, into an array that is there."""
    given = layer.geometry
    count = images.shape[0]
    tiling = tiling_for(given, count, machine_of(layer.device))
    assert tiling is not None, "what has no tiling does not fit"
    pointer: Any = images.data
    if pointer.ptr % (4 * tiling.vector):
        images = images.copy()
    weights = cache_on_device(layer, tiling, lambda: from_host(partial(arranged, tiling), layer.source.weights))
    found, blocks, shared = _prepared(given, tiling, activation_define(layer), layer.device)
    grid = (parts_of(count, tiling.images) * blocks,)
    arguments = np.int32(count), images, weights, layer.bias, layer.clip, outputs
    launch("conv2d", found, grid, (tiling.threads,), *arguments, shared_bytes=shared)


@cache
def _prepared(geometry: Geometry, tiling: Tiling, activation: int, device: int) -> tuple[Any, int, int]:
    """Return the kernel for the current device, how many blocks share the same images, and each one's shared memory."""
    found = _PROGRAM.kernel("conv2d", **kernel_defines(geometry, tiling, activation))
    sets = parts_of(geometry.filters, tiling.bundles * tiling.each)
    bands = parts_of(_row_tiles(geometry, tiling.pixels), tiling.band)
    return found, sets * bands * parts_of(geometry.output_width, tiling.strip), shared_bytes(geometry, tiling)


def kernel_defines(geometry: Geometry, tiling: Tiling, activation: int) -> dict[str, int]:
    """Return what the kernel is compiled with; the activation as `activation_define` returns it."""
    plain = {
        name: size for name, size in sizes(geometry).items() if not name.startswith(("STRIDE", "DILATION", "GROUPS"))
    }
    shape = {name.upper(): size for name, size in asdict(tiling).items()}
    return {**plain, **shape, "ACTIVATION": activation, "SHARED_BYTES": shared_bytes(geometry, tiling)}


REGISTER_TILED = convolution(
    "conv_register_tiled",
    launch_register_tiled,
    "sums of several filters and pixels in registers, the rest in shared memory",
    fits,
    needs=("stride 1, no dilation, one group",),
    auto=True,
    prior=Prior(TUNED),
)
