"""The kernel of conv2d that multiplies filters and pixels on tensor cores of any GPU, with any stride, in float32.

A launch gives the same bits every time. The precision of float32 is kept, infinities and NaN included, but denormal
numbers count as zero.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, WHOLE, Geometry, smallest
from sparsenn.backends.cuda.conv.implicit_plan import LEAST_ROWS, STEP_CHANNELS, Plan, arranged, plan
from sparsenn.backends.cuda.conv.kernel import convolution
from sparsenn.backends.cuda.conv.layer import ConvLayer
from sparsenn.backends.cuda.conv.specialised import new_outputs, refuse
from sparsenn.backends.cuda.runtime.activation import ACTIVATIONS
from sparsenn.backends.cuda.runtime.device import machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device, from_host
from sparsenn.backends.cuda.runtime.loader import specialised
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, Tile, counters, partial_sums
from sparsenn.backends.machine import Machine
from sparsenn.backends.prior import LAID_OUT, WARPS, Prior
from sparsenn.errors import UsageError
from sparsenn.formats import Array

SOURCE = "conv2d/implicit_float32.cu"

_PROGRAM = specialised(SOURCE, dynamic_shared=True, carveout=WHOLE)

ONE_GROUP = "one group"  # what the kernel needs of a convolution, in words
MANY = 1 << 10  # images of which a block sees as many as of any larger number


def fits(machine: Machine, geometry: Geometry) -> str | None:
    """Return why a machine cannot run a convolution with the kernel; None if it can."""
    if geometry.groups > 1:
        return f"{geometry.groups} groups; the kernel is written for one"
    pixels = geometry.output_height * geometry.output_width
    if max(geometry.channels * geometry.height * geometry.width, 2 * geometry.filters * pixels) > MOST_NUMBERS:
        return f"an image or its outputs have more numbers than the {MOST_NUMBERS:,} that the kernel counts"
    if plan(geometry, MANY, smallest(machine)) is None:
        return (
            f"the pixels that a block of outputs sees, of {geometry.kernel[0]} x {geometry.kernel[1]} taps, stride "
            f"{geometry.stride} and dilation {geometry.dilation}, do not fit into the "
            f"{smallest(machine).block_bytes >> 10} KiB of shared memory that every device has"
        )
    return None


def kernel_defines(tile: Tile, activation: int) -> dict[str, int | str]:
    """Return what the kernel is compiled with; the activation is its place in `ACTIVATIONS`."""
    return tile.defines(FLOAT32) | {"ACTIVATION": ACTIVATIONS[activation]}


@cache
def _prepared(geometry: Geometry, count: int, activation: int, device: int) -> tuple[Any, Plan, tuple[np.int32, ...]]:
    """Return the kernel, the plan, and the kernel's last arguments."""
    machine = machine_of(device)
    refuse(fits(machine, geometry))
    made = plan(geometry, count, machine)
    if made is None:
        held = machine.block_bytes >> 10
        raise UsageError(f"the device's {held} KiB of shared memory have no room for {geometry}")
    kernel = _PROGRAM.kernel("conv2d", **kernel_defines(made.tile, activation))
    return kernel, made, made.numbers(geometry, count)


def launch_implicit_float32(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution of one group."""
    outputs, geometry = new_outputs(layer, images), layer.geometry
    # Pixels, and outputs of a strip, are counted in 32 bits; strips together may be wider than the outputs.
    most = max(1, MOST_NUMBERS // (2 * geometry.output_height * geometry.output_width + 128 * geometry.output_height))
    for first in range(0, images.shape[0], most):
        some = images if images.shape[0] <= most else images[first : first + most]
        _launch(layer, some, outputs if some is images else outputs[first : first + most])
    if not images.shape[0]:
        refuse(fits(machine_of(layer.device), geometry))
    return outputs


def _launch(layer: ConvLayer, images: Array, outputs: Array) -> None:
    kernel, made, numbers = _prepared(layer.geometry, images.shape[0], int(layer.activation), layer.device)
    filters = cache_on_device(layer, "implicit", lambda: from_host(arranged, layer.source.weights))
    partials = partial_sums(made.tile, made.tiles, made.parts), counters(made.tiles if made.parts > 1 else 0)
    arguments = images, filters, layer.weights, layer.bias, outputs, *partials, layer.clip, *numbers
    blocks, threads = made.tiles * made.parts, made.tile.threads
    launch("conv2d", kernel, (blocks,), (threads,), *arguments, shared_bytes=made.shared_bytes)


IMPLICIT_FLOAT32 = convolution(
    "conv_implicit_float32",
    launch_implicit_float32,
    "filters times pixels on tensor cores, numbers split in two",
    fits,
    needs=(ONE_GROUP,),
    auto=True,
    prior=Prior(WARPS / FLOAT32.products, LAID_OUT, precision="tf32"),
    multiples=(LEAST_ROWS, STEP_CHANNELS),
    tf32_products=FLOAT32.products,
)
