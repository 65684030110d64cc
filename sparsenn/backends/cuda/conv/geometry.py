"""The numbers that a convolution of one size of images is compiled and launched for, and the layer on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from sparsenn.backends.cuda.runtime.activation import activation_code, activation_number
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.kernel_records import Shapes
from sparsenn.backends.machine import Machine
from sparsenn.formats import Array
from sparsenn.layers import Add, Conv2d, ImageLayer

MOST_NUMBERS = 2**31 - 1  # of an image, of its outputs and of all filters: kernels count them in 32 bits

# Of compute capability 8.6 and 8.9, which have the least from 8.0 on.
LEAST_BLOCK_BYTES = 99 << 10
LEAST_MULTIPROCESSOR_BYTES = 100 << 10

WHOLE = 100
"""Percent of what a multiprocessor can have as shared memory, so that the blocks that are planned for find room."""


@dataclass(frozen=True)
class Geometry:
    """Sizes of one convolution, but for the number of images."""

    channels: int  # of an image, as are height and width
    height: int
    width: int
    filters: int  # channels of an output
    kernel: tuple[int, int]  # height and width of a filter
    stride: tuple[int, int] = (1, 1)  # down and across, as are padding and dilation
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1  # slices of channels and filters; filters of a slice read only its channels

    @property
    def output_height(self) -> int:
        """Rows of pixels of an output."""
        return _extent(self.height, self.kernel[0], self.stride[0], self.padding[0], self.dilation[0])

    @property
    def output_width(self) -> int:
        """Columns of pixels of an output."""
        return _extent(self.width, self.kernel[1], self.stride[1], self.padding[1], self.dilation[1])

    @property
    def depth(self) -> int:
        """Inputs that an output is a sum of, padding included."""
        return self.channels // self.groups * self.kernel[0] * self.kernel[1]

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one image, padding included."""
        return self.filters * self.output_height * self.output_width * self.depth

    @property
    def is_plain(self) -> bool:
        """Whether stride and dilation are 1 and there is one group."""
        return self.stride == self.dilation == (1, 1) and self.groups == 1


def why_too_large(geometry: Geometry) -> str | None:
    """Return why kernels cannot count a convolution's numbers; None if they can."""
    parts = {
        "an image": geometry.channels * geometry.height * geometry.width,
        "an image's output": geometry.filters * geometry.output_height * geometry.output_width,
        "all filters together": geometry.filters * geometry.depth,
    }
    for name, numbers in parts.items():
        if numbers > MOST_NUMBERS:
            return f"{name} would have {numbers:,} numbers; the kernel counts up to {MOST_NUMBERS:,}"
    return None


@cache
def smallest(machine: Machine) -> Machine:
    """Return a machine with no more shared memory than every device of compute capability 8.0 and newer has.

    A convolution that fits into that can be run on all of them, and one that does not is refused on all: which kernels
    there are to choose from, and so the bits of what they give, is not a matter of a device's shared memory.
    """
    return replace(
        machine,
        block_bytes=min(machine.block_bytes, LEAST_BLOCK_BYTES),
        multiprocessor_bytes=min(machine.multiprocessor_bytes, LEAST_MULTIPROCESSOR_BYTES),
    )


def _extent(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


@dataclass(frozen=True, eq=False)
class ConvLayer:
    """One convolution in device memory, for images of one size."""

    device: int  # the GPU's index
    geometry: Geometry  # all sizes but the number of images
    weights: Array  # (filters, channels / groups, kernel height, kernel width) float32
    bias: Array  # (filters,) float32, zeros where the layer has none
    activation: np.int32  # its code in `kernels/common.cuh`
    clip: np.float32  # infinity where there is no clip
    source: Conv2d  # the layer on the host


def with_sum(layer: ConvLayer, total: Add) -> ConvLayer:
    """Return a layer without activation as one whose outputs go into a sum, and have its activation."""
    code = activation_number(total.activation)
    assert code is not None, "kernels that know no activation of a sum do not take it along"
    return replace(layer, activation=code[0], clip=code[1])


def takes_sum(layer: ImageLayer, shapes: Shapes) -> bool:
    """Return whether kernels can end with a layer, given the shapes that it reads."""
    return isinstance(layer, Add) and len(shapes) == 2 and activation_number(layer.activation) is not None


def geometry_of(layer: Conv2d, image: tuple[int, int, int]) -> Geometry:
    """Return the sizes of a layer and of its images, whose channels, rows and columns are `image`."""
    return Geometry(*image, layer.filters, *layer.sliding_window, layer.groups)


def upload_conv(
    device: int,
    layer: Conv2d,
    image: tuple[int, int, int],
    to_device: Callable[[Sequence[Array]], Iterable[Array]] | None = None,
) -> ConvLayer:
    """Copy a layer to the current device, of index `device`, by `to_device` or CuPy."""
    copied = partial(map, cupy().asarray) if to_device is None else to_device
    layer.output_shape((0, *image))
    code = activation_code(layer, 1)
    weights, bias = copied([layer.weights, layer.bias_vector()])
    return ConvLayer(device, geometry_of(layer, image), weights, bias, *code, layer)
