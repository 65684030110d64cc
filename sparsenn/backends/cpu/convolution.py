"""The kernel of conv2d on the CPU: sums over shifted planes of pixels.

Images go through convolutions and poolings in panels (`planes`, `windows`, `image_chain`); weights that are zero are
left out. A launch takes the layer and images, float32 of shape (images, channels, height, width), and returns float32
of shape (images, filters, output height, output width).
"""

from __future__ import annotations

from math import prod

import numpy as np

from sparsenn.backends.contract import ConvolutionKernel
from sparsenn.backends.cpu.activation import activation_code
from sparsenn.backends.cpu.image_chain import chain_of, run_chain
from sparsenn.backends.cpu.planes import shared_taps
from sparsenn.backends.cpu.windows import ENOUGH, LANES, PANEL
from sparsenn.backends.machine import Machine
from sparsenn.backends.registry import register
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.layers import AvgPool2d, Conv2d, Flatten, MaxPool2d
from sparsenn.network import Image

__all__ = ["DIRECT", "launch_direct"]

# Seconds of a core, about as measured with AVX-512.
MULTIPLY_ADD = 2.2e-11  # of four filters
MULTIPLY_ADD_ALONE = 4.4e-11  # of one filter
TAPS = 5e-9  # of beginning with another four taps
OUTPUT = 5e-10  # of an output


def launch_direct(layer: Conv2d, images: Array) -> Array:
    """Compute a convolution as weighted sums of shifted planes.

    Raises
    ------
    ShapeError
        The layer does not take such images.
    UsageError
        The kernel does not know its activation.
    """
    shape = layer.output_shape(images.shape)
    rows = np.ascontiguousarray(images, np.float32).reshape(shape[0], prod(images.shape[1:]))
    return run_chain(chain_of((layer,), (images.shape[1:], shape[1:])), rows).reshape(shape)


def _seconds_direct(machine: Machine, layer: Conv2d, image: Image) -> float:
    """Estimate what one of many images takes."""
    height, width = layer.output_shape((1, *image))[2:]
    walks = height if width * PANEL >= ENOUGH else -(-height * width * PANEL // LANES)
    seconds = OUTPUT * layer.filters * height * width
    for block in shared_taps(layer.weights.reshape(layer.filters, -1), layer.filters // layer.groups):
        multiply_add = MULTIPLY_ADD_ALONE if len(block.weights) == 1 else MULTIPLY_ADD
        seconds += height * width * multiply_add * block.weights.size + walks * TAPS * block.taps.size / 4 / PANEL
    return seconds


def _why_not_direct(machine: Machine, layer: Conv2d, image: Image) -> str | None:
    try:
        activation_code(layer.activation)
    except UsageError as error:
        return str(error)
    return None


DIRECT = register(
    ConvolutionKernel(
        name="direct",
        device="cpu",
        summary="weighted sums of shifted planes of pixels, zeros left out; images stay in cache from layer to layer",
        launch=launch_direct,
        fuses=(MaxPool2d, AvgPool2d, Flatten),
        run_stack=run_chain,
        auto=True,
        seconds=_seconds_direct,
        why_not=_why_not_direct,
        reproducible=True,
    )
)
