"""What the kernels that `auto` chooses from should take for a convolution.

The plans of each kernel come from estimates of clocks that only have to order one kernel's own ways. Across kernels
they are brought in line by what an H200 took for the shapes of `bench/record_conv2d.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from sparsenn.backends.cuda.conv import (
    channels_last,
    implicit_plan,
    register_tiled,
    tensor_image,
    tensor_plan,
    warpgroup_plan,
    warpgroup_rows_plan,
)
from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.backends.cuda.gemm import tensor_tiles
from sparsenn.backends.cuda.sparse.tiling import Limits

__all__ = ["IMAGES", "SECONDS"]

IMAGES = 256
"""That estimates are made for: enough for most devices to be full, as of few pixels."""

CLOCK = 1.75e9
"""Of a multiprocessor, a second."""

SHARES = {
    "register_tiled": 1.15,
    "tensor": 1.0,
    "implicit float32": 1.7,
    "implicit tf32": 2.1,
    "implicit fp16": 2.3,
    "channels_last": 1.7,
    "warpgroup": 1.2,
    "warpgroup_rows": 1.07,
}
"""Clocks taken for one that was estimated."""

LAID_OUT_BYTES = 3.2e12
"""A second, read and written when images are laid out anew."""

WRITTEN_BYTES = 2.5e12
"""A second, of outputs that are written while others are multiplied."""

UNROLLED_RATE = 2.5e12
"""Multiply-adds a second that a kernel with a thread an output reaches."""


def _tensor(kind: tensor_image.Kind) -> Callable[[Geometry], float]:
    def seconds(geometry: Geometry) -> float:
        return SHARES["tensor"] * tensor_plan.clocks(kind, geometry, IMAGES, Limits()) / CLOCK

    return seconds


def _implicit(kind: tensor_tiles.Kind) -> Callable[[Geometry], float]:
    share = SHARES[f"implicit {kind.name}"]

    def seconds(geometry: Geometry) -> float:
        return share * implicit_plan.clocks(kind, geometry, IMAGES, Limits()) / CLOCK

    return seconds


def _register_tiled(geometry: Geometry) -> float:
    tiling = register_tiled.tiling_for(geometry, IMAGES, Limits())
    if tiling is None:
        return inf
    return SHARES["register_tiled"] * register_tiled.clocks(geometry, tiling, IMAGES, Limits()) / CLOCK


def _channels_last(geometry: Geometry) -> float:
    pixels = IMAGES * geometry.height * geometry.width
    laid_out = 4 * geometry.channels + 2 * channels_last.padded_channels(geometry)
    multiplied = SHARES["channels_last"] * channels_last.clocks(geometry, IMAGES, Limits()) / CLOCK
    return multiplied + pixels * laid_out / LAID_OUT_BYTES


def _warpgroup(kind: tensor_tiles.Kind) -> Callable[[Geometry], float]:
    share = SHARES["warpgroup"]

    def seconds(geometry: Geometry) -> float:
        made = warpgroup_plan.plan(kind, geometry, IMAGES, Limits())
        if made is None:
            return inf
        laid_out = 4 * IMAGES * geometry.channels * geometry.height * geometry.width + made.laid_bytes(kind)
        written = 4 * IMAGES * geometry.filters * geometry.output_height * geometry.output_width
        multiplied = share * warpgroup_plan.clocks(kind, geometry, IMAGES, Limits()) / CLOCK
        return laid_out / LAID_OUT_BYTES + max(multiplied, written / WRITTEN_BYTES)

    return seconds


def _warpgroup_rows(geometry: Geometry) -> float:
    return SHARES["warpgroup_rows"] * warpgroup_rows_plan.clocks(geometry, IMAGES, Limits()) / CLOCK


def _unrolled(geometry: Geometry) -> float:
    return IMAGES * geometry.multiply_adds / UNROLLED_RATE


SECONDS: dict[str, Callable[[Geometry], float]] = {
    "unrolled": _unrolled,
    "register_tiled": _register_tiled,
    "tensor_float32": _tensor(tensor_image.FLOAT32),
    "tensor_tf32": _tensor(tensor_image.TF32),
    "tensor_half": _tensor(tensor_image.HALF),
    "implicit_float32": _implicit(tensor_tiles.FLOAT32),
    "implicit_tf32": _implicit(tensor_tiles.TF32),
    "implicit_half": _implicit(tensor_tiles.HALF),
    "channels_last_half": _channels_last,
    "warpgroup_float32": _warpgroup(tensor_tiles.FLOAT32),
    "warpgroup_tf32": _warpgroup(tensor_tiles.TF32),
    "warpgroup_half": _warpgroup(tensor_tiles.HALF),
    "warpgroup_rows_half": _warpgroup_rows,
}
"""By kernel: estimates the seconds for `IMAGES` images together."""
