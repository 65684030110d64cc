"""Convolutional layers on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.backends.cuda.runtime.activation import activation_code, activation_number
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.kernel_records import Shapes
from sparsenn.formats import Array
from sparsenn.layers import Add, Conv2d, ImageLayer


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
    """Return the sizes of a layer that is given images of so many channels, rows and columns."""
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
