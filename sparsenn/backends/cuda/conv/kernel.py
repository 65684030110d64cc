"""The description of a kernel of conv2d, and its launch on its layer's device.

A launch takes a layer and images, a CuPy array (images, channels, height, width) of float32 in row-major order, and
returns the outputs, a new CuPy array (images, filters, output height, output width) of float32. It queues its work on
the current stream and does not wait for it, but for the first one of a layer, which may compile a kernel and lay the
weights out.

Kernels that are compiled for one convolution have its numbers as defines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.geometry import ConvLayer, Geometry, geometry_of, takes_sum, why_too_large, with_sum
from sparsenn.backends.cuda.runtime.activation import compiled_activation
from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import as_current, cupy
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_host
from sparsenn.backends.cuda.runtime.memory import within_memory
from sparsenn.backends.kernel_records import ConvolutionKernel
from sparsenn.backends.machine import GRID_ROWS, Machine
from sparsenn.backends.prior import Prior
from sparsenn.backends.sizes import parts_of
from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.layers import Conv2d
from sparsenn.layers.elementwise import HALF_MAX
from sparsenn.network import Image

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
    return cupy().empty(outputs_shape(layer, images, types), images.dtype)


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


HELD_BYTES = 1 << 30  # of images that are laid out at a time: little beside the device's memory
IMAGES = 256  # images of which a prior takes the share of one: most devices are full, and launches cost little

Launch = Callable[..., Array]  # of a `ConvLayer`, images, and a sum's other term, where the kernel takes it along
Fits = Callable[[Machine, Geometry], str | None]


def convolution(
    name: str,
    launch: Launch,
    summary: str,
    fits: Fits,
    *,
    needs: tuple[str, ...] = (),
    gpu: str = ANY_GPU,
    prior: Prior | None = None,
    multiples: tuple[int, int] = (1, 1),
    skips_zeros: bool = False,
    adds: bool = False,
    **fields: Any,
) -> ConvolutionKernel:
    """Describe a kernel of conv2d on the GPU, with further `fields` of `Kernel`; it remains to be registered.

    `fits` returns why a machine cannot run a convolution, or None. `auto` may take a kernel with a prior, by which
    filters, and channels of a group, are multiplied as if there were a multiple of `multiples`; of one that
    `skips_zeros`, only weights other than zero count. The launch of one that `adds` takes a sum's other term as well.
    """
    if adds:
        fields |= {"with_sum": with_sum, "fuses": takes_sum}
    return ConvolutionKernel(
        name=name,
        device="cuda",
        summary=summary,
        launch=partial(_launch, launch),
        needs=(gpu, *needs),
        why_not=partial(_why_not, fits),
        seconds=partial(_seconds, prior, multiples, skips_zeros) if prior else None,
        **fields,
    )


def everywhere(fits: Callable[[Geometry], str | None]) -> Fits:
    """Return what says why a convolution cannot be run where that is the same on all machines."""
    return lambda machine, geometry: fits(geometry)


def _why_not(fits: Fits, machine: Machine, layer: Conv2d, image: Image) -> str | None:
    return fits(machine, geometry_of(layer, image))


def _seconds(
    prior: Prior, multiples: tuple[int, int], skips_zeros: bool, machine: Machine, layer: Conv2d, image: Image
) -> float:
    geometry = geometry_of(layer, image)
    channels = geometry.channels // geometry.groups
    filters, depth = (
        parts_of(size, most) * most for size, most in zip((geometry.filters, channels), multiples, strict=True)
    )
    pixels = geometry.output_height * geometry.output_width
    products = layer.nonzeros if skips_zeros else filters * depth * geometry.kernel[0] * geometry.kernel[1]
    numbers = geometry.channels * geometry.height * geometry.width + geometry.filters * pixels
    weights = geometry.filters * geometry.depth
    return prior.seconds(machine, IMAGES * products * pixels, 4 * (IMAGES * numbers + weights)) / IMAGES


def _launch(launch: Launch, layer: ConvLayer, images: Array, *terms: Array) -> Array:
    given = layer.geometry
    outputs = given.filters * given.output_height * given.output_width
    with as_current(layer.device), within_memory("a convolution", images.shape[0], 8 * outputs):
        return launch(layer, images, *terms)
