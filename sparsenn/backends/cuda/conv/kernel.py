"""What kernels of conv2d have in common: how one is described, and how it is launched on its layer's device.

A launch takes a layer and images, a CuPy array (images, channels, height, width) of float32 in row-major order, and
returns the outputs, a new CuPy array (images, filters, output height, output width) of float32. It queues its work on
the current stream and does not wait for it, but for the first one of a layer, which may compile a kernel and lay the
weights out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.backends.cuda.conv.layer import ConvLayer, geometry_of, takes_sum, with_sum
from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import as_current
from sparsenn.backends.cuda.runtime.memory import within_memory
from sparsenn.backends.kernel_records import ConvolutionKernel
from sparsenn.backends.machine import Machine
from sparsenn.backends.prior import Prior
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array
from sparsenn.layers import Conv2d
from sparsenn.network import Image

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
