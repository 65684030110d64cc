"""The kernels of conv2d that multiply filters and pixels by whole warpgroups, on compute capability 9.0.

`conv_warpgroup_half` takes images of float16 too, and then returns float16.

What a number may be off by: `conv_warpgroup_float32` keeps float32's precision, infinities and NaN included, but
denormal numbers count as zero. `conv_warpgroup_tf32` rounds pixels and weights to 11 bits. So does
`conv_warpgroup_half`, to which pixels beyond 65,504 are infinite; weights must not exceed that. Sums are float32. A
launch gives the same bits every time.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, WHOLE, ConvLayer, Geometry, why_too_large
from sparsenn.backends.cuda.conv.implicit import MANY
from sparsenn.backends.cuda.conv.kernel import HELD_BYTES, check_half_range, convolution, new_outputs, refuse
from sparsenn.backends.cuda.conv.warpgroup_plan import ROWS, STEP_BYTES, Plan, Tile, arranged, plan
from sparsenn.backends.cuda.runtime.activation import ACTIVATIONS
from sparsenn.backends.cuda.runtime.device import cupy, machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device, from_host
from sparsenn.backends.cuda.runtime.loader import specialised
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, HALF, TF32, Kind
from sparsenn.backends.kernel_records import ConvolutionKernel
from sparsenn.backends.machine import Machine
from sparsenn.backends.prior import LAID_OUT, LAUNCH_SECONDS, TUNED, Prior
from sparsenn.backends.sizes import parts_of
from sparsenn.errors import UsageError
from sparsenn.formats import Array

CAPABILITY = 90  # Compute capability 9.0, times ten: the instructions are no other's
GPU = "NVIDIA GPU (compute capability 9.0 only)"  # what the kernels need, in words

ARCHITECTURE = "sm_90a"

SOURCE = "conv2d/warpgroup.cu"
LAYING_OUT = "conv2d/unit_planes.cu"

_PROGRAM = specialised(SOURCE, ARCHITECTURE, dynamic_shared=True, carveout=WHOLE)
_LAYOUT = specialised(LAYING_OUT, dynamic_shared=True, carveout=WHOLE)

# Of a block that lays images out.
PLACES = 256
UNITS = 4


def fits(kind: Kind, machine: Machine, geometry: Geometry) -> str | None:
    """Return why a machine cannot run a convolution in a precision; None if it can."""
    if reason := why_no_warpgroups(machine):
        return reason
    if geometry.groups > 1 or geometry.stride != (1, 1):
        return f"stride {geometry.stride}, groups {geometry.groups}; the kernel is written for stride 1 and one group"
    if reason := why_too_large(geometry):
        return reason
    if plan(kind, geometry, 1, machine) is None or plan(kind, geometry, MANY, machine) is None:
        return (
            f"the pixels that a block of outputs sees, of {geometry.kernel[0]} x {geometry.kernel[1]} taps and rows of "
            f"{geometry.width}, do not fit into the {machine.block_bytes >> 10} KiB of shared memory"
        )
    return None


def why_no_warpgroups(machine: Machine) -> str | None:
    """Return why a machine does not have the instructions of whole warpgroups; None if it does."""
    if machine.capability == CAPABILITY:
        return None
    return (
        f"the GPU has compute capability {machine.capability / 10:.1f}; the kernel is written for {CAPABILITY / 10:.1f}"
    )


def _pieces(kind: Kind, geometry: Geometry, count: int, machine: Machine) -> int:
    one = plan(kind, geometry, MANY, machine)
    assert one is not None, "`fits` refuses what has no plan"
    image = max(1, one.laid_bytes(kind) // MANY)
    numbers = max(geometry.filters * geometry.output_height * geometry.output_width, 2 * one.row.pitch * one.row.tall)
    most = max(1, min(HELD_BYTES // image, MOST_NUMBERS // numbers))
    return parts_of(count, parts_of(count, most))


# ---- Launches ----------------------------------------------------------------------------------------------------


class _Prepared(NamedTuple):
    lay_out: Any
    multiply: Any
    plan: Plan
    layout_numbers: tuple[np.int32, ...]
    numbers: tuple[np.int32 | np.uint32, ...]


def kernel_defines(kind: Kind, tile: Tile, run: int, half_rows: bool, activation: int) -> dict[str, int | str]:
    """Return what a kernel is compiled with; `run` is as `Row.run` returns it."""
    given = {"RUN": run, "INPUT": "half_bits" if half_rows else "float", "ACTIVATION": ACTIVATIONS[activation]}
    return tile.defines(kind) | given


def layout_defines(kind: Kind, half_rows: bool) -> dict[str, int | str]:
    """Return what the kernel that lays images out is compiled with; they are float16, or float32."""
    return {"INPUT": "half_bits" if half_rows else "float", "KIND": kind.define}


@cache
def _prepared(kind: Kind, geometry: Geometry, count: int, half_rows: bool, activation: int, device: int) -> _Prepared:
    made = plan(kind, geometry, count, machine_of(device))
    if made is None:
        raise UsageError(f"the device's shared memory has no room for {geometry}")
    lay_out = _LAYOUT.kernel("unit_planes", **layout_defines(kind, half_rows))
    defines = kernel_defines(kind, made.tile, made.row.run(geometry), half_rows, activation)
    multiply = _PROGRAM.kernel("conv2d", **defines)
    return _Prepared(lay_out, multiply, made, made.layout_numbers(geometry, count), made.numbers(geometry, count))


def run_warpgroup(kind: Kind, layer: ConvLayer, images: Array) -> Array:
    """Run a convolution in one of the precisions; images and outputs float32 or, of `HALF`, both float16."""
    if kind is HALF:
        check_half_range(layer)
    outputs = new_outputs(layer, images, (np.float32, np.float16) if kind is HALF else (np.float32,))
    geometry, count, machine = layer.geometry, images.shape[0], machine_of(layer.device)
    refuse(fits(kind, machine, geometry))
    if not count:
        return outputs
    most = _pieces(kind, geometry, count, machine)
    for first in range(0, count, most):
        _launch(kind, layer, images[first : first + most], outputs[first : first + most])
    return outputs


def _launch(kind: Kind, layer: ConvLayer, images: Array, outputs: Array) -> None:
    half_rows = images.dtype == np.float16
    ready = _prepared(kind, layer.geometry, images.shape[0], half_rows, int(layer.activation), layer.device)
    made = ready.plan
    laid = cupy().empty(made.laid_bytes(kind), np.uint8)
    blocks = parts_of(made.places, PLACES) * parts_of(made.units, UNITS)
    launch("conv2d", ready.lay_out, (blocks,), (PLACES,), images, laid, *ready.layout_numbers)
    steps = made.tile.steps
    filters = cache_on_device(
        layer, ("warpgroup", kind, steps), lambda: from_host(partial(arranged, kind, steps), layer.source.weights)
    )
    arguments = laid, filters, images, layer.weights, layer.bias, outputs, layer.clip, *ready.numbers
    blocks = min(made.tiles, machine_of(layer.device).multiprocessors)
    launch("conv2d", ready.multiply, (blocks,), (made.tile.threads,), *arguments, shared_bytes=made.shared_bytes)


# ---- Kernels -----------------------------------------------------------------------------------------------------


def _described(kind: Kind, name: str, summary: str) -> ConvolutionKernel:
    peak = "float16" if kind is HALF else "tf32"
    prior = Prior(TUNED / kind.products, LAID_OUT, 2 * LAUNCH_SECONDS, peak)
    return convolution(
        name,
        partial(run_warpgroup, kind),
        summary,
        partial(fits, kind),
        needs=("stride 1, one group", "rows that fit into shared memory"),
        gpu=GPU,
        auto=True,
        prior=prior,
        multiples=(ROWS, STEP_BYTES // kind.factor_bytes),
        precision=kind.name,
        half_rows=kind is HALF,
        tf32_products=kind.products if kind is FLOAT32 else 0,
    )


WARPGROUP_FLOAT32 = _described(
    FLOAT32, "conv_warpgroup_float32", "filters times pixels by whole warpgroups, numbers split in two"
)
WARPGROUP_TF32 = _described(TF32, "conv_warpgroup_tf32", "filters times pixels by whole warpgroups in TF32")
WARPGROUP_HALF = _described(
    HALF, "conv_warpgroup_half", "filters times pixels by whole warpgroups in half precision, sums in float32"
)
