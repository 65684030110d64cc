"""The rungs of conv2d that multiply filters and pixels by whole warpgroups, on compute capability 9.0.

A launch takes a layer and images, a CuPy array (images, channels, height, width) of float32 in row-major order, and
returns the outputs, a new CuPy array (images, filters, output height, output width) of float32. `launch_warpgroup_half`
takes images of float16 too, and then returns float16. A launch queues its work on the current stream and does not wait
for it, but for the first one of a layer, which compiles kernels and lays the filters out.

What a number may be off by: `warpgroup_float32` keeps float32's precision, infinities and NaN included, but denormal
numbers count as zero. `warpgroup_tf32` rounds pixels and weights to 11 bits. So does `warpgroup_half`, to which pixels
beyond 65,504 are infinite; weights must not exceed that. Sums are float32. A launch gives the same bits every time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, Geometry, why_too_large
from sparsenn.backends.cuda.conv.implicit import ACTIVATIONS, MANY, Rung
from sparsenn.backends.cuda.conv.layer import ConvLayer
from sparsenn.backends.cuda.conv.specialised import check_half_range, new_outputs, refuse
from sparsenn.backends.cuda.conv.warpgroup_plan import SHAPES, Plan, Tile, arranged, plan
from sparsenn.backends.cuda.gemm.tensor_tiles import FLOAT32, HALF, TF32, Kind, built, parts_of
from sparsenn.backends.cuda.kept import kept
from sparsenn.backends.cuda.loader import cupy, program
from sparsenn.backends.cuda.recorder import launch
from sparsenn.backends.cuda.sparse.tiling import Limits, device_limits
from sparsenn.errors import UsageError
from sparsenn.formats import Array

__all__ = [
    "FITS",
    "KINDS",
    "PARAMETERS",
    "PRECISIONS",
    "RUNGS",
    "launch_warpgroup_float32",
    "launch_warpgroup_half",
    "launch_warpgroup_tf32",
    "launch_with",
    "why_not_here",
    "why_not_numbers",
]

CAPABILITY = 90
"""Compute capability 9.0, times ten: the instructions are no other's."""

ARCHITECTURE = "sm_90a"

SOURCES = {
    FLOAT32: "conv2d/40_warpgroup_float32.cu",
    TF32: "conv2d/41_warpgroup_tf32.cu",
    HALF: "conv2d/42_warpgroup_half.cu",
}

LAYING_OUT = "conv2d/unit_planes.cu"

PLACES, UNITS = 256, 4
"""Of a block that lays images out."""

HELD_BYTES = 1 << 30
"""Of images that are laid out at a time: little beside the device's memory."""


def _fits(kind: Kind, geometry: Geometry) -> str | None:
    if geometry.groups > 1 or geometry.stride != (1, 1):
        return f"stride {geometry.stride}, groups {geometry.groups}; the kernel is written for stride 1 and one group"
    if reason := why_too_large(geometry):
        return reason
    if plan(kind, geometry, 1, Limits()) is None or plan(kind, geometry, MANY, Limits()) is None:
        return (
            f"the pixels that a block of outputs sees, of {geometry.kernel[0]} x {geometry.kernel[1]} taps and rows of "
            f"{geometry.width}, do not fit into the {Limits().block_bytes >> 10} KiB of shared memory"
        )
    return None


def why_not_here() -> str | None:
    """Return why the current device cannot run the kernels; None if it can, or where there is none to ask."""
    try:
        capability = int(cupy().cuda.Device().compute_capability)
    except (ImportError, RuntimeError):
        return None
    if capability == CAPABILITY:
        return None
    return f"the GPU has compute capability {capability / 10:.1f}; the kernel is written for {CAPABILITY / 10:.1f}"


