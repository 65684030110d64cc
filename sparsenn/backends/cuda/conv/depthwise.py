"""The kernel of conv2d for filters of one channel: threads with several outputs of a column each.

Outputs have the bits of `conv_unrolled`.
"""

from __future__ import annotations

import numpy as np

from sparsenn.backends.cuda.conv.geometry import ConvLayer, Geometry, why_too_large
from sparsenn.backends.cuda.conv.kernel import activation_define, convolution, everywhere, new_outputs, refuse, sizes
from sparsenn.backends.cuda.runtime.loader import specialised
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.prior import Prior
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array

SOURCE = "conv2d/depthwise.cu"

THREADS = 256  # of a block
MOST_OUTPUTS = 8  # of a thread
MOST_TAPS = 49  # whose weights stay in registers
MOST_THREADS = 1 << 31

_PROGRAM = specialised(SOURCE)


def fits(geometry: Geometry) -> str | None:
    """Return why the kernel cannot run a convolution; None if it can."""
    if geometry.groups == 1 or geometry.groups != geometry.channels:
        return f"{geometry.channels} channels in {geometry.groups} groups; the kernel is written for one in each"
    taps = geometry.kernel[0] * geometry.kernel[1]
    if taps > MOST_TAPS:
        return f"windows of {taps} pixels; the kernel is written for up to {MOST_TAPS}"
    return why_too_large(geometry)


def shape_defines(geometry: Geometry) -> dict[str, int]:
    """Return a convolution's sizes, and the outputs of a thread: few of the last thread's stand over."""
    height = geometry.output_height
    strip = min(range(MOST_OUTPUTS, 0, -1), key=lambda outputs: parts_of(height, outputs) * (outputs + 2))
    return {**sizes(geometry), "STRIP": strip, "THREADS": THREADS}


def launch_depthwise(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution that `fits`."""
    outputs, geometry = new_outputs(layer, images), layer.geometry
    refuse(fits(geometry))
    defines = shape_defines(geometry)
    kernel = _PROGRAM.kernel("conv2d", ACTIVATION=activation_define(layer), **defines)
    strips = parts_of(geometry.output_height, defines["STRIP"]) * geometry.output_width
    most = max(1, MOST_THREADS // (strips * geometry.filters))
    for first in range(0, images.shape[0], most):
        some = slice(first, first + most)
        planes = outputs[some].shape[0] * geometry.filters
        arrays = images[some], layer.weights, layer.bias, layer.clip, outputs[some]
        launch("conv2d", kernel, (parts_of(planes * strips, THREADS),), (THREADS,), *arrays, np.uint32(planes))
    return outputs


DEPTHWISE = convolution(
    "conv_depthwise",
    launch_depthwise,
    "filters of one channel; several outputs of a column a thread",
    everywhere(fits),
    needs=("one channel in a group",),
    auto=True,
    prior=Prior(compute=0.2),
    reproducible=True,
)
