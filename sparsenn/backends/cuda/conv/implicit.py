"""The kernels of conv2d that multiply filters and pixels on tensor cores, made for many channels.

A launch takes a layer and images, a CuPy array (images, channels, height, width) of float32 in row-major order, and
returns the outputs, a new CuPy array (images, filters, output height, output width) of float32. `implicit_half` takes
images of float16 too, and then returns float16. A launch queues its work on the current stream and does not wait for
it, but for the first one of a layer, which compiles a kernel for its tile and lays the filters out.

What a number may be off by: `implicit_float32` keeps float32's precision, infinities and NaN included, but denormal
numbers count as zero. `implicit_tf32` rounds pixels and weights to 11 bits. So does `implicit_half`, to which pixels
beyond 65,504 are infinite; weights must not exceed that. Sums are float32. A launch gives the same bits every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from sparsenn.backends.contract import ConvolutionKernel
from sparsenn.backends.cuda.conv.estimates import IMAGES
from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, Geometry
from sparsenn.backends.cuda.conv.implicit_plan import Plan, arranged, clocks, plan
from sparsenn.backends.cuda.conv.kernel import convolution
from sparsenn.backends.cuda.conv.layer import ConvLayer
from sparsenn.backends.cuda.conv.shared_memory import WHOLE, smallest
from sparsenn.backends.cuda.conv.specialised import check_half_range, new_outputs, refuse
from sparsenn.backends.cuda.runtime.activation import ACTIVATIONS
from sparsenn.backends.cuda.runtime.device import machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device, from_host
from sparsenn.backends.cuda.runtime.loader import specialised
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, HALF, TF32, Kind, Tile, counters, partial_sums
from sparsenn.backends.machine import Machine
from sparsenn.errors import UsageError
from sparsenn.formats import Array

__all__ = [
    "IMPLICIT_FLOAT32",
    "IMPLICIT_HALF",
    "IMPLICIT_TF32",
    "MANY",
    "ONE_GROUP",
    "SOURCES",
    "fits",
    "kept_filters",
    "kernel_defines",
    "run_implicit",
]

SOURCES = {
    FLOAT32: "conv2d/implicit_float32.cu",
    TF32: "conv2d/implicit_tf32.cu",
    HALF: "conv2d/implicit_half.cu",
}

_PROGRAMS = {kind: specialised(source, dynamic_shared=True, carveout=WHOLE) for kind, source in SOURCES.items()}

SHARES = {FLOAT32: 1.7, TF32: 2.1, HALF: 2.3}
"""Clocks taken for one that was estimated."""

ONE_GROUP = "one group"
"""What the kernels need of a convolution, in words."""

MANY = 1 << 10
"""Images of which a block sees as many as of any larger number."""


def fits(machine: Machine, geometry: Geometry) -> str | None:
    """Return why a machine cannot run a convolution with the kernels; None if it can."""
    if geometry.groups > 1:
        return f"{geometry.groups} groups; the kernel is written for one"
    pixels = geometry.output_height * geometry.output_width
    if max(geometry.channels * geometry.height * geometry.width, 2 * geometry.filters * pixels) > MOST_NUMBERS:
        return f"an image or its outputs have more numbers than the {MOST_NUMBERS:,} that the kernel counts"
    if any(plan(kind, geometry, MANY, False, smallest(machine)) is None for kind in (FLOAT32, TF32, HALF)):
        return (
            f"the pixels that a block of outputs sees, of {geometry.kernel[0]} x {geometry.kernel[1]} taps, stride "
            f"{geometry.stride} and dilation {geometry.dilation}, do not fit into the "
            f"{smallest(machine).block_bytes >> 10} KiB of shared memory that every device has"
        )
    return None


def _paired(geometry: Geometry, images: Array) -> bool:
    """Return whether images can be read two pixels at a time: those are a word in memory, or padding, both."""
    pointer: Any = images.data
    halves = images.dtype == np.float16
    return bool(halves and geometry.width % 2 == 0 and geometry.stride[1] == 1 and pointer.ptr % 4 == 0)


def kernel_defines(kind: Kind, tile: Tile, paired: bool, half_rows: bool, activation: int) -> dict[str, int | str]:
    """Return what a kernel is compiled with.

    Parameters
    ----------
    paired : pixels are read two at a time.
    half_rows : images and outputs are float16.
    activation : its place in `ACTIVATIONS`.
    """
    images = {"INPUT": "half_bits" if half_rows else "float", "PAIRED": int(paired)}
    return tile.defines(kind) | images | {"ACTIVATION": ACTIVATIONS[activation]}


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
    machine = machine_of(device)
    refuse(fits(machine, geometry))
    made = plan(kind, geometry, count, paired, machine)
    if made is None:
        held = machine.block_bytes >> 10
        raise UsageError(f"the device's {held} KiB of shared memory have no room for {geometry}")
    defines = kernel_defines(kind, made.tile, paired, half_rows, activation)
    return _Prepared(_PROGRAMS[kind].kernel("conv2d", **defines), made, made.numbers(geometry, count))


def run_implicit(kind: Kind, layer: ConvLayer, images: Array) -> Array:
    """Run a convolution in one of the precisions; images and outputs float32 or, of `HALF`, both float16.

    Raises
    ------
    ShapeError
        The images do not have the shape that the layer was uploaded for.
    UsageError
        They are not of a type that the kernel takes, or it cannot run the convolution; or, of `HALF`, a weight is
        beyond half precision.
    """
    if kind is HALF:
        check_half_range(layer)
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
        refuse(fits(machine_of(layer.device), geometry))
    return outputs


def kept_filters(layer: ConvLayer, kind: Kind) -> Array:
    """Return a layer's filters in the kernels' order; they are laid out once."""
    return cache_on_device(layer, ("implicit", kind), lambda: from_host(partial(arranged, kind), layer.source.weights))


def _launch(kind: Kind, layer: ConvLayer, ready: _Prepared, images: Array, outputs: Array) -> None:
    made = ready.plan
    filters = kept_filters(layer, kind)
    partials = partial_sums(made.tile, made.tiles, made.parts), counters(made.tiles if made.parts > 1 else 0)
    arguments = images, filters, layer.weights, layer.bias, outputs, *partials, layer.clip, *ready.numbers
    blocks, threads = made.tiles * made.parts, made.tile.threads
    launch("conv2d", ready.kernel, (blocks,), (threads,), *arguments, shared_bytes=made.shared_bytes)


# ---- Kernels -----------------------------------------------------------------------------------------------------


def _seconds(kind: Kind, machine: Machine, geometry: Geometry) -> float:
    return SHARES[kind] * clocks(kind, geometry, IMAGES, machine) / machine.clock


def _described(kind: Kind, name: str, summary: str) -> ConvolutionKernel:
    return convolution(
        name,
        partial(run_implicit, kind),
        summary,
        fits,
        needs=(ONE_GROUP,),
        auto=True,
        seconds=partial(_seconds, kind),
        precision=kind.name,
        half_rows=kind is HALF,
        tf32_products=kind.products if kind is FLOAT32 else 0,
    )


IMPLICIT_FLOAT32 = _described(FLOAT32, "implicit_float32", "filters times pixels on tensor cores, numbers split in two")
IMPLICIT_TF32 = _described(TF32, "implicit_tf32", "filters times pixels on tensor cores in TF32")
IMPLICIT_HALF = _described(
    HALF, "implicit_half", "filters times pixels on tensor cores in half precision, sums in float32"
)
