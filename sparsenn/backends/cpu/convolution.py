"""The kernel of conv2d on the CPU: sums over shifted planes of pixels (`grids`, `image_operations`, `image_graph`)."""

from __future__ import annotations

from math import prod

import numpy as np

from sparsenn.backends.cpu.activation import unknown_activation
from sparsenn.backends.cpu.image_graph import graph_of, run_graph
from sparsenn.backends.cpu.image_packing import work_of
from sparsenn.backends.cpu.processor import PANELS
from sparsenn.backends.kernel_records import ConvolutionKernel, Shapes
from sparsenn.backends.machine import Machine
from sparsenn.backends.registry import register
from sparsenn.backends.sizes import FLOAT_BYTES
from sparsenn.formats import Array
from sparsenn.layers import Add, AvgPool2d, Concatenate, Conv2d, Flatten, ImageLayer, MaxPool2d, Multiply
from sparsenn.layers.activation_names import table_row
from sparsenn.network import Image


def launch_direct(layer: Conv2d, images: Array) -> Array:
    """Convolve float32 images of shape (images, channels, height, width)."""
    shape = layer.output_shape(images.shape)
    rows = np.ascontiguousarray(images, np.float32).reshape(shape[0], prod(images.shape[1:]))
    return run_graph(graph_of((layer,), (images.shape[1:], shape[1:])), rows).reshape(shape)


def _seconds_direct(machine: Machine, layer: Conv2d, image: Image) -> float:
    outputs = layer.output_shape((1, *image))
    return PANELS.seconds(machine, work_of(layer) * prod(outputs[2:]), FLOAT_BYTES * (prod(image) + prod(outputs)), 0)


def _fuses(layer: ImageLayer, shapes: Shapes) -> bool:
    kinds = MaxPool2d | AvgPool2d | Flatten | Concatenate | Add | Multiply
    known = not isinstance(layer, Add | Multiply) or table_row(layer.activation) is not None
    return isinstance(layer, kinds) and known and all(len(shape) == 3 for shape in shapes)


DIRECT = register(
    ConvolutionKernel(
        name="conv_direct",
        device="cpu",
        summary="weighted sums of shifted planes of pixels, zeros left out; images stay in cache from layer to layer",
        launch=launch_direct,
        fuses=_fuses,
        run_stack=run_graph,
        auto=True,
        seconds=_seconds_direct,
        why_not=lambda machine, layer, image: unknown_activation([layer]),
        reproducible=True,
    )
)
