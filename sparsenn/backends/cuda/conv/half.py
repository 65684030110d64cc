"""The rung of the conv2d ladder whose arithmetic is half precision.

A launch takes a convolution and images, a CuPy array (images, channels, height, width) of float32 or float16 in
row-major order, and returns the outputs, a new CuPy array (images, filters, output height, output width) of the same
type. float32 images are first converted, by a kernel of its own. It queues its work on the current stream and does not
wait for it, but for the first launch of a layer, which looks at its weights, and of a size, which compiles a kernel.

What a number may be off by: products, and sums of up to `CHAIN` of them, are rounded to half precision, each time by up
to 2⁻¹¹ of the sum so far; sums of those, bias and activation are float32. Pixels, and sums of `CHAIN` products, become
infinite beyond 65,504; weights must not exceed that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.convert import to_half
from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.backends.cuda.conv.layer import ConvLayer
from sparsenn.backends.cuda.conv.specialised import (
    CACHED_WEIGHTS,
    check_half_range,
    grid_of,
    launch_filters,
    new_outputs,
    parts,
    refuse,
    sizes,
    why_not_plain,
)
from sparsenn.backends.cuda.conv.study import Rung, tile_of
from sparsenn.backends.cuda.kept import kept
from sparsenn.backends.cuda.loader import cupy, program
from sparsenn.formats import Array

__all__ = ["CHAIN", "PRECISION", "RUNGS", "fits", "launch_half"]

PRECISION = "fp16"
"""Of pixels, weights and short sums."""

CHAIN = 14
"""Products that are added up in half precision: two rows of a 7 x 7 window, off by up to 14 · 2⁻¹¹ of their sizes."""

THREADS = 256
"""Of a block."""

SOURCE = "conv2d/05_half.cu"


def fits(geometry: Geometry) -> str | None:
    """Return why a convolution cannot be run; None if stride and dilation are 1 and there is one group."""
    return why_not_plain(geometry)


def _cut(geometry: Geometry, aligned: bool) -> dict[str, int]:
    """Return the defines of a convolution: its sizes, tiles of pairs of pixels, and whether pairs are read at once."""
    width, height = tile_of(geometry.output_height, parts(geometry.output_width, 2), THREADS)
    paired = aligned and geometry.width % 2 == 0 and geometry.padding[1] % 2 == 0
    tile = {"TILE_PAIRS": width, "TILE_HEIGHT": height, "PLANES": THREADS // (width * height)}
    return {**sizes(geometry), **tile, "PAIRED": int(paired), "CHAIN": CHAIN}


def launch_half(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution that `fits` in half precision, two pixels a thread.

    Raises
    ------
    ShapeError
        The images do not have the shape that the layer was uploaded for.
    UsageError
        They are neither float32 nor float16, or not in row-major order; the convolution does not fit, or has a weight
        beyond half precision.
    """
    given = layer.geometry
    refuse(fits(given))
    outputs = new_outputs(layer, images, (np.float32, np.float16))
    doubled = kept(layer, "doubled", lambda: _doubled(layer))
    halves = to_half(images) if images.dtype == np.float32 else images
    pointer: Any = halves.data
    cut = _cut(given, pointer.ptr % 4 == 0)
    planes = images.shape[0] * given.filters
    tiles = parts(parts(given.output_width, 2), cut["TILE_PAIRS"]) * parts(given.output_height, cut["TILE_HEIGHT"])
    defines = {**cut, "OUTPUT": "float" if images.dtype == np.float32 else "half_bits"}
    grid = grid_of(parts(planes, cut["PLANES"]), tiles)
    launch_filters(layer, halves, outputs, SOURCE, defines, grid, THREADS, np.int64(planes), weights=doubled)
    return outputs


def _doubled(layer: ConvLayer) -> Array:
    """Return each weight in half precision twice in a word, uint32."""
    check_half_range(layer)
    cp = cupy()
    doubled: Array = cp.repeat(layer.weights.astype(np.float16).reshape(-1), 2).view(np.uint32)
    return doubled


RUNGS: tuple[Rung, ...] = (
    ("half", launch_half, "half precision, two neighbouring pixels an instruction; float32 images converted before"),
)
"""Name, launch and summary."""


# ---- What the test-suite compiles ---------------------------------------------------------------------------------


def _declare(geometry: Geometry, activation: int, aligned: bool, output: str) -> None:
    """Declare the build that a convolution leads to."""
    constant = int(geometry.filters * geometry.depth <= CACHED_WEIGHTS)
    others = {"ACTIVATION": activation, "FILTERS_CONSTANT": constant}
    program(SOURCE, OUTPUT=(output,), **{name: (value,) for name, value in (_cut(geometry, aligned) | others).items()})


_declare(Geometry(1, 86, 86, 4, (7, 7)), 0, True, "float")
_declare(Geometry(4, 40, 40, 16, (7, 7)), 4, True, "half_bits")
_declare(Geometry(512, 14, 14, 512, (3, 3), padding=(1, 1)), 0, True, "half_bits")
_declare(Geometry(3, 6, 9, 2, (4, 2), padding=(0, 2)), 1, False, "float")
