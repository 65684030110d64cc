"""Running layers of images on any backend, on rows that hold an image each."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from sparsenn.backends.contract import Backend, ConvolutionKernel, ImageStack, Kernel
from sparsenn.formats import Array
from sparsenn.layers import Add, CombiningLayer, Conv2d, ImageLayer

__all__ = ["IMAGE_OPERATION", "combine_rows", "image_kernel", "prepared_as_they_are", "run_images"]

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


def combine_rows(layer: CombiningLayer, matrices: Sequence[Array]) -> Array:
    """Add or concatenate matrices, by functions that NumPy's arrays know, and CuPy's.

    Parameters
    ----------
    matrices : (rows, features) each, or (rows, channels · height · width).
    """
    if not isinstance(layer, Add):
        return np.concatenate(matrices, axis=1)
    first, second, *others = matrices
    total = first + second
    for matrix in others:
        total += matrix
    return layer.activation(total)


def run_images(kernel: Kernel, stack: ImageStack, features: Array) -> Array:
    """Run the layer of a stack; or all of them, where the kernel fuses layers.

    Parameters
    ----------
    kernel : a kernel of `conv2d` for convolutions and what it fuses with them, else what `image_kernel` returned.
    features : a row-major matrix on the device, a row an input.

    Returns
    -------
    The same of the outputs.
    """
    if isinstance(kernel, ConvolutionKernel) and kernel.run_stack is not None:
        return kernel.run_stack(stack, features)
    (layer,), rows = stack.layers, features.shape[0]
    if not isinstance(layer, Conv2d):
        outputs: Array = kernel.launch(layer, stack.shapes[0], features)
        return outputs
    images = kernel.launch(stack.prepared[0], features.reshape(rows, *stack.shapes[0]))
    flat: Array = images.reshape(rows, prod(stack.shapes[1]))
    return flat
