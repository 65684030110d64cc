"""The plainest convolution: a loop for each index, on one thread."""

from __future__ import annotations

import numpy as np

from sparsenn.backends.kernel_records import ConvolutionKernel
from sparsenn.formats import Array
from sparsenn.layers import Conv2d
from sparsenn.layers.images import Pair
from sparsenn.runtime.jit import compiled


@compiled
def _convolve(
    image: Array, weights: Array, bias: Array, stride: Pair, padding: Pair, dilation: Pair, per_group: int, out: Array
) -> None:
    """Write the sums of one image into `out`, all float32.

    image : (channels, height, width). weights : (filters, channels / groups, kernel height, kernel width).
    per_group : filters of a group. out : (filters, output height, output width).
    """
    channels = weights.shape[1]
    for number in range(out.shape[0]):
        first = number // per_group * channels
        for row in range(out.shape[1]):
            for column in range(out.shape[2]):
                total = bias[number]
                for channel in range(channels):
                    for i in range(weights.shape[2]):
                        y = row * stride[0] - padding[0] + i * dilation[0]
                        if y < 0 or y >= image.shape[1]:
                            continue
                        for j in range(weights.shape[3]):
                            x = column * stride[1] - padding[1] + j * dilation[1]
                            if x >= 0 and x < image.shape[2]:
                                total += image[first + channel, y, x] * weights[number, channel, i, j]
                out[number, row, column] = total


def launch_sequential(layer: Conv2d, images: Array) -> Array:
    """Compute a convolution, one image after the other."""
    outputs = np.empty(layer.output_shape(images.shape), np.float32)
    given, bias = np.ascontiguousarray(images, np.float32), layer.bias_vector()
    for image, sums in zip(given, outputs, strict=True):
        _convolve(image, layer.weights, bias, *layer.sliding_window[1:], layer.filters // layer.groups, sums)
        sums[...] = layer.activation(sums)
    return outputs


SEQUENTIAL = ConvolutionKernel(
    name="conv_sequential",
    device="cpu",
    summary="a loop for each index on one thread, a sum at a time",
    launch=launch_sequential,
)
