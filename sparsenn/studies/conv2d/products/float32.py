"""The second story's rungs of conv2d, a convolution as a product of matrices; and a library's product beside them.

Filters are rows of the left matrix. The right one has a column for each pixel of the outputs, with the inputs under a
filter there; all rungs but the library's look its elements up in the images.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from sparsenn.backends.cuda.conv.geometry import ConvLayer, Geometry, why_too_large
from sparsenn.backends.cuda.conv.kernel import activation_define, convolution, everywhere, new_outputs, refuse, sizes
from sparsenn.backends.cuda.runtime.device import cupy, machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device
from sparsenn.backends.cuda.runtime.loader import Program, specialised
from sparsenn.backends.cuda.runtime.recorder import launch, section
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array
from sparsenn.studies.gemm.tiling import DEEP, MODEL, cut_for
from sparsenn.studies.traffic import block_tiled, coalesced, naive, shared_tiled, tiled

THREADS = 256  # of a block that computes an output a thread

# Tiled rungs.
SIDE = 16  # threads along a side of a tile
EACH = 4  # outputs of a thread along a side of a tile
TERMS = 16  # terms in shared memory at a time

COLUMN_BYTES = 256 << 20
"""Of the library's matrix of windows at a time, if an image's takes no more than that."""

_ACROSS: Mapping[str, int | str] = {"THREADS": THREADS}
_TILED: Mapping[str, int | str] = {"SIDE": SIDE, "EACH": EACH}
_SHARED: Mapping[str, int | str] = {**_TILED, "TERMS": TERMS}

_FOLDER = "studies/conv2d/products/kernels"
_NAIVE_SOURCE = f"{_FOLDER}/01_naive.cu"
_COALESCED_SOURCE = f"{_FOLDER}/02_coalesced.cu"
_BLOCK_TILED_SOURCE = f"{_FOLDER}/03_block_tiled.cu"
_SHARED_TILED_SOURCE = f"{_FOLDER}/04_shared_tiled.cu"
_COLUMNS_SOURCE = f"{_FOLDER}/im2col.cu"
VECTORIZED_SOURCE = f"{_FOLDER}/05_vectorized.cu"

SHAPES: dict[str, Mapping[str, int | str]] = {
    _NAIVE_SOURCE: _ACROSS,
    _COALESCED_SOURCE: _ACROSS,
    _BLOCK_TILED_SOURCE: _TILED,
    _SHARED_TILED_SOURCE: _SHARED,
    _COLUMNS_SOURCE: _ACROSS,
}
"""By source: what it is compiled with besides a convolution's sizes and activation."""

_NAIVE, _COALESCED, _BLOCK_TILED, _SHARED_TILED, _COLUMNS = map(specialised, SHAPES)
_VECTORIZED = specialised(VECTORIZED_SOURCE)


def fits(geometry: Geometry) -> str | None:
    """Return why the rungs cannot run a convolution; None if they can: in one group, and of no gigantic size."""
    if geometry.groups != 1:
        return f"the convolution has {geometry.groups} groups; the kernel is written for one"
    return why_too_large(geometry)


