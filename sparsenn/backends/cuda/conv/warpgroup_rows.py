"""The kernel of conv2d to which rows of images go straight, past filters that stay, on compute capability 9.0.

A launch takes a layer and images, a CuPy array (images, channels, height, width) of float32 or float16 in row-major
order, and returns the outputs, a new CuPy array (images, filters, output height, output width) of the same type. It
queues its work on the current stream and does not wait for it, but for the first one of a layer, which compiles a
kernel and lays the filters out.

Pixels and weights are rounded to half precision's 11 bits, to which pixels beyond 65,504 are infinite; weights must not
exceed that. Sums are float32. A launch gives the same bits every time.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.estimates import IMAGES
from sparsenn.backends.cuda.conv.geometry import Geometry, why_too_large
from sparsenn.backends.cuda.conv.kernel import convolution
from sparsenn.backends.cuda.conv.layer import ConvLayer
from sparsenn.backends.cuda.conv.shared_memory import WHOLE
from sparsenn.backends.cuda.conv.specialised import check_half_range, new_outputs, refuse
from sparsenn.backends.cuda.conv.warpgroup import ARCHITECTURE, GPU, why_no_warpgroups
from sparsenn.backends.cuda.conv.warpgroup_plan import UNIT_BYTES, arranged
from sparsenn.backends.cuda.conv.warpgroup_rows_plan import (
    COLUMNS,
    MOST_LINES,
    SLOTS,
    Plan,
    Tile,
    clocks,
    cut,
    plan,
)
from sparsenn.backends.cuda.runtime.activation import ACTIVATIONS
from sparsenn.backends.cuda.runtime.device import machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device, from_host
from sparsenn.backends.cuda.runtime.loader import specialised
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.cuda.tensor_tiles import HALF
from sparsenn.backends.machine import Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.errors import UsageError
from sparsenn.formats import Array

__all__ = [
    "SOURCE",
    "WARPGROUP_ROWS_HALF",
    "fits",
    "kernel_defines",
    "launch_warpgroup_rows_half",
]

SOURCE = "conv2d/warpgroup_rows_half.cu"

_PROGRAM = specialised(SOURCE, ARCHITECTURE, dynamic_shared=True, carveout=WHOLE)

SHARE = 1.07
"""Clocks taken for one that was estimated."""


def fits(machine: Machine, geometry: Geometry) -> str | None:
    """Return why a machine cannot run a convolution with the kernel; None if it can."""
    if reason := why_no_warpgroups(machine):
        return reason
    if geometry.groups > 1 or geometry.stride != (1, 1):
        return f"stride {geometry.stride}, groups {geometry.groups}; the kernel is written for stride 1 and one group"
    if reason := why_too_large(geometry):
        return reason
    if plan(geometry, 1, machine) is None:
        return (
            f"64 filters of {geometry.channels} x {geometry.kernel[0]} x {geometry.kernel[1]} weights, and the pixels "
            f"that they see, do not fit into the {machine.block_bytes >> 10} KiB of shared memory"
        )
    return None


def _at_a_time(geometry: Geometry, count: int) -> int:
    """Return how many of `count` images a launch takes: as many as it can count the lines of."""
    segments = parts_of(geometry.output_width, min(COLUMNS))
    lines = segments * cut(geometry, 1, Tile(min(COLUMNS), 1, SLOTS)).lines
    return parts_of(count, parts_of(count, max(1, MOST_LINES // lines)))


def kernel_defines(
    made: Plan, geometry: Geometry, aligned: bool, half_rows: bool, activation: int
) -> dict[str, int | str]:
    """Return what the kernel is compiled with; `aligned` and `half_rows` as for `Plan.defines`."""
    return made.defines(geometry, aligned, half_rows) | {"ACTIVATION": ACTIVATIONS[activation]}


@cache
def _prepared(
    geometry: Geometry, count: int, aligned: bool, half_rows: bool, activation: int, device: int
) -> tuple[Any, Plan, tuple[np.int32 | np.uint32, ...]]:
    """Return what launches of one size have in common: the kernel, its plan, and the plan's numbers."""
    made = plan(geometry, count, machine_of(device))
    if made is None:
        raise UsageError(f"the device's shared memory has no room for {geometry}")
    defines = kernel_defines(made, geometry, aligned, half_rows, activation)
    return _PROGRAM.kernel("conv2d", **defines), made, made.numbers(geometry, count)


def launch_warpgroup_rows_half(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution of numbers rounded to half precision; images and outputs float32, or both float16.

    Raises
    ------
    ShapeError
        The images do not have the shape that the layer was uploaded for.
    UsageError
        They are not of a type that the kernel takes, or it cannot run the convolution, or not on this device, or
        a weight is beyond half precision.
    """
    check_half_range(layer)
    outputs = new_outputs(layer, images, (np.float32, np.float16))
    refuse(fits(machine_of(layer.device), layer.geometry))
    count = images.shape[0]
    if count:
        most = _at_a_time(layer.geometry, count)
        for first in range(0, count, most):
            _launch(layer, images[first : first + most], outputs[first : first + most])
    return outputs


def _launch(layer: ConvLayer, images: Array, outputs: Array) -> None:
    geometry, half_rows = layer.geometry, images.dtype == np.float16
    pointer: Any = images.data
    aligned = pointer.ptr % UNIT_BYTES == 0
    activation = int(layer.activation)
    kernel, made, numbers = _prepared(geometry, images.shape[0], aligned, half_rows, activation, layer.device)
    filters = cache_on_device(
        layer,
        ("warpgroup", HALF, made.steps),
        lambda: from_host(partial(arranged, HALF, made.steps), layer.source.weights),
    )
    arguments = images, filters, layer.bias, outputs, layer.clip, *numbers
    blocks = made.blocks(machine_of(layer.device))
    launch("conv2d", kernel, (blocks,), (made.tile.threads,), *arguments, shared_bytes=made.shared_bytes)


def _seconds(machine: Machine, geometry: Geometry) -> float:
    return SHARE * clocks(geometry, IMAGES, machine) / machine.clock


WARPGROUP_ROWS_HALF = convolution(
    "warpgroup_rows_half",
    launch_warpgroup_rows_half,
    "rows of images straight to warpgroups, past filters that stay, in half precision",
    fits,
    needs=("stride 1, one group", "64 filters that fit into shared memory"),
    gpu=GPU,
    auto=True,
    seconds=_seconds,
    precision=HALF.name,
    half_rows=True,
)
