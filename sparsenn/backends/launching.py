"""Launching the kernels of layers with dense outputs, on any backend; a row of images holds one image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import prod
from operator import add
from typing import Any

import numpy as np

from sparsenn.backends.foreign import run_foreign
from sparsenn.backends.kernel_records import IMAGE_OPERATION, ConvolutionKernel, Kernel, Shapes
from sparsenn.formats import Array
from sparsenn.layers import Activation, Add, CombiningLayer, Concatenate, ForeignLayer, ImageLayer, Multiply


def image_kernel(device: str, layer: ImageLayer) -> Kernel:
    """Return what runs a layer that is no convolution: the function that it is prepared as, under the layer's name."""
    return Kernel(
        operation=IMAGE_OPERATION,
        name=layer.name,
        device=device,
        summary="the backend's own function",
        launch=lambda run, *matrices: run(*matrices),
        half_rows=True,
    )


def combine_rows(
    layer: CombiningLayer,
    matrices: Sequence[Array],
    activate: Callable[[Activation, Array], Array] = lambda activation, values: activation(values),
) -> Array:
    """Combine (rows, features) matrices, by functions that NumPy and CuPy arrays share."""
    if isinstance(layer, ForeignLayer):
        return _on_the_host(layer, matrices)
    if isinstance(layer, Concatenate):
        return np.concatenate(matrices, axis=1)
    assert isinstance(layer, Add | Multiply)
    return activate(layer.activation, reduce(_multiply if isinstance(layer, Multiply) else add, matrices))


def combined_width(layer: CombiningLayer, widths: Sequence[int]) -> int:
    """Return the width of what `combine_rows` makes of matrices of these widths."""
    if isinstance(layer, ForeignLayer):
        return layer.outputs
    return sum(widths) if isinstance(layer, Concatenate) else max(widths)


def _multiply(one: Array, other: Array) -> Array:
    """Return the product of matrices; the narrower one holds a factor for each channel of the other's images."""
    wide, narrow = (one, other) if one.shape[1] >= other.shape[1] else (other, one)
    (rows, width), channels = wide.shape, narrow.shape[1]
    if width == channels:
        return wide * narrow
    return (wide.reshape(rows, channels, width // channels) * narrow[:, :, None]).reshape(rows, width)


def _on_the_host(layer: ForeignLayer, matrices: Sequence[Array]) -> Array:
    first: Any = matrices[0]
    if isinstance(first, np.ndarray):
        return run_foreign(layer, matrices).astype(first.dtype, copy=False)
    fetched: list[Any] = list(matrices)
    outputs = run_foreign(layer, [matrix.get() for matrix in fetched])
    placed = type(first)(outputs.shape, first.dtype)
    placed.set(outputs.astype(first.dtype, copy=False))
    return placed


def launch_of(kernel: Kernel, stack: Any) -> Callable[..., Array]:
    """Return the function that runs prepared layers on row-major matrices on the device, one row per input."""
    if isinstance(kernel, ConvolutionKernel):
        if kernel.run_stack is not None:
            return partial(kernel.run_stack, stack)
        layer, sums = stack.prepared[0], stack.layers[1:]
        if sums:
            assert kernel.with_sum is not None, "other kernels run no sum"
            layer = kernel.with_sum(layer, *sums)
        return partial(_run_convolution, kernel, layer, stack.shapes)
    if kernel.operation == IMAGE_OPERATION:
        return partial(kernel.launch, *stack.prepared)
    return partial(kernel.launch, stack)


def _run_convolution(kernel: ConvolutionKernel, layer: Any, shapes: Shapes, features: Array, *terms: Array) -> Array:
    rows = features.shape[0]
    others = (each.reshape(rows, *shapes[1]) for each in terms)
    images = kernel.launch(layer, features.reshape(rows, *shapes[0]), *others)
    return images.reshape(rows, prod(shapes[1]))
