"""A kernel of conv2d on tensor cores in half precision, for which a kernel puts the channels of a pixel side by side.

A launch takes a layer and images, a CuPy array (images, channels, height, width) of float32 or float16 in row-major
order, and returns the outputs, a new CuPy array (images, filters, output height, output width) of the same type. A
launch queues its work on the current stream and does not wait for it, but for the first one of a layer, which compiles
kernels and lays the filters out.

Pixels and weights are rounded to half precision: pixels beyond 65,504 are infinite, and weights must not exceed that.
Sums are float32. A launch gives the same bits every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv import implicit
from sparsenn.backends.cuda.conv.estimates import IMAGES, layout_seconds
from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, Geometry
from sparsenn.backends.cuda.conv.implicit_plan import Plan, plan
from sparsenn.backends.cuda.conv.implicit_plan import clocks as least_clocks
from sparsenn.backends.cuda.conv.kernel import convolution
from sparsenn.backends.cuda.conv.layer import ConvLayer
from sparsenn.backends.cuda.conv.shared_memory import WHOLE, smallest
from sparsenn.backends.cuda.conv.specialised import check_half_range, new_outputs, refuse
from sparsenn.backends.cuda.runtime.device import cupy, machine_of
from sparsenn.backends.cuda.runtime.loader import program, specialised
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.cuda.tensor_tiles import HALF, LINE, Tile, counters, partial_sums
from sparsenn.backends.machine import Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.errors import UsageError
from sparsenn.formats import Array

__all__ = [
    "CHANNELS_LAST_HALF",
    "LAYING_OUT",
    "SOURCE",
    "TILES",
    "clocks",
    "fits",
    "kernel_defines",
    "launch_channels_last_half",
    "layout_defines",
    "pieces",
]

SOURCE = "conv2d/channels_last_half.cu"

LAYING_OUT = "conv2d/channels_last.cu"

_PROGRAM = specialised(SOURCE, dynamic_shared=True, carveout=WHOLE)
_LAYOUT = program(LAYING_OUT, dynamic_shared=True, carveout=WHOLE, INPUT=("float", "half_bits"), PAIRED=(0, 1))

TILES: tuple[Tile, ...] = (
    Tile(64, 128, 1, 4, blocks=4),
    Tile(128, 96, 2, 2, slices=2, stages=4, blocks=1),
    Tile(64, 64, 2, 2, blocks=4),
    Tile(64, 32, 2, 2, stages=2),
)
"""To choose from: filters and pixels."""

HELD_BYTES = 1 << 30
"""Of images that are laid out at a time: little beside the device's memory. Pieces so small that they would still be in
the cache when they are multiplied take longer, as each begins and ends with idle multiprocessors."""

# Of a block that lays images out.
PIXELS = 64
THREADS = 256

SHARE = 1.7
"""Clocks taken for one that was estimated."""


def fits(machine: Machine, geometry: Geometry) -> str | None:
    """Return why a machine cannot run a convolution with the kernel; None if it can."""
    reason = implicit.fits(machine, geometry)
    if reason is None and _plan(geometry, implicit.MANY, smallest(machine)) is None:
        return (
            f"the pixels that a block of outputs sees, of {geometry.kernel[0]} x {geometry.kernel[1]} taps, stride "
            f"{geometry.stride} and dilation {geometry.dilation}, do not fit into the "
            f"{smallest(machine).block_bytes >> 10} KiB of shared memory that every device has"
        )
    return reason


def _plan(geometry: Geometry, count: int, machine: Machine) -> Plan | None:
    return plan(HALF, geometry, count, False, machine, TILES, True)


def clocks(geometry: Geometry, count: int, machine: Machine) -> float:
    """Estimate the clocks of a multiprocessor for `count` images that are laid out already."""
    return least_clocks(HALF, geometry, count, machine, TILES, True)


def _chunks(geometry: Geometry) -> int:
    return parts_of(geometry.channels, HALF.terms)


def _padded_channels(geometry: Geometry) -> int:
    """Return the channels that a pixel has where images are laid out."""
    return _chunks(geometry) * HALF.terms


def pieces(geometry: Geometry, count: int) -> int:
    """Return how many of `count` images are laid out at a time."""
    # Pixels, and outputs of a strip, are counted in 32 bits; strips together may be wider than the outputs.
    outputs = 2 * geometry.output_height * geometry.output_width + 128 * geometry.output_height
    image = _chunks(geometry) * geometry.height * geometry.width * LINE
    most = max(1, min(MOST_NUMBERS // outputs, HELD_BYTES // image))
    return parts_of(count, parts_of(count, most))


# ---- Images with channels last -----------------------------------------------------------------------------------


def layout_defines(half_rows: bool, paired: bool) -> dict[str, int | str]:
    """Return what the kernel that lays images out is compiled with.

    Parameters
    ----------
    half_rows : the images are float16.
    paired : they are read two pixels at a time.
    """
    return {"INPUT": "half_bits" if half_rows else "float", "PAIRED": int(paired)}


def _lay_out(geometry: Geometry, images: Array, laid: Array) -> None:
    """Lay images out: (images, chunks of 64 channels, height, width, 64 channels) half, zeros past the last channel.

    Parameters
    ----------
    images : (images, channels, height, width) float32 or float16 in row-major order.
    laid : float16 of that many numbers or more, where they go.
    """
    pointer: Any = images.data
    pixels = geometry.height * geometry.width
    paired = pixels % 2 == 0 and pointer.ptr % (2 * images.dtype.itemsize) == 0
    kernel = _LAYOUT.kernel("channels_last", **layout_defines(images.dtype == np.float16, paired))
    chunks, tiles = _chunks(geometry), parts_of(pixels, PIXELS)
    numbers = map(np.int32, (geometry.channels, chunks, pixels, tiles))
    blocks = images.shape[0] * chunks * tiles
    launch("conv2d", kernel, (blocks,), (THREADS,), images, laid, *numbers, shared_bytes=PIXELS * LINE)


# ---- Convolutions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Prepared:
    """What launches of one size have in common."""

    kernel: Any
    plan: Plan
    numbers: tuple[np.int32, ...]


def kernel_defines(tile: Tile, half_rows: bool, activation: int) -> dict[str, int | str]:
    """Return what the kernel is compiled with; parameters as those of `implicit.kernel_defines`."""
    return implicit.kernel_defines(HALF, tile, False, half_rows, activation)


@cache
def _prepared(geometry: Geometry, count: int, half_rows: bool, activation: int, device: int) -> _Prepared:
    machine = machine_of(device)
    refuse(fits(machine, geometry))
    made = _plan(geometry, count, machine)
    if made is None:
        raise UsageError(f"the device's {machine.block_bytes >> 10} KiB of shared memory have no room for {geometry}")
    kernel = _PROGRAM.kernel("conv2d", **kernel_defines(made.tile, half_rows, activation))
    return _Prepared(kernel, made, made.numbers(geometry, count))


def launch_channels_last_half(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution of numbers rounded to half precision; images and outputs float32, or both float16.

    Raises
    ------
    ShapeError
        The images do not have the shape that the layer was uploaded for.
    UsageError
        They are not of a type that the kernel takes, it cannot run the convolution, or a weight is beyond half
        precision.
    """
    check_half_range(layer)
    outputs = new_outputs(layer, images, (np.float32, np.float16))
    geometry, count = layer.geometry, images.shape[0]
    if not count:
        refuse(fits(machine_of(layer.device), geometry))
        return outputs
    most = pieces(geometry, count)
    laid = cupy().empty(most * _chunks(geometry) * geometry.height * geometry.width * HALF.terms, np.float16)
    for first in range(0, count, most):
        _launch(layer, images[first : first + most], laid, outputs[first : first + most])
    return outputs


