"""Running dense layers and layers of images as steps on any backend: what kernels do not do by themselves.

Layers of images run one a launch, on rows that hold an image each.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from sparsenn.backends.contract import (
    Backend,
    DenseKernel,
    ImageStack,
    Kernel,
    LayerCounts,
    StepInput,
    StepOutput,
)
from sparsenn.formats import Array
from sparsenn.layers import Conv2d, ImageLayer, Linear

__all__ = [
    "IMAGE_OPERATION",
    "finished_step",
    "image_kernel",
    "launch_dense",
    "launch_images",
    "prepared_as_they_are",
    "run_images",
]

IMAGE_OPERATION = "images"
"""What layers of images other than convolutions are. It has no registered kernels: each backend has one function."""


def image_kernel(backend: Backend, layer: ImageLayer) -> Kernel:
    """Return what runs a layer that is no convolution: the backend's own function, under the layer's name."""
    return Kernel(
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


def launch_images(backend: Backend, kernel: Kernel, step: StepInput) -> StepOutput:
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


def launch_dense(backend: Backend, kernel: DenseKernel, layers: Sequence[Linear], step: StepInput) -> StepOutput:
    """Run a step with a kernel of `mlp`, and count and drop rows as kernels of `spmspm` do by themselves.

    Parameters
    ----------
    layers : what the step's stack was prepared from; every output stands for one neuron.
    step : all layers of the stack that `backend.prepare_dense` made of them. `scatter` and `deduplicate` are not
        looked at.

    Returns
    -------
    Dense features. Of all layers but the last the counts say neither active inputs nor non-zeros.
    """
    outputs = kernel.launch(step.stack, backend.as_dense(step.features))
    rows = int(outputs.shape[0])
    edges = tuple(rows * layer.edges for layer in layers)
    return finished_step(backend, kernel.name, edges, outputs, step)


def finished_step(backend: Backend, kernel: str, edges: Sequence[int], outputs: Array, step: StepInput) -> StepOutput:
    """Count what a launch that gives dense rows has computed, and drop the rows that may go.

    Parameters
    ----------
    kernel : name of what computed it.
    edges : multiply-adds done, layer by layer.
    outputs : a matrix on the device, a row for each of the step's, all of them.
    """
    nonzeros = backend.count_nonzeros(outputs)
    rows, alive = nonzeros.size, nonzeros > 0
    hidden = (LayerCounts(kernel, rows, None, None, done) for done in edges[:-1])
    last = LayerCounts(
        kernel=kernel,
        rows=rows,
        active_inputs=int(step.multiplicity[alive].sum()),
        nonzeros=int(nonzeros @ step.multiplicity),
        performed_edges=edges[-1],
    )
    kept = np.flatnonzero(alive) if step.last > step.droppable_from else np.arange(rows)
    features = outputs if kept.size == rows else backend.take_rows(outputs, kept)
    return StepOutput(features, kept, (*hidden, last))