def launch_vectorized(layer: ConvLayer, images: Array) -> Array:
    """Compute 8 filters at 8 pixels a thread, tiles of weights and inputs copied ahead."""
    cp = cupy()
    outputs = _outputs(layer, images)
    if not images.shape[0]:
        return outputs
    geometry = layer.geometry
    pixels = images.shape[0] * geometry.output_height * geometry.output_width
    cut = cut_for(geometry.filters, pixels, geometry.depth, machine_of(layer.device).multiprocessors)
    defines = {**_numbers(layer), **cut.tiling.defines()}
    padded = parts_of(geometry.filters, cut.tiling.rows) * cut.tiling.rows
    weights = cache_on_device(layer, ("terms", padded), lambda: term_matrix(layer.weights, padded))
    sums = outputs if cut.parts == 1 else cp.empty((cut.parts, *outputs.shape), np.float32)
    grid = cut.tiling.tiles(geometry.filters, pixels), cut.parts
    given = np.int64(images.shape[0]), np.int32(cut.deep), images, weights, layer.bias, layer.clip, sums
    launch("conv2d", _VECTORIZED.kernel("conv2d", **defines), grid, (cut.tiling.threads,), *given)
    if cut.parts > 1:
        rest = np.int64(outputs.size), np.int32(cut.parts), sums, layer.bias, layer.clip, outputs
        adding = _VECTORIZED.kernel("add_parts", **defines)
        launch("conv2d", adding, (-(-outputs.size // THREADS),), (THREADS,), *rest)
    return outputs


def launch_library(layer: ConvLayer, images: Array) -> Array:
    """Write windows out as columns, some images at a time, and multiply by cuBLAS."""
    cp = cupy()
    outputs = _outputs(layer, images)
    geometry, defines = layer.geometry, {**_numbers(layer), **_ACROSS}
    gather, finish = (_COLUMNS.kernel(name, **defines) for name in ("gather", "finish"))
    pixels, count = geometry.output_height * geometry.output_width, images.shape[0]
    together = max(1, min(count, COLUMN_BYTES // (4 * geometry.depth * pixels)))
    columns = cp.empty((together, geometry.depth, pixels), np.float32)
    filters = layer.weights.reshape(geometry.filters, geometry.depth)
    for first in range(0, count, together):
        taken = images[first : first + together]
        windows, sums = columns[: taken.shape[0]], outputs[first : first + together]
        size = np.int64(windows.size)
        launch("conv2d", gather, (-(-windows.size // THREADS),), (THREADS,), size, taken, windows)
        with section("conv2d"):
            cp.matmul(filters, windows, out=sums.reshape(taken.shape[0], geometry.filters, pixels))
    given = np.int64(outputs.size), outputs, layer.bias, layer.clip
    launch("conv2d", finish, (-(-outputs.size // THREADS),), (THREADS,), *given)
    return outputs


def term_matrix(weights: Array, filters: int) -> Array:
    """Return weights as `conv_vectorized` reads them: a row for each term of a sum, a number in it for each filter.

    Terms are in the order of the weights, or, if there are 8, 16, ... channels, so that 8 channels come together: first
    8 channels at one element of the filters, then the same channels at the next element, then the next channels.

    `weights` are (filters, channels, kernel height, kernel width), on the device; `filters` includes those that are
    added, and is a multiple of a tile's rows. Returns float32 on the device, (terms, filters), zero where there is
    nothing; the terms are a multiple of 8.
    """
    count, channels = weights.shape[:2]
    depth = weights.size // count
    if channels % DEEP == 0:
        by_eight = weights.reshape(count, channels // DEEP, DEEP, depth // channels)
        terms = by_eight.transpose(1, 3, 2, 0).reshape(depth, count)
    else:
        terms = weights.reshape(count, depth).T
    matrix: Array = cupy().zeros((parts_of(depth, DEEP) * DEEP, filters), np.float32)
    matrix[:depth, :count] = terms
    return matrix


def _numbers(layer: ConvLayer) -> dict[str, int | str]:
    return {**sizes(layer.geometry), "ACTIVATION": activation_define(layer)}


def _outputs(layer: ConvLayer, images: Array) -> Array:
    refuse(fits(layer.geometry))
    return new_outputs(layer, images)


def _launch(program: Program, layer: ConvLayer, images: Array, tile: int, threads: int) -> Array:
    """Launch a rung with a block for each tile, or, if those are single outputs, for each `threads` outputs."""
    outputs = _outputs(layer, images)
    geometry = layer.geometry
    pixels = images.shape[0] * geometry.output_height * geometry.output_width
    tiles = -(-geometry.filters // tile) * -(-pixels // tile)
    blocks = tiles if tile > 1 else -(-tiles // threads)
    given = np.int64(images.shape[0]), images, layer.weights, layer.bias, layer.clip, outputs
    found = program.kernel("conv2d", **_numbers(layer), **SHAPES[program.source])
    launch("conv2d", found, (blocks,), (threads,), *given)
    return outputs


# ---- Rungs --------------------------------------------------------------------------------------------------------

_described = partial(convolution, fits=everywhere(fits), needs=("one group",))

NAIVE = _described(
    "conv_naive",
    partial(_launch, _NAIVE, tile=1, threads=THREADS),
    "one thread per output, neighbours in different filters",
    traffic=naive,
)
COALESCED = _described(
    "conv_coalesced",
    partial(_launch, _COALESCED, tile=1, threads=THREADS),
    "one thread per output, neighbours side by side",
    traffic=coalesced,
)
BLOCK_TILED = _described(
    "conv_block_tiled",
    partial(_launch, _BLOCK_TILED, tile=SIDE * EACH, threads=SIDE * SIDE),
    "squares of filters and pixels in a thread's registers",
    traffic=tiled(block_tiled, SIDE * EACH),
)
SHARED_TILED = _described(
    "conv_shared_tiled",
    partial(_launch, _SHARED_TILED, tile=SIDE * EACH, threads=SIDE * SIDE),
    "squares in registers, tiles of weights and windows in shared memory",
    traffic=tiled(shared_tiled, SIDE * EACH, thread_tile=(EACH, EACH)),
)
VECTORIZED = _described(
    "conv_vectorized",
    launch_vectorized,
    "four numbers per read, 8 x 8 outputs per thread, tiles copied ahead",
    traffic=MODEL,
)

LIBRARY = _described("conv_library", launch_library, "windows written out as columns, and cuBLAS's product")
"""What a library does, for comparison."""
