"""Layers of images, whichever backend runs them: one layer a launch, on rows that hold an image each."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from sparsenn.backends.base import Backend, ImageStack, StepInput, StepOutput, Variant, finished_step
from sparsenn.formats import Array
from sparsenn.layers import Conv2d, ImageLayer

__all__ = ["IMAGE_OPERATION", "image_kernel", "launch_images", "prepared_as_they_are", "run_images"]

IMAGE_OPERATION = "images"
"""What layers of images other than convolutions are. It has no registered variants: each backend has one function."""


def image_kernel(backend: Backend, layer: ImageLayer) -> Variant:
    """Return what runs a layer that is no convolution: the backend's own function, under the layer's name."""
    return Variant(
        operation=IMAGE_OPERATION,
        name=layer.name,
        device=backend.device,
        summary="the backend's own function",
        launch=backend.run_image_layer,
        half_rows=True,
    )


def prepared_as_they_are(layers: Sequence[ImageLayer], shapes: Sequence[tuple[int, ...]]) -> ImageStack:
    """Return layers of images for backends whose kernels take a `Conv2d` itself."""
    return ImageStack(tuple(layers), tuple(shapes), tuple(layers))


def run_images(kernel: Variant, stack: ImageStack, number: int, features: Array) -> Array:
    """Run one layer of a stack.

    Parameters
    ----------
    kernel : a variant of `conv2d` for a convolution, else what `image_kernel` returned.
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


def launch_images(backend: Backend, kernel: Variant, step: StepInput) -> StepOutput:
    """Run a step of one layer of images, and count and drop rows as `launch_dense` does.

    Parameters
    ----------
    kernel : as `run_images` takes it.
    step : its stack is what `backend.prepare_images` made. `scatter` and `deduplicate` are not looked at.

    Returns
    -------
    Dense features.
    """
    assert step.last == step.first + 1, "layers of images are run one by one"
    stack: ImageStack = step.stack
    outputs = run_images(kernel, stack, step.first, backend.as_dense(step.features))
    edges = stack.layers[step.first].multiply_adds((int(outputs.shape[0]), *stack.shapes[step.first]))
    return finished_step(backend, kernel.name, (edges,), outputs, step)