def _pieces(kind: Kind, geometry: Geometry, count: int, limits: Limits) -> int:
    """Return how many of `count` images are laid out, and counted, at a time."""
    one = plan(kind, geometry, MANY, limits)
    assert one is not None, "`fits` refuses what has no plan"
    image = max(1, one.laid_bytes(kind) // MANY)
    numbers = max(geometry.filters * geometry.output_height * geometry.output_width, 2 * one.row.pitch * one.row.tall)
    most = max(1, min(HELD_BYTES // image, MOST_NUMBERS // numbers))
    return parts_of(count, parts_of(count, most))


# ---- Launches ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Prepared:
    """What launches of one size have in common."""

    lay_out: Any
    multiply: Any
    plan: Plan
    layout_numbers: tuple[np.int32, ...]
    numbers: tuple[np.int32 | np.uint32, ...]


def _kernel_defines(
    kind: Kind, tile: Tile, run: int, half_rows: bool, activation: int
) -> tuple[tuple[str, int | str], ...]:
    given = {"RUN": run, "INPUT": "half_bits" if half_rows else "float", "ACTIVATION": ACTIVATIONS[activation]}
    return tuple(sorted((tile.defines(kind) | given).items()))


def _layout_defines(kind: Kind, half_rows: bool) -> tuple[tuple[str, int | str], ...]:
    return ("INPUT", "half_bits" if half_rows else "float"), ("KIND", kind.define)


@cache
def _prepared(
    kind: Kind, geometry: Geometry, count: int, half_rows: bool, activation: int, device: int, tile: Tile | None
) -> _Prepared:
    made = plan(kind, geometry, count, device_limits(device), tile)
    if made is None:
        raise UsageError(f"the device's shared memory has no room for {geometry}")
    lay_out = built(LAYING_OUT, "unit_planes", _layout_defines(kind, half_rows), device)
    defines = _kernel_defines(kind, made.tile, made.row.run(geometry), half_rows, activation)
    multiply = built(SOURCES[kind], "conv2d", defines, device, ARCHITECTURE)
    return _Prepared(lay_out, multiply, made, made.layout_numbers(geometry, count), made.numbers(geometry, count))


def _run(kind: Kind, layer: ConvLayer, images: Array, tile: Tile | None = None) -> Array:
    if kind is HALF:
        check_half_range(layer)
    outputs = new_outputs(layer, images, (np.float32, np.float16) if kind is HALF else (np.float32,))
    geometry, count = layer.geometry, images.shape[0]
    refuse(why_not_here() or _fits(kind, geometry))
    if not count:
        return outputs
    most = _pieces(kind, geometry, count, device_limits(layer.device))
    for first in range(0, count, most):
        _launch(kind, layer, images[first : first + most], outputs[first : first + most], tile)
    return outputs


def _launch(kind: Kind, layer: ConvLayer, images: Array, outputs: Array, tile: Tile | None) -> None:
    half_rows = images.dtype == np.float16
    ready = _prepared(kind, layer.geometry, images.shape[0], half_rows, int(layer.activation), layer.device, tile)
    made = ready.plan
    laid = cupy().empty(made.laid_bytes(kind), np.uint8)
    blocks = parts_of(made.places, PLACES) * parts_of(made.units, UNITS)
    launch("conv2d", ready.lay_out, (blocks,), (PLACES,), images, laid, *ready.layout_numbers)
    steps = made.tile.steps
    filters = kept(layer, ("warpgroup", kind, steps), lambda: arranged(cupy(), kind, steps, layer.weights))
    arguments = laid, filters, images, layer.weights, layer.bias, outputs, layer.clip, *ready.numbers
    blocks = min(made.tiles, made.tile.blocks * device_limits(layer.device).multiprocessors)
    launch("conv2d", ready.multiply, (blocks,), (made.tile.threads,), *arguments, shared_bytes=made.shared_bytes)


def launch_warpgroup_float32(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution to float32's precision.

    Raises
    ------
    ShapeError
        The images do not have the shape that the layer was uploaded for.
    UsageError
        They are not of a type that the rung takes, or the kernel cannot run the convolution, or not on this device.
    """
    return _run(FLOAT32, layer, images)


def launch_warpgroup_tf32(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution of numbers rounded to TF32; errors as `launch_warpgroup_float32`."""
    return _run(TF32, layer, images)


def launch_warpgroup_half(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution of numbers rounded to half precision; images and outputs float32, or both float16.

    Raises
    ------
    ShapeError
        The images do not have the shape that the layer was uploaded for.
    UsageError
        As `launch_warpgroup_float32`, or a weight is beyond half precision.
    """
    return _run(HALF, layer, images)


# ---- Tuning ------------------------------------------------------------------------------------------------------

PARAMETERS: dict[str, tuple[int, ...]] = {
    "down": (1, 2),
    "across": (1, 2, 3, 4),
    "columns": (64, 96, 112, 128),
    "steps": (2, 4),
    "stages": (2, 4, 6),
    "blocks": (1, 2),
    "bands": (1, 2),
    "taps": (1, 3, 5, 7),
}
"""What may be chosen instead of the plan's `Tile`."""


def launch_with(kind: Kind, numbers: Mapping[str, int]) -> Callable[[ConvLayer, Array], Array]:
    """Return the launch with a given tile; it raises, besides, if a convolution cannot be run with that."""

    def launch_tile(layer: ConvLayer, images: Array) -> Array:
        refuse(why_not_numbers(kind, numbers, layer.geometry, images.shape[0]))
        return _run(kind, layer, images, Tile(**numbers))

    return launch_tile


def why_not_numbers(kind: Kind, numbers: Mapping[str, int], geometry: Geometry, count: int) -> str | None:
    """Return why `count` images cannot be convolved with a given tile; None if they can."""
    reason = _fits(kind, geometry)
    if reason is None and numbers["taps"] not in (1, geometry.kernel[1]):
        reason = f"a row has {geometry.kernel[1]} taps"
    if reason is None and (numbers["down"], numbers["across"], numbers["columns"]) not in SHAPES[kind]:
        reason = "the kernel is not made for tiles of that shape"
    if reason is None and plan(kind, geometry, max(1, count), Limits(), Tile(**numbers)) is None:
        reason = "the tile takes more shared memory or registers than there are, or has one band for several chunks"
    return reason


RUNGS: tuple[Rung, ...] = (
    (
        "warpgroup_float32",
        launch_warpgroup_float32,
        "filters times pixels by whole warpgroups, numbers split in two",
    ),
    ("warpgroup_tf32", launch_warpgroup_tf32, "filters times pixels by whole warpgroups in TF32"),
    (
        "warpgroup_half",
        launch_warpgroup_half,
        "filters times pixels by whole warpgroups in half precision, sums in float32",
    ),
)
"""Name, launch and summary, in the ladder's order."""

KINDS: dict[str, Kind] = {"warpgroup_float32": FLOAT32, "warpgroup_tf32": TF32, "warpgroup_half": HALF}

PRECISIONS = {name: kind.name for name, kind in KINDS.items()}
"""What each rung multiplies; it adds in float32."""

FITS: dict[str, Callable[[Geometry], str | None]] = {name: partial(_fits, kind) for name, kind in KINDS.items()}
"""By rung: why the kernel cannot run a convolution, on a device that has the instructions; None if it can."""


def _declare(source: str, defines: tuple[tuple[str, Any], ...], architecture: str | None = None) -> None:
    """Declare a build for the test-suite."""
    program(source, architecture, **{name: (value,) for name, value in defines})


for _kind, _shapes in SHAPES.items():
    for _number, _shape in enumerate(_shapes):
        _tile = Tile(*_shape, 2 if _kind is FLOAT32 else 4, 3, 1)
        _declare(SOURCES[_kind], _kernel_defines(_kind, _tile, (4, 2, 1)[_number % 3], _kind is HALF, 0), ARCHITECTURE)
    _columns = 64 if _kind is FLOAT32 else 128
    _declare(SOURCES[_kind], _kernel_defines(_kind, Tile(1, 2, _columns, 1, 6, 2, taps=3), 1, False, 2), ARCHITECTURE)
    _declare(LAYING_OUT, _layout_defines(_kind, False))
_declare(SOURCES[HALF], _kernel_defines(HALF, Tile(1, 2, 128, 4, 4, 1, taps=3), 4, True, 0), ARCHITECTURE)
_declare(LAYING_OUT, _layout_defines(HALF, True))
