"""Running layers of images on any backend, one a launch, on rows that hold an image each."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from sparsenn.backends.contract import Backend, ImageStack, Kernel
from sparsenn.formats import Array
from sparsenn.layers import Conv2d, ImageLayer

__all__ = ["IMAGE_OPERATION", "image_kernel", "prepared_as_they_are", "run_images"]

IMAGE_OPERATION = "images"
"""What layers of images other than convolutions are. It has no registered kernels: each backend has one function."""


def image_kernel(backend: Backend, layer: ImageLayer) -> Kernel:
    """Return what runs a layer that is no convolution: the backend's own function, under the layer's name."""

    def launch(layer: ImageLayer, shape: tuple[int, ...], features: Array) -> Array:
        return backend.run_image_layer(layer, shape, features)

    return Kernel(
        operation=IMAGE_OPERATION,
        name=layer.name,
        device=backend.device,
        summary="the backend's own function",
        launch=launch,
        half_rows=True,
    )


def prepared_as_they_are(layers: Sequence[ImageLayer], shapes: Sequence[tuple[int, ...]]) -> ImageStack:
    """Return layers of images for backends whose kernels take a `Conv2d` itself."""
    return ImageStack(tuple(layers), tuple(shapes), tuple(layers))


def run_images(kernel: Kernel, stack: ImageStack, number: int, features: Array) -> Array:
    """Run one layer of a stack.

    Parameters
    ----------
    kernel : a kernel of `conv2d` for a convolution, else what `image_kernel` returned.
    number : the layer's, counted from 0 within the stack.
    features : a row-major matrix on the device, a row an input.

    Returns
    -------
    The same of the outputs.
    """
    layer, shape = stack.layers[number], stack.shapes[number]
    if not isinstance(layer, Conv2d):
        outputs: Array = kernel.launch(layer, shape, features)
        return outputs
    rows = features.shape[0]
    images = kernel.launch(stack.prepared[number], features.reshape(rows, *shape))
    flat: Array = images.reshape(rows, prod(stack.shapes[number + 1]))
    return flat