def _launch(layer: ConvLayer, images: Array, laid: Array, outputs: Array) -> None:
    half_rows = images.dtype == np.float16
    ready = _prepared(layer.geometry, images.shape[0], half_rows, int(layer.activation), layer.device)
    _lay_out(layer.geometry, images, laid)
    made = ready.plan
    filters = implicit.kept_filters(layer, HALF)
    partials = partial_sums(made.tile, made.tiles, made.parts), counters(made.tiles if made.parts > 1 else 0)
    arguments = laid, filters, layer.weights, layer.bias, outputs, *partials, layer.clip, *ready.numbers
    blocks, threads = made.tiles * made.parts, made.tile.threads
    launch("conv2d", ready.kernel, (blocks,), (threads,), *arguments, shared_bytes=made.shared_bytes)


def _seconds(machine: Machine, geometry: Geometry) -> float:
    pixels = IMAGES * geometry.height * geometry.width
    laid_out = 4 * geometry.channels + 2 * _padded_channels(geometry)
    multiplied = SHARE * clocks(geometry, IMAGES, machine) / machine.clock
    return multiplied + layout_seconds(machine, pixels * laid_out)


CHANNELS_LAST_HALF = convolution(
    "channels_last_half",
    launch_channels_last_half,
    "filters times pixels on tensor cores in half precision, channels side by side",
    fits,
    needs=(implicit.ONE_GROUP,),
    auto=True,
    seconds=_seconds,
    precision=HALF.name,
    half_rows=True,
)
