"""The ladder of `conv2d`: its rungs in order, and one convolution with random filters, of random images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from sparsenn.backends.contract import Backend
from sparsenn.backends.cpu.convolution import DIRECT
from sparsenn.backends.cuda import CUDABackend
from sparsenn.backends.cuda.conv import channels_last, cudnn, implicit, sparse_direct, tensor, warpgroup
from sparsenn.backends.cuda.conv.geometry import Geometry, geometry_of
from sparsenn.backends.cuda.conv.register_tiled import REGISTER_TILED
from sparsenn.backends.cuda.conv.unrolled import UNROLLED
from sparsenn.backends.oracle.images import REFERENCE, convolve
from sparsenn.errors import ResourceError, UsageError
from sparsenn.formats import Array
from sparsenn.layers import Conv2d, Identity, ReLU
from sparsenn.studies.conv2d.direct import float32, half, streamed, swept
from sparsenn.studies.conv2d.products import float32 as products
from sparsenn.studies.conv2d.sequential import SEQUENTIAL
from sparsenn.studies.ladder import Ladder, Work
from sparsenn.studies.sampling import SampledStage, allowed_distance, sampled_rows

LEAST_IMAGES = 64
"""Images that are compared at least, if there are as many."""

MULTIPLY_ADDS = 1 << 29
"""For which images are compared, if that leaves `LEAST_IMAGES`."""

BIAS = 0.1
"""Standard deviation of random biases: small beside the sums, which are about 1."""


def random_problem(rows: int, sizes: Sequence[int], seed: int) -> tuple[Conv2d, Array]:
    """Return a convolution with random filters, followed by ReLU, and random images.

    Weights are normal with variance 2 / (inputs of an output), after He et al. (2015, arXiv:1502.01852); biases and
    images are normal, too. `sizes` are channels, height and width of an image, filters, their height and width in one,
    and the padding. Images are (rows, channels, height, width) float32.
    """
    if rows < 1 or len(sizes) != 6 or min(sizes[:5]) < 1 or sizes[5] < 0 or seed < 0:
        raise UsageError(
            f"{rows} images, sizes {','.join(map(str, sizes))} and seed {seed} make no convolution; that takes at "
            "least 1 image, C,H,W,M,K of at least 1 each, and a padding and a seed of at least 0"
        )
    random = np.random.default_rng(seed)
    channels, height, width, filters, side, padding = sizes
    try:
        weights = random.standard_normal((filters, channels, side, side), np.float32)
        weights *= np.float32(np.sqrt(2 / (channels * side * side)))
        bias = np.float32(BIAS) * random.standard_normal(filters, np.float32)
        layer = Conv2d(weights, bias, ReLU(), padding=padding)
        layer.output_shape((rows, channels, height, width))
        return layer, random.standard_normal((rows, channels, height, width), np.float32)
    except (MemoryError, ValueError) as error:  # NumPy raises the latter for sizes beyond its largest
        raise ResourceError(
            f"{rows:,} images of {channels} x {height} x {width} and {filters} filters of {side} x {side} do not fit "
            "into memory; take fewer --rows, or smaller --sizes"
        ) from error


class ConvolutionStage(SampledStage):
    """The convolution of all images. Some, all where that is little work, are compared with the float64 reference.

    `images` are (images, channels, height, width) float32, on the host.
    """

    def __init__(self, backend: Backend, layer: Conv2d, images: Array) -> None:
        shape, each = layer.output_shape(images.shape), max(1, layer.multiply_adds((1, *images.shape[1:])))
        chosen = sampled_rows(images.shape[0], max(LEAST_IMAGES, MULTIPLY_ADDS // each))
        some = images[chosen]
        allowed = allowed_distance(prod(layer.weights.shape[1:]), _largest_sum(layer, some))
        nbytes = images.nbytes + layer.weights.nbytes + 4 * layer.filters + 4 * prod(shape)
        work = Work(bytes=nbytes, multiply_adds=layer.multiply_adds(images.shape))
        given = _placed(backend, layer, images)
        super().__init__(backend, given, chosen, shape, convolve(layer, some), allowed, work)


def _largest_sum(layer: Conv2d, images: Array) -> float:
    """Return what the absolute values of the terms of any output cannot exceed.

    The products of two vectors add up to no more than the product of their Euclidean lengths; here, of the longest
    filter and the longest window, which is found by summing squares.
    """
    squares = np.einsum("bchw,bchw->bhw", images, images, dtype=np.float64)[:, None]
    ones = np.ones((1, 1, *layer.kernel_size), np.float32)
    windows = convolve(Conv2d(ones, None, Identity(), *layer.sliding_window[1:]), squares)
    filters = np.einsum("mcij,mcij->m", layer.weights, layer.weights, dtype=np.float64)
    longest = np.sqrt(windows.max(initial=0.0) * filters.max(initial=0.0))
    return float(longest + np.abs(layer.bias_vector()).max(initial=0.0))


def _placed(backend: Backend, layer: Conv2d, images: Array) -> tuple[Any, Any]:
    image = images.shape[1:]
    stack = backend.prepare((layer,), shapes=(image, layer.output_shape(images.shape)[1:]))
    if not isinstance(backend, CUDABackend):
        return stack.prepared[0], images
    rows: Any = backend.place(images.reshape(images.shape[0], prod(image)))
    return stack.prepared[0], rows.reshape(images.shape)


def _modelled(layer: Conv2d, images: Array) -> tuple[Geometry, int, int]:
    count, channels, height, width = images.shape
    return geometry_of(layer, (channels, height, width)), count, images.itemsize


LADDER = Ladder(
    "conv2d",
    "convolution",
    lambda *problem: (ConvolutionStage(*problem),),
    rungs={
        "cuda": (
            float32.BASELINE,
            float32.CONSTANT_FILTERS,
            UNROLLED,
            float32.TILED_SHARED,
            half.HALF,
            float32.PER_SHAPE,
            float32.IMPLICIT_GEMM,
            swept.SWEPT,
            streamed.STREAMED,
            REGISTER_TILED,
            products.NAIVE,
            products.COALESCED,
            products.BLOCK_TILED,
            products.SHARED_TILED,
            products.VECTORIZED,
            tensor.TENSOR_FLOAT32,
            tensor.TENSOR_TF32,
            tensor.TENSOR_HALF,
            implicit.IMPLICIT_FLOAT32,
            warpgroup.WARPGROUP_FLOAT32,
            warpgroup.WARPGROUP_TF32,
            warpgroup.WARPGROUP_HALF,
            sparse_direct.SPARSE_DIRECT,
            cudnn.CUDNN_FLOAT32,
            channels_last.CUDNN_TF32,
            channels_last.CUDNN_FLOAT16,
            products.LIBRARY,  # no rung, but what they are held against
        ),
        "cpu": (SEQUENTIAL, DIRECT),
        "reference": (REFERENCE,),
    },
    sweeps={swept.SWEPT.name: swept.PIXELS_VARIED},
    problem=random_problem,
    rows=1000,
    sizes=(1, 86, 86, 4, 7, 0),
    form="channels,height,width,filters,side[,padding]",
    row="image",
    asked=lambda layer, images: (layer, images.shape[1:]),
    modelled=_modelled,
    scaled=True,
)
"""Two stories told one after the other, the direct convolution's and the product's, then tensor cores, which go on from
the latter; the engine's own kernels stand where they belong."""
