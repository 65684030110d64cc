"""The kernels of conv2d on the CPU: sums over shifted planes of pixels, and a BLAS product of patches.

*conv_direct*: images go through convolutions and poolings in panels (`planes`, `windows`, `image_chain`); weights that
are zero are left out.

*conv_im2col_blas*: each window becomes a column of a matrix, which BLAS multiplies with the filters.

A launch takes the layer and images, float32 of shape (images, channels, height, width), and returns float32 of shape
(images, filters, output height, output width).
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sparsenn.backends.contract import ConvolutionKernel, Tunable
from sparsenn.backends.convolution_sizes import sizes_in_words
from sparsenn.backends.cpu.activation import activation_code
from sparsenn.backends.cpu.image_chain import chain_of, run_chain
from sparsenn.backends.cpu.planes import shared_taps
from sparsenn.backends.cpu.windows import ENOUGH, LANES, PANEL
from sparsenn.backends.machine import Machine
from sparsenn.backends.registry import register
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.layers import AvgPool2d, Conv2d, Flatten, MaxPool2d
from sparsenn.network import Image
from sparsenn.runtime.workers import chunks, map_threads

__all__ = ["DIRECT", "IM2COL_BLAS", "conv2d_sizes", "launch_direct", "launch_im2col_blas"]

PIECE_BYTES = 16 << 20
"""Patches that are multiplied in one product."""

PIECE_BYTES_TO_TRY = tuple(1 << power for power in range(18, 28))
"""What `tune` tries in place of `PIECE_BYTES`: 256 KiB to 128 MiB."""

# Seconds of a core, about as measured with AVX-512.
MULTIPLY_ADD = 2.2e-11  # of `conv_direct`, of four filters
MULTIPLY_ADD_ALONE = 4.4e-11  # of `conv_direct`, of one filter
LIBRARY_MULTIPLY_ADD = 2.2e-11  # of BLAS
TAPS = 5e-9  # of beginning with another four taps
PATCH = 6e-10  # of an element of a patch
OUTPUT = 5e-10  # of an output of `conv_direct`
LIBRARY_OUTPUT = 5e-9  # of an output of `conv_im2col_blas`


def launch_direct(layer: Conv2d, images: Array) -> Array:
    """Compute a convolution as weighted sums of shifted planes.

    Raises
    ------
    ShapeError
        The layer does not take such images.
    UsageError
        The kernel does not know its activation.
    """
    shape = layer.output_shape(images.shape)
    rows = np.ascontiguousarray(images, np.float32).reshape(shape[0], prod(images.shape[1:]))
    return run_chain(chain_of((layer,), (images.shape[1:], shape[1:])), rows).reshape(shape)


def launch_im2col_blas(layer: Conv2d, images: Array, piece_bytes: int = PIECE_BYTES) -> Array:
    """Compute a convolution as products of the filters and all windows, some images at a time.

    Parameters
    ----------
    layer, images : as all launches take them.
    piece_bytes : of windows that are multiplied in one product, if an image's take no more than that.

    Raises
    ------
    ShapeError
        The layer does not take such images.
    """
    shape = layer.output_shape(images.shape)
    _, stride, (above, beside), dilation = layer.sliding_window
    span_down, span_across = (apart * (size - 1) + 1 for size, apart in zip(layer.kernel_size, dilation, strict=True))
    depth, pixels = layer.channels // layer.groups * prod(layer.kernel_size), prod(shape[2:])
    column = layer.groups * depth
    weights, bias = layer.weights.reshape(layer.groups, -1, depth), layer.bias_vector()[:, None]
    outputs = np.empty((shape[0], layer.filters, pixels), np.float32)
    together = max(1, min(shape[0], piece_bytes // (4 * column * pixels)))
    held, held_sums = np.empty(column * together * pixels, np.float32), np.empty(outputs[:together].size, np.float32)
    for first, last in chunks(shape[0], together):
        given = images[first:last].astype(np.float32, copy=False)
        padded = np.pad(given, ((0, 0), (0, 0), (above, above), (beside, beside))) if above or beside else given
        windows = sliding_window_view(padded, (span_down, span_across), axis=(2, 3))
        chosen = windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]].transpose(1, 4, 5, 0, 2, 3)
        patches = held[: chosen.size].reshape(chosen.shape)
        sums = held_sums[: (last - first) * layer.filters * pixels].reshape(layer.groups, weights.shape[1], -1)
        by_filter = sums.reshape(layer.filters, last - first, pixels)

        def cut(place: int, patches: Array = patches, chosen: Array = chosen) -> None:
            """Copy what one row of the filters meets in one channel."""
            channel, row = divmod(place, layer.kernel_size[0])
            patches[channel, row] = chosen[channel, row]

        def finish(image: int, first: int = first, by_filter: Array = by_filter) -> None:
            outputs[first + image] = layer.activation(by_filter[:, image] + bias)

        map_threads(cut, range(layer.channels * layer.kernel_size[0]))
        np.matmul(weights, patches.reshape(layer.groups, depth, -1), out=sums)
        map_threads(finish, range(last - first))
    return outputs.reshape(shape)


def _seconds_direct(machine: Machine, layer: Conv2d, image: Image) -> float:
    """Estimate what one of many images takes."""
    height, width = layer.output_shape((1, *image))[2:]
    walks = height if width * PANEL >= ENOUGH else -(-height * width * PANEL // LANES)
    seconds = OUTPUT * layer.filters * height * width
    for block in shared_taps(layer.weights.reshape(layer.filters, -1), layer.filters // layer.groups):
        multiply_add = MULTIPLY_ADD_ALONE if len(block.weights) == 1 else MULTIPLY_ADD
        seconds += height * width * multiply_add * block.weights.size + walks * TAPS * block.taps.size / 4 / PANEL
    return seconds


def _seconds_im2col_blas(machine: Machine, layer: Conv2d, image: Image) -> float:
    """Estimate what one image takes: the patches, then the product."""
    pixels = prod(layer.output_shape((1, *image))[2:])
    patches = layer.channels * prod(layer.kernel_size) * pixels
    return PATCH * patches + LIBRARY_MULTIPLY_ADD * layer.edges * pixels + LIBRARY_OUTPUT * layer.filters * pixels


def _why_not_direct(machine: Machine, layer: Conv2d, image: Image) -> str | None:
    try:
        activation_code(layer.activation)
    except UsageError as error:
        return str(error)
    return None


def conv2d_sizes(layer: Conv2d, images: Array) -> str:
    """Return the sizes of a convolution, and about how many images there are, as `Tunable.sizes`."""
    return sizes_in_words(images.shape, layer.weights.shape, *layer.sliding_window[1:])


DIRECT = register(
    ConvolutionKernel(
        name="conv_direct",
        device="cpu",
        summary="weighted sums of shifted planes of pixels, zeros left out; images stay in cache from layer to layer",
        launch=launch_direct,
        fuses=(MaxPool2d, AvgPool2d, Flatten),
        run_stack=run_chain,
        auto=True,
        seconds=_seconds_direct,
        why_not=_why_not_direct,
        reproducible=True,
    )
)
IM2COL_BLAS = register(
    ConvolutionKernel(
        name="conv_im2col_blas",
        device="cpu",
        summary="windows laid out as columns, one product of NumPy's for many images",
        launch=launch_im2col_blas,
        auto=True,
        seconds=_seconds_im2col_blas,
        tunable=Tunable(
            parameters={"piece_bytes": PIECE_BYTES_TO_TRY},
            launch_with=lambda numbers: partial(launch_im2col_blas, piece_bytes=numbers["piece_bytes"]),
            sizes=conv2d_sizes,
        ),
    )
)
