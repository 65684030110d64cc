"""The first story's rung whose arithmetic is half precision.

A launch takes images of float32 or float16, and returns outputs of the same type. float32 images are first converted,
by a kernel of its own. The first launch of a layer looks at its weights.

What a number may be off by: products, and sums of up to `CHAIN` of them, are rounded to half precision, each time by up
to 2⁻¹¹ of the sum so far; sums of those, bias and activation are float32. Pixels, and sums of `CHAIN` products, become
infinite beyond 65,504; weights must not exceed that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.geometry import ConvLayer, Geometry
from sparsenn.backends.cuda.conv.kernel import (
    check_half_range,
    convolution,
    everywhere,
    grid_of,
    new_outputs,
    refuse,
    sizes,
    why_not_plain,
)
from sparsenn.backends.cuda.conv.unrolled import tile_of
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device
from sparsenn.backends.cuda.runtime.loader import program, specialised
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.sizes import parts_of
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.studies.conv2d.direct.filters import launch_filters

THREADS = 256  # of a block
NUMBERS = 8  # that a thread takes at a time
MOST_BLOCKS = 1 << 16  # they loop over what is left
ALIGNMENT = 16  # bytes

_CONVERT = program("studies/conv2d/direct/kernels/convert.cu", THREADS=(THREADS,))


def to_half(array: Array) -> Array:
    """Return a float32 device array's numbers as float16, rounded to nearest; 65,520 and above become infinite.

    `array`: of any shape, contiguous.
    """
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        raise UsageError(
            f"an array of {array.dtype}, strides {array.strides}, cannot be converted; give float32 in row-major order"
        )
    pointer: Any = array.data
    if pointer.ptr % ALIGNMENT:
        array = array.copy()
    converted: Array = cupy().empty(array.shape, np.float16)
    blocks = min(-(-array.size // (NUMBERS * THREADS)), MOST_BLOCKS)
    launch("conv2d", _CONVERT.kernel("to_float16"), (blocks,), (THREADS,), np.int64(array.size), array, converted)
    return converted


CHAIN = 14
"""Products that are added up in half precision: two rows of a 7 x 7 window, off by up to 14 · 2⁻¹¹ of their sizes."""

SOURCE = "studies/conv2d/direct/kernels/05_half.cu"

_PROGRAM = specialised(SOURCE)


def shape_defines(geometry: Geometry, aligned: bool) -> dict[str, int]:
    """Return a convolution's sizes, tiles of pairs of pixels, and whether pairs are read at once, for the kernel.

    `aligned`: the images begin at a multiple of 4 bytes.
    """
    width, height = tile_of(geometry.output_height, parts_of(geometry.output_width, 2), THREADS)
    paired = aligned and geometry.width % 2 == 0 and geometry.padding[1] % 2 == 0
    tile = {"TILE_PAIRS": width, "TILE_HEIGHT": height, "PLANES": THREADS // (width * height)}
    return {**sizes(geometry), **tile, "PAIRED": int(paired), "CHAIN": CHAIN}


def launch_half(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution of stride 1, dilation 1 and one group in half precision, two pixels a thread."""
    given = layer.geometry
    refuse(why_not_plain(given))
    outputs = new_outputs(layer, images, (np.float32, np.float16))
    doubled = cache_on_device(layer, "doubled", lambda: _doubled(layer))
    halves = to_half(images) if images.dtype == np.float32 else images
    pointer: Any = halves.data
    cut = shape_defines(given, pointer.ptr % 4 == 0)
    planes = images.shape[0] * given.filters
    pairs = parts_of(given.output_width, 2)
    tiles = parts_of(pairs, cut["TILE_PAIRS"]) * parts_of(given.output_height, cut["TILE_HEIGHT"])
    defines = {**cut, "OUTPUT": "float" if images.dtype == np.float32 else "half_bits"}
    grid = grid_of(parts_of(planes, cut["PLANES"]), tiles)
    launch_filters(layer, halves, outputs, _PROGRAM, defines, grid, THREADS, np.int64(planes), weights=doubled)
    return outputs


def _doubled(layer: ConvLayer) -> Array:
    """Return each weight in half precision twice in a word, uint32."""
    check_half_range(layer)
    cp = cupy()
    return cp.repeat(layer.weights.astype(np.float16).reshape(-1), 2).view(np.uint32)


HALF = replace(
    convolution(
        "conv_half",
        launch_half,
        "half precision, two neighbouring pixels per instruction; float32 images converted first",
        everywhere(why_not_plain),
        precision="float16",
        half_rows=True,
    ),
    adds_in_half=True,
)
