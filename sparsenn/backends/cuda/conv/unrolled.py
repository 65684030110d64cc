"""The kernel of conv2d that takes every convolution: one thread per output, loops over known windows unrolled."""

from __future__ import annotations

import numpy as np

from sparsenn.backends.cuda.conv.geometry import ConvLayer, Geometry, why_too_large
from sparsenn.backends.cuda.conv.kernel import activation_define, convolution, everywhere, grid_of, new_outputs, sizes
from sparsenn.backends.cuda.runtime.loader import specialised
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.prior import Prior
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array

SOURCE = "conv2d/unrolled.cu"

THREADS = 256  # of a block
SECTOR = 3  # log2 of the floats that memory gives at once

_PROGRAM = specialised(SOURCE)


def tile_of(height: int, width: int, threads: int = THREADS) -> tuple[int, int]:
    """Return the width and height of a block's tile of pixels, powers of two.

    Tiles should not stand over at the edges, and be as wide as what is read at once, where images are. Where a tile has
    fewer pixels than a block has threads, the block takes several tiles."""

    def cost(tile: tuple[int, int]) -> tuple[int, ...]:
        covered = parts_of(width, tile[0]) * tile[0] * parts_of(height, tile[1]) * tile[1]
        return covered, -tile[0] * tile[1], -tile[0]

    least = min(SECTOR, (width - 1).bit_length())
    choices = ((1 << across, 1 << down) for across in range(least, 6) for down in range(9) if threads >> across >> down)
    return min(choices, key=cost)


def shape_defines(geometry: Geometry) -> dict[str, int]:
    """Return a convolution's sizes, and how its outputs are cut, as the kernel is compiled for them."""
    width, height = tile_of(geometry.output_height, geometry.output_width)
    tile = {"TILE_WIDTH": width, "TILE_HEIGHT": height, "PLANES": THREADS // (width * height)}
    return {**sizes(geometry), **tile}


def launch_unrolled(layer: ConvLayer, images: Array, outputs: Array | None = None) -> Array:
    """Run any convolution; return its outputs, which are written to `outputs` if given."""
    outputs = new_outputs(layer, images) if outputs is None else outputs
    given, cut = layer.geometry, shape_defines(layer.geometry)
    planes = images.shape[0] * given.filters
    tiles = parts_of(given.output_width, cut["TILE_WIDTH"]) * parts_of(given.output_height, cut["TILE_HEIGHT"])
    grid = grid_of(parts_of(planes, cut["PLANES"]), tiles)
    kernel = _PROGRAM.kernel("conv2d", ACTIVATION=activation_define(layer), **cut)
    launch("conv2d", kernel, grid, (THREADS,), images, layer.weights, layer.bias, layer.clip, outputs, np.int64(planes))
    return outputs


UNROLLED = convolution(
    "conv_unrolled",
    launch_unrolled,
    "compiled for the sizes, loops over the window unrolled",
    everywhere(why_too_large),
    auto=True,
    prior=Prior(compute=0.04),
    reproducible=True,
)
