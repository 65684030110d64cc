"""The first story's own rungs of conv2d in float32: from one thread per output to a product gathered on the way."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.geometry import ConvLayer, Geometry, why_too_large
from sparsenn.backends.cuda.conv.kernel import (
    activation_define,
    convolution,
    everywhere,
    grid_of,
    new_outputs,
    refuse,
    sizes,
    why_not_plain,
)
from sparsenn.backends.cuda.conv.unrolled import tile_of
from sparsenn.backends.cuda.runtime.loader import program, specialised
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array
from sparsenn.studies.conv2d.direct.filters import launch_filters, launch_with_constants
from sparsenn.studies.traffic import naive

THREADS = 256  # of a block
STATIC_SHARED_BYTES = 48 << 10  # shared memory that a kernel may declare
CONSTANT_WEIGHTS = 16_384  # 32-bit weights that constant memory has room for

FEW_CHANNELS = 2
"""Up to here per_shape takes its kernel for large images."""

TILED_SHARED_SOURCE = "studies/conv2d/direct/kernels/04_tiled_shared.cu"
PER_SHAPE_SOURCE = "studies/conv2d/direct/kernels/06_per_shape.cu"
IMPLICIT_GEMM_SOURCE = "studies/conv2d/direct/kernels/07_implicit_gemm.cu"

_BASELINE = program("studies/conv2d/direct/kernels/01_baseline.cu", THREADS=(THREADS,))
_CONSTANT_FILTERS = program("studies/conv2d/direct/kernels/02_constant_filters.cu", THREADS=(THREADS,))
_TILED_SHARED, _PER_SHAPE, _IMPLICIT_GEMM = map(
    specialised, (TILED_SHARED_SOURCE, PER_SHAPE_SOURCE, IMPLICIT_GEMM_SOURCE)
)


# ---- Which convolutions -------------------------------------------------------------------------------------------


def fits_constant(geometry: Geometry) -> str | None:
    """Return why a convolution's weights cannot lie in constant memory; None if they can."""
    weights = geometry.filters * geometry.depth
    if weights <= CONSTANT_WEIGHTS:
        return why_too_large(geometry)
    return f"there are {weights:,} weights; constant memory has room for {CONSTANT_WEIGHTS:,}"


def fits_tiled(geometry: Geometry) -> str | None:
    """Return why tiled_shared cannot run a convolution; None if it can.

    Stride and dilation must be 1, there must be one group, and the pixels of a tile must fit into shared memory.
    """
    reason = why_not_plain(geometry)
    if reason is not None:
        return reason
    width, height = _shared_tile(geometry)
    needed = 4 * (width + geometry.kernel[1] - 1) * (height + geometry.kernel[0] - 1)
    if needed <= STATIC_SHARED_BYTES:
        return None
    return f"a tile takes {needed:,} bytes of shared memory, with {geometry.kernel} weights; there are 48 KiB"


def fits_one_group(geometry: Geometry) -> str | None:
    """Return why a convolution is one of several groups; None if it is of one."""
    if geometry.groups == 1:
        return why_too_large(geometry)
    return f"the convolution has {geometry.groups} groups; the kernel is written for one"


# ---- How outputs are cut ------------------------------------------------------------------------------------------


