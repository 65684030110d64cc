"""A rung of conv2d on tensor cores in half precision, for which a kernel puts the channels of a pixel side by side.

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
from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, Geometry
from sparsenn.backends.cuda.conv.implicit_plan import Plan, plan
from sparsenn.backends.cuda.conv.implicit_plan import clocks as least_clocks
from sparsenn.backends.cuda.conv.layer import ConvLayer
from sparsenn.backends.cuda.conv.specialised import check_half_range, new_outputs, refuse
from sparsenn.backends.cuda.gemm.tensor_tiles import HALF, LINE, Tile, built, counters, partial_sums, parts_of
from sparsenn.backends.cuda.loader import cupy, program
from sparsenn.backends.cuda.recorder import launch
from sparsenn.backends.cuda.sparse.tiling import Limits, device_limits
from sparsenn.errors import UsageError
from sparsenn.formats import Array

__all__ = [
    "PRECISIONS",
    "RUNGS",
    "TILES",
    "clocks",
    "fits",
    "launch_channels_last_half",
    "lay_out",
    "padded_channels",
    "pieces",
]

SOURCE = "conv2d/33_channels_last_half.cu"

LAYING_OUT = "conv2d/channels_last.cu"

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

PIXELS, THREADS = 64, 256
"""Of a block that lays images out."""


def fits(geometry: Geometry) -> str | None:
    """Return why the kernel cannot run a convolution; None if it can, on any device of compute capability 8.0."""
    reason = implicit.fits(geometry)
    if reason is None and _plan(geometry, implicit.MANY, implicit.LEAST_LIMITS) is None:
        return (
            f"the pixels that a block of outputs sees, of {geometry.kernel[0]} x {geometry.kernel[1]} taps, stride "
            f"{geometry.stride} and dilation {geometry.dilation}, do not fit into the "
            f"{implicit.LEAST_LIMITS.block_bytes >> 10} KiB of shared memory that every device has"
        )
    return reason


def _plan(geometry: Geometry, count: int, limits: Limits) -> Plan | None:
    return plan(HALF, geometry, count, False, limits, TILES, True)


def clocks(geometry: Geometry, count: int, limits: Limits) -> float:
    """Estimate the clocks of a multiprocessor for `count` images that are laid out already."""
    return least_clocks(HALF, geometry, count, limits, TILES, True)


def _chunks(geometry: Geometry) -> int:
    return parts_of(geometry.channels, HALF.terms)


def padded_channels(geometry: Geometry) -> int:
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


def _layout_defines(half_rows: bool, paired: bool) -> tuple[tuple[str, int | str], ...]:
    return ("INPUT", "half_bits" if half_rows else "float"), ("PAIRED", int(paired))


def lay_out(geometry: Geometry, images: Array, laid: Array, device: int) -> None:
    """Lay images out: (images, chunks of 64 channels, height, width, 64 channels) half, zeros past the last channel.

    Parameters
    ----------
    images : (images, channels, height, width) float32 or float16 in row-major order.
    laid : float16 of that many numbers or more, where they go.
    """
    pointer: Any = images.data
    pixels = geometry.height * geometry.width
    paired = pixels % 2 == 0 and pointer.ptr % (2 * images.dtype.itemsize) == 0
    kernel = built(LAYING_OUT, "channels_last", _layout_defines(images.dtype == np.float16, paired), device)
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


def _defines(tile: Tile, half_rows: bool, activation: int) -> tuple[tuple[str, Any], ...]:
    return implicit.kernel_defines(HALF, tile, False, half_rows, activation)


@cache
def _prepared(geometry: Geometry, count: int, half_rows: bool, activation: int, device: int) -> _Prepared:
    refuse(fits(geometry))
    limits = device_limits(device)
    made = _plan(geometry, count, limits)
    if made is None:
        raise UsageError(f"the device's {limits.block_bytes >> 10} KiB of shared memory have no room for {geometry}")
    kernel = built(SOURCE, "conv2d", _defines(made.tile, half_rows, activation), device)
    return _Prepared(kernel, made, made.numbers(geometry, count))


def launch_channels_last_half(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution of numbers rounded to half precision; images and outputs float32, or both float16.

    Raises
    ------
    ShapeError
        The images do not have the shape that the layer was uploaded for.
    UsageError
        They are not of a type that the rung takes, the kernel cannot run the convolution, or a weight is beyond half
        precision.
    """
    check_half_range(layer)
    outputs = new_outputs(layer, images, (np.float32, np.float16))
    geometry, count = layer.geometry, images.shape[0]
    if not count:
        refuse(fits(geometry))
        return outputs
    most = pieces(geometry, count)
    laid = cupy().empty(most * _chunks(geometry) * geometry.height * geometry.width * HALF.terms, np.float16)
    for first in range(0, count, most):
        _launch(layer, images[first : first + most], laid, outputs[first : first + most])
    return outputs


def _launch(layer: ConvLayer, images: Array, laid: Array, outputs: Array) -> None:
    half_rows = images.dtype == np.float16
    ready = _prepared(layer.geometry, images.shape[0], half_rows, int(layer.activation), layer.device)
    lay_out(layer.geometry, images, laid, layer.device)
    made = ready.plan
    filters = implicit.kept_filters(layer, HALF)
    joined = partial_sums(made.tile, made.tiles, made.parts), counters(made.tiles if made.parts > 1 else 0)
    arguments = laid, filters, layer.weights, layer.bias, outputs, *joined, layer.clip, *ready.numbers
    blocks, threads = made.tiles * made.parts, made.tile.threads
    launch("conv2d", ready.kernel, (blocks,), (threads,), *arguments, shared_bytes=made.shared_bytes)


RUNGS: tuple[implicit.Rung, ...] = (
    (
        "channels_last_half",
        launch_channels_last_half,
        "filters times pixels on tensor cores in half precision, channels side by side",
    ),
)
"""Name, launch and summary."""

PRECISIONS = {"channels_last_half": "fp16"}
"""What the rung multiplies; it adds in float32."""


def _declare(source: str, defines: tuple[tuple[str, Any], ...]) -> None:
    """Declare a build for the test-suite."""
    program(source, **{name: (value,) for name, value in defines})


for _tile in TILES:
    _declare(SOURCE, _defines(_tile, True, 0))
_declare(SOURCE, _defines(TILES[0], False, 2))
for _half_rows in (False, True):
    for _paired in (False, True):
        _declare(LAYING_OUT, _layout_defines(_half_rows, _paired))
