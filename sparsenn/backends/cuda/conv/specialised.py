"""Kernels that are compiled for one convolution: its numbers as defines, and what every launch of one begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.geometry import Geometry, why_too_large
from sparsenn.backends.cuda.conv.layer import ConvLayer
from sparsenn.backends.cuda.runtime.activation import compiled_activation
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_host
from sparsenn.backends.machine import GRID_ROWS
from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.layers.elementwise import HALF_MAX

Defines = Mapping[str, int | str]


def sizes(geometry: Geometry) -> dict[str, int]:
    """Return the numbers of a convolution as `kernels/conv2d/sizes.cuh` takes them."""
    pairs = {"STRIDE": geometry.stride, "PADDING": geometry.padding, "DILATION": geometry.dilation}
    return {
        "CHANNELS": geometry.channels,
        "HEIGHT": geometry.height,
        "WIDTH": geometry.width,
        "FILTERS": geometry.filters,
        "KERNEL_HEIGHT": geometry.kernel[0],
        "KERNEL_WIDTH": geometry.kernel[1],
        "GROUPS": geometry.groups,
        **{f"{name}_DOWN": pair[0] for name, pair in pairs.items()},
        **{f"{name}_ACROSS": pair[1] for name, pair in pairs.items()},
    }


def activation_define(layer: ConvLayer) -> int:
    """Return a layer's activation as `kernels/conv2d/activated.cuh` takes it."""
    return compiled_activation(int(layer.activation), bool(np.isfinite(layer.clip)))


def outputs_shape(layer: ConvLayer, images: Array, types: Sequence[Any] = (np.float32,)) -> tuple[int, ...]:
    """Return the shape of the outputs, (images, filters, output height, output width); refuse unfit images."""
    given = layer.geometry
    wanted = given.channels, given.height, given.width
    if images.ndim != 4 or images.shape[1:] != wanted:
        raise ShapeError(
            f"the images have shape {images.shape}; the layer was uploaded for (images, {', '.join(map(str, wanted))})"
        )
    if images.dtype not in types or not images.flags.c_contiguous:
        names = " or ".join(np.dtype(kind).name for kind in types)
        raise UsageError(f"the images are {images.dtype}, strides {images.strides}; give {names} in row-major order")
    return images.shape[0], given.filters, given.output_height, given.output_width


def new_outputs(layer: ConvLayer, images: Array, types: Sequence[Any] = (np.float32,)) -> Array:
    """Return an array for the outputs; parameters and errors as those of `outputs_shape`."""
    outputs: Array = cupy().empty(outputs_shape(layer, images, types), images.dtype)
    return outputs


def why_not_plain(geometry: Geometry) -> str | None:
    """Return why a kernel for stride 1, dilation 1 and one group cannot run a convolution; None if it can."""
    if geometry.is_plain:
        return why_too_large(geometry)
    return (
        f"stride {geometry.stride}, dilation {geometry.dilation}, groups {geometry.groups}; the kernel is written for "
        "stride 1, dilation 1 and one group"
    )


def refuse(reason: str | None) -> None:
    """Raise a UsageError if there is a reason."""
    if reason is not None:
        raise UsageError(reason)


def grid_of(columns: int, tiles: int) -> tuple[int, int]:
    """Return a grid of columns x tiles blocks, or fewer of the latter: the kernels loop over them."""
    return columns, min(tiles, GRID_ROWS)


def check_half_range(layer: ConvLayer) -> None:
    """Refuse weights beyond half precision; they are checked once."""
    largest = cache_on_host(layer.source, "largest weight", lambda: _largest_weight(layer.source.weights))
    if largest > HALF_MAX:
        raise UsageError(
            f"the convolution has a weight of {largest:g}; half precision ends at {HALF_MAX:,.0f}: choose float32"
        )


def _largest_weight(weights: Array) -> float:
    return float(np.abs(weights).max(initial=0))
