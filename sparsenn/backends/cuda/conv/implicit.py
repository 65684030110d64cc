"""The rungs of conv2d that multiply filters and pixels on tensor cores, made for many channels.

A launch takes a layer and images, a CuPy array (images, channels, height, width) of float32 in row-major order, and
returns the outputs, a new CuPy array (images, filters, output height, output width) of float32. `launch_implicit_half`
takes images of float16 too, and then returns float16. A launch queues its work on the current stream and does not wait
for it, but for the first one of a layer, which compiles a kernel for its tile and lays the filters out.

What a number may be off by: `implicit_float32` keeps float32's precision, infinities and NaN included, but denormal
numbers count as zero. `implicit_tf32` rounds pixels and weights to 11 bits. So does `implicit_half`, to which pixels
beyond 65,504 are infinite; weights must not exceed that. Sums are float32. A launch gives the same bits every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, Geometry
from sparsenn.backends.cuda.conv.implicit_plan import TILES, Plan, arranged, plan
from sparsenn.backends.cuda.conv.layer import ConvLayer
from sparsenn.backends.cuda.conv.specialised import check_half_range, new_outputs, refuse
from sparsenn.backends.cuda.gemm.tensor_tiles import (
    FLOAT32,
    HALF,
    TF32,
    Kind,
    Tile,
    built,
    counters,
    partial_sums,
)
from sparsenn.backends.cuda.kept import kept
from sparsenn.backends.cuda.loader import cupy, program
from sparsenn.backends.cuda.recorder import launch
from sparsenn.backends.cuda.sparse.tiling import Limits, device_limits
from sparsenn.errors import UsageError
from sparsenn.formats import Array

__all__ = [
    "ACTIVATIONS",
    "MANY",
    "PRECISIONS",
    "RUNGS",
    "Rung",
    "fits",
    "kept_filters",
    "kernel_defines",
    "launch_implicit_float32",
    "launch_implicit_half",
    "launch_implicit_tf32",
]

Rung = tuple[str, Callable[[ConvLayer, Array], Array], str]

SOURCES = {
    FLOAT32: "conv2d/30_implicit_float32.cu",
    TF32: "conv2d/31_implicit_tf32.cu",
    HALF: "conv2d/32_implicit_half.cu",
}

LEAST_LIMITS = Limits(1, 99 << 10, 100 << 10)
"""Shared memory of the devices of compute capability 8.0 and newer that have least: 8.6 and 8.9."""

MANY = 1 << 10
"""Images of which a block sees as many as of any larger number."""

ACTIVATIONS = ("RELU", "SIGMOID", "TANH", "IDENTITY")
"""In the order of `kernels/common.cuh`."""


def fits(geometry: Geometry) -> str | None:
    """Return why the kernels cannot run a convolution; None if they can, on any device of compute capability 8.0."""
    if geometry.groups > 1:
        return f"{geometry.groups} groups; the kernel is written for one"
    pixels = geometry.output_height * geometry.output_width
    if max(geometry.channels * geometry.height * geometry.width, 2 * geometry.filters * pixels) > MOST_NUMBERS:
        return f"an image or its outputs have more numbers than the {MOST_NUMBERS:,} that the kernel counts"
    if any(plan(kind, geometry, MANY, False, LEAST_LIMITS) is None for kind in (FLOAT32, TF32, HALF)):
        return (
            f"the pixels that a block of outputs sees, of {geometry.kernel[0]} x {geometry.kernel[1]} taps, stride "
            f"{geometry.stride} and dilation {geometry.dilation}, do not fit into the {LEAST_LIMITS.block_bytes >> 10} "
            "KiB of shared memory that every device has"
        )
    return None


def _paired(geometry: Geometry, images: Array) -> bool:
    """Return whether images can be read two pixels at a time: those are a word in memory, or padding, both."""
    pointer: Any = images.data
    halves = images.dtype == np.float16
    return bool(halves and geometry.width % 2 == 0 and geometry.stride[1] == 1 and pointer.ptr % 4 == 0)


def kernel_defines(
    kind: Kind, tile: Tile, paired: bool, half_rows: bool, activation: int
) -> tuple[tuple[str, Any], ...]:
    """Return what a kernel is compiled with."""
    images = {"INPUT": "half_bits" if half_rows else "float", "PAIRED": int(paired)}
    found = tile.defines(kind) | images | {"ACTIVATION": ACTIVATIONS[activation]}
    return tuple(sorted(found.items()))


@dataclass(frozen=True, eq=False)
class _Prepared:
    """What launches of one size have in common."""

    kernel: Any
    plan: Plan
    numbers: tuple[np.int32, ...]


@cache
def _prepared(
    kind: Kind, geometry: Geometry, count: int, paired: bool, half_rows: bool, activation: int, device: int
) -> _Prepared:
    refuse(fits(geometry))
    limits = device_limits(device)
    made = plan(kind, geometry, count, paired, limits)
    if made is None:
        held = limits.block_bytes >> 10
        raise UsageError(f"the device's {held} KiB of shared memory have no room for {geometry}")
    defines = kernel_defines(kind, made.tile, paired, half_rows, activation)
    return _Prepared(built(SOURCES[kind], "conv2d", defines, device), made, made.numbers(geometry, count))


def _run(kind: Kind, layer: ConvLayer, images: Array) -> Array:
    outputs = new_outputs(layer, images, (np.float32, np.float16) if kind is HALF else (np.float32,))
    geometry, paired = layer.geometry, _paired(layer.geometry, images)
    half_rows = images.dtype == np.float16
    # Pixels, and outputs of a strip, are counted in 32 bits; strips together may be wider than the outputs.
    most = max(1, MOST_NUMBERS // (2 * geometry.output_height * geometry.output_width + 128 * geometry.output_height))
    for first in range(0, images.shape[0], most):
        some = images if images.shape[0] <= most else images[first : first + most]
        ready = _prepared(kind, geometry, some.shape[0], paired, half_rows, int(layer.activation), layer.device)
        _launch(kind, layer, ready, some, outputs if some is images else outputs[first : first + most])
    if not images.shape[0]:
        refuse(fits(geometry))
    return outputs


def kept_filters(layer: ConvLayer, kind: Kind) -> Array:
    """Return a layer's filters in the kernels' order; they are laid out once."""
    return kept(layer, ("implicit", kind), lambda: arranged(cupy(), kind, layer.weights))


def _launch(kind: Kind, layer: ConvLayer, ready: _Prepared, images: Array, outputs: Array) -> None:
    made = ready.plan
    filters = kept_filters(layer, kind)
    joined = partial_sums(made.tile, made.tiles, made.parts), counters(made.tiles if made.parts > 1 else 0)
    arguments = images, filters, layer.weights, layer.bias, outputs, *joined, layer.clip, *ready.numbers
    blocks, threads = made.tiles * made.parts, made.tile.threads
    launch("conv2d", ready.kernel, (blocks,), (threads,), *arguments, shared_bytes=made.shared_bytes)


def launch_implicit_float32(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution to float32's precision.

    Raises
    ------
    ShapeError
        The images do not have the shape that the layer was uploaded for.
    UsageError
        They are not of a type that the rung takes, or the kernel cannot run the convolution.
    """
    return _run(FLOAT32, layer, images)


