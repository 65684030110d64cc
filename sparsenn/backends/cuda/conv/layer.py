"""Convolutional layers on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.backends.cuda.runtime.activation import activation_code
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.formats import Array
from sparsenn.layers import Conv2d

__all__ = ["ConvLayer", "geometry_of", "upload_conv"]


@dataclass(frozen=True, eq=False)
class ConvLayer:
    """One convolution in device memory, for images of one size.

    Parameters
    ----------
    device : the GPU's index.
    geometry : all sizes but the number of images.
    weights : (filters, channels / groups, kernel height, kernel width) float32.
    bias : (filters,) float32, zeros where the layer has none.
    activation, clip : its code in `kernels/common.cuh`; infinity where there is no clip.
    source : the layer on the host.
    """

    device: int
    geometry: Geometry
    weights: Array
    bias: Array
    activation: np.int32
    clip: np.float32
    source: Conv2d


def geometry_of(layer: Conv2d, image: tuple[int, int, int]) -> Geometry:
    """Return the sizes of a layer that is given images of so many channels, rows and columns."""
    return Geometry(*image, layer.filters, *layer.sliding_window, layer.groups)


def upload_conv(
    device: int,
    layer: Conv2d,
    image: tuple[int, int, int],
    to_device: Callable[[Sequence[Array]], Iterable[Array]] | None = None,
) -> ConvLayer:
    """Copy a layer to the device `device`, which must be the current one.

    Parameters
    ----------
    image : channels, height and width of what the layer is given.
    to_device : copies arrays there, such as what `Staging.copying` yields; CuPy does unless given.

    Raises
    ------
    ShapeError
        The layer does not take such images.
    UsageError
        Its activation is one that the kernels do not know.
    """
    copied = partial(map, cupy().asarray) if to_device is None else to_device
    layer.output_shape((0, *image))
    code = activation_code(layer, 1)
    weights, bias = copied([layer.weights, layer.bias_vector()])
    return ConvLayer(device, geometry_of(layer, image), weights, bias, *code, layer)