def _shared_tile(geometry: Geometry) -> tuple[int, int]:

    def covered(width: int) -> int:
        down, across = geometry.output_height, geometry.output_width
        return parts_of(across, width) * parts_of(down, THREADS // width)

    width = min((16, 32, 8), key=covered)
    return width, THREADS // width


def product_tile(filters: int) -> dict[str, int]:
    """Return how implicit_gemm cuts the product: filters and pixels of a block and of a thread, and a step."""
    rows, columns, rows_each, columns_each = next(
        (tile for tile in ((4, 256, 4, 2), (8, 256, 8, 2), (16, 256, 8, 4), (32, 128, 8, 4)) if filters <= tile[0]),
        (64, 128, 8, 8),
    )
    return {"ROWS": rows, "COLUMNS": columns, "ROWS_EACH": rows_each, "COLUMNS_EACH": columns_each, "STEP": 8}


# ---- Launching ----------------------------------------------------------------------------------------------------


def launch_baseline(layer: ConvLayer, images: Array) -> Array:
    """Run any convolution, one thread per output."""
    outputs = new_outputs(layer, images)
    compute_baseline(layer, images, outputs)
    return outputs


def compute_baseline(layer: ConvLayer, images: Array, outputs: Array) -> None:
    """As `launch_baseline`, into an array that is there."""
    grid, arguments = _direct(layer, images, outputs)
    launch("conv2d", _BASELINE.kernel("conv2d"), grid, (THREADS,), layer.weights, *arguments)


def launch_constant_filters(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution of up to 16,384 weights; errors as `launch_baseline`, or it has more."""
    refuse(fits_constant(layer.geometry))
    outputs = new_outputs(layer, images)
    grid, arguments = _direct(layer, images, outputs)
    given = _CONSTANT_FILTERS, {"THREADS": THREADS}, "conv2d", layer.weights
    launch_with_constants(*given, grid, (THREADS,), *arguments)
    return outputs


def _direct(layer: ConvLayer, images: Array, outputs: Array) -> tuple[tuple[int, int], tuple[Any, ...]]:
    """Return the grid and the arguments of a kernel for all sizes."""
    given = layer.geometry
    height, width = given.output_height, given.output_width
    tile = tile_of(height, width)
    planes = images.shape[0] * given.filters
    numbers = (given.channels, given.height, given.width, given.filters, given.groups, *given.kernel)
    window = (*given.stride, *given.padding, *given.dilation, height, width, *(size.bit_length() - 1 for size in tile))
    epilogue = layer.bias, layer.activation, layer.clip
    tiles = parts_of(width, tile[0]) * parts_of(height, tile[1])
    grid = grid_of(parts_of(planes, THREADS // (tile[0] * tile[1])), tiles)
    return grid, (images, *epilogue, outputs, np.int64(planes), *map(np.int32, (*numbers, *window)))


def tiled_defines(geometry: Geometry) -> dict[str, int]:
    """Return a convolution's sizes and the tile of a block, as tiled_shared is compiled for them."""
    width, height = _shared_tile(geometry)
    return {**sizes(geometry), "TILE_WIDTH": width, "TILE_HEIGHT": height}


def launch_tiled_shared(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution that `fits_tiled`; errors as `launch_baseline`, or it does not fit."""
    refuse(fits_tiled(layer.geometry))
    outputs = new_outputs(layer, images)
    given, cut = layer.geometry, tiled_defines(layer.geometry)
    tiles = parts_of(given.output_width, cut["TILE_WIDTH"]) * parts_of(given.output_height, cut["TILE_HEIGHT"])
    grid = grid_of(images.shape[0] * given.filters, tiles)
    launch_filters(layer, images, outputs, _TILED_SHARED, cut, grid, THREADS)
    return outputs


def per_shape_defines(geometry: Geometry) -> dict[str, int]:
    """Return a convolution's sizes, the filters of a thread, and the tile that few_channels takes, for per_shape."""
    most = 4 if geometry.channels <= FEW_CHANNELS else 8
    each = min(most, 1 << (geometry.filters.bit_length() - 1))
    return {**sizes(geometry), "EACH": each, "THREADS": THREADS, "TILE_WIDTH": 32, "TILE_HEIGHT": THREADS // 32}


def launch_per_shape(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution of one group by the kernel for its shape; errors as `launch_baseline`, or it has several."""
    refuse(fits_one_group(layer.geometry))
    outputs = new_outputs(layer, images)
    given = layer.geometry
    defines = per_shape_defines(given)
    bundles = parts_of(given.filters, defines["EACH"])
    how: dict[str, Any] = {}
    rest: tuple[Any, ...] = ()
    if given.channels <= FEW_CHANNELS:
        across, down = defines["TILE_WIDTH"], defines["TILE_HEIGHT"]
        tiles = parts_of(given.output_width, across) * parts_of(given.output_height, down)
        grid = grid_of(images.shape[0] * bundles, tiles)
        how["name"] = "few_channels"
    else:
        pixels = images.shape[0] * given.output_height * given.output_width
        grid = grid_of(parts_of(pixels, THREADS), bundles)
        how["name"] = "many_channels"
        rest = (np.int64(pixels),)
    launch_filters(layer, images, outputs, _PER_SHAPE, defines, grid, THREADS, *rest, **how)
    return outputs


def launch_implicit_gemm(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution of one group as a product of matrices; errors as `launch_per_shape`."""
    refuse(fits_one_group(layer.geometry))
    outputs = new_outputs(layer, images)
    given = layer.geometry
    tile = product_tile(given.filters)
    pixels = images.shape[0] * given.output_height * given.output_width
    threads = tile["ROWS"] // tile["ROWS_EACH"] * (tile["COLUMNS"] // tile["COLUMNS_EACH"])
    grid = (parts_of(pixels, tile["COLUMNS"]) * parts_of(given.filters, tile["ROWS"]),)
    defines = {**sizes(given), **tile, "ACTIVATION": activation_define(layer)}
    arguments = images, layer.weights, layer.bias, layer.clip, outputs, np.int64(pixels)
    launch("conv2d", _IMPLICIT_GEMM.kernel("conv2d", **defines), grid, (threads,), *arguments)
    return outputs


# ---- Rungs --------------------------------------------------------------------------------------------------------

BASELINE = convolution(
    "conv_baseline",
    launch_baseline,
    "one thread per output, tiles of pixels, everything from global memory",
    everywhere(why_too_large),
    traffic=naive,
)
CONSTANT_FILTERS = convolution(
    "conv_constant_filters",
    launch_constant_filters,
    "weights in constant memory",
    everywhere(fits_constant),
    needs=("filters that fit into constant memory",),
)
TILED_SHARED = convolution(
    "conv_tiled_shared",
    launch_tiled_shared,
    "the pixels of a tile in shared memory, channel by channel",
    everywhere(fits_tiled),
    needs=("a tile of pixels that fits into shared memory",),
)
PER_SHAPE = convolution(
    "conv_per_shape",
    launch_per_shape,
    "several filters per thread; separate kernels for few and for many channels",
    everywhere(fits_one_group),
    needs=("one group",),
)
IMPLICIT_GEMM = convolution(
    "conv_implicit_gemm",
    launch_implicit_gemm,
    "a product of matrices, gathered on the way to shared memory",
    everywhere(fits_one_group),
    needs=("one group",),
)