def launch_implicit_tf32(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution of numbers rounded to TF32; errors as `launch_implicit_float32`."""
    return _run(TF32, layer, images)


def launch_implicit_half(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution of numbers rounded to half precision; images and outputs float32, or both float16.

    Raises
    ------
    ShapeError
        The images do not have the shape that the layer was uploaded for.
    UsageError
        As `launch_implicit_float32`, or a weight is beyond half precision.
    """
    check_half_range(layer)
    return _run(HALF, layer, images)


RUNGS: tuple[Rung, ...] = (
    (
        "implicit_float32",
        launch_implicit_float32,
        "filters times pixels on tensor cores, numbers split in two",
    ),
    ("implicit_tf32", launch_implicit_tf32, "filters times pixels on tensor cores in TF32"),
    ("implicit_half", launch_implicit_half, "filters times pixels on tensor cores in half precision, sums in float32"),
)
"""Name, launch and summary, in the ladder's order."""

PRECISIONS = {"implicit_float32": "float32", "implicit_tf32": "tf32", "implicit_half": "fp16"}
"""What each rung multiplies; it adds in float32."""


def _declare(kind: Kind, tile: Tile, paired: bool, half_rows: bool, activation: int) -> None:
    """Declare a build for the test-suite."""
    defines = kernel_defines(kind, tile, paired, half_rows, activation)
    program(SOURCES[kind], **{name: (value,) for name, value in defines})


for _kind, _tiles in TILES.items():
    for _tile in _tiles if _kind is not TF32 else _tiles[:3]:
        _declare(_kind, _tile, _kind is HALF, _kind is HALF, 0)
    _declare(_kind, _tiles[0], False, False, 2)
_declare(HALF, TILES[HALF][0], False, True, 3)
