"""Convolutions as NumPy computes them in float64, and how far other arithmetic may stray from that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from formulas import steepest
from hypothesis import strategies as st

from sparsenn.backends.cuda.conv import Geometry, upload_conv
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.layers import Conv2d
from sparsenn.layers.activation import Elementwise

__all__ = [
    "CASES",
    "absolute_sums",
    "assert_near_conv2d",
    "drawn_numbers",
    "few_channels",
    "geometries",
    "launched",
    "options_of",
    "plain_geometries",
    "reference_conv2d",
    "uploaded",
]

ROUNDING = 2.0**-24
"""Half of the distance from 1 to the next float32."""

ALLOWED = {"tf32": 5e-3, "float16": 1e-2}
"""Of precisions other than float32, in parts of the largest output before the activation."""


_SAME = {"padding": (1, 1)}
CASES = {
    "square": (2, Geometry(64, 14, 14, 64, (3, 3), **_SAME)),
    "ragged": (3, Geometry(70, 9, 10, 70, (3, 3), **_SAME)),
    "strips": (1, Geometry(5, 12, 70, 20, (3, 3), **_SAME)),
    "odd": (1, Geometry(5, 11, 37, 20, (3, 5), (1, 1), (1, 2))),
    "pairs": (2, Geometry(9, 5, 98, 10, (3, 3), **_SAME)),
    "fours": (1, Geometry(9, 5, 100, 10, (3, 3), (1, 1), (0, 1))),
    "strided": (2, Geometry(3, 23, 31, 20, (5, 3), (2, 2), (2, 1))),
    "spread": (2, Geometry(3, 23, 31, 20, (3, 4), (3, 2), (2, 3), (2, 3))),
    "dilated": (2, Geometry(3, 23, 31, 20, (3, 4), (1, 1), (2, 3), (2, 3))),
    "pointwise": (5, Geometry(130, 7, 7, 33, (1, 1))),
    "even": (5, Geometry(130, 5, 6, 33, (2, 2))),
    "grown": (2, Geometry(6, 4, 5, 7, (2, 2), (1, 1), (3, 4))),
    "single": (70, Geometry(64, 1, 1, 40, (1, 1))),
    "far": (3, Geometry(20, 6, 6, 18, (2, 2), (3, 3), (3, 3), (3, 3))),
    "none": (0, Geometry(64, 14, 14, 64, (3, 3), **_SAME)),
    "wide": (2, Geometry(64, 50, 224, 64, (3, 3), **_SAME)),
    "deep": (16, Geometry(512, 14, 14, 512, (3, 3), **_SAME)),
    "last": (4, Geometry(512, 7, 7, 512, (3, 3), **_SAME)),
    "first": (4, Geometry(3, 112, 112, 64, (7, 7), (2, 2), (3, 3))),
    "many": (300, Geometry(24, 9, 9, 40, (3, 3), **_SAME)),
    "tall": (3, Geometry(33, 301, 5, 65, (5, 1), (1, 1), (2, 0))),
    "flat": (3, Geometry(33, 1, 301, 65, (1, 5), (1, 1), (0, 2))),
    "few": (50, Geometry(2, 20, 21, 5, (5, 5))),
    "bare": (2, Geometry(9, 8, 12, 6, (3, 4))),
    "digits": (300, Geometry(1, 86, 86, 4, (7, 7))),
    "several": (137, Geometry(4, 40, 40, 16, (7, 7))),
    "one number": (33, Geometry(1, 7, 7, 1, (7, 7))),
    "bands": (2, Geometry(3, 225, 223, 10, (5, 3), padding=(2, 1))),
    "one filter": (7, Geometry(1, 100, 100, 1, (11, 11))),
    "line": (5, Geometry(2, 17, 300, 3, (1, 19))),
    "filters": (29, Geometry(1, 28, 28, 100, (6, 6))),
    "padded": (200, Geometry(16, 12, 12, 16, (5, 5), padding=(2, 2))),
}
"""Images, and their geometry."""


def reference_conv2d(
    images: np.ndarray,
    weights: np.ndarray,
    bias: float | np.ndarray | None = None,
    activation: Callable[[np.ndarray], np.ndarray] | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> np.ndarray:
    """Return activation(weights * images + bias) in float64, (images, filters, output height, output width).

    For each element of the filters, the pixels that it meets are cut out of the padded images and multiplied.

    Parameters
    ----------
    images : (images, channels, height, width).
    weights : (filters, channels / groups, kernel height, kernel width).
    bias : None, one number, or (filters,).
    activation : of each element; none unless given.
    stride, padding, dilation : one number, or one down and one across.
    """
    stride_down, stride_across = _both(stride)
    above, beside = _both(padding)
    apart_down, apart_across = _both(dilation)
    kernel_height, kernel_width = weights.shape[2:]
    count, _, height, width = images.shape
    padded = np.pad(images.astype(np.float64), ((0, 0), (0, 0), (above, above), (beside, beside)))
    output_height = (height + 2 * above - apart_down * (kernel_height - 1) - 1) // stride_down + 1
    output_width = (width + 2 * beside - apart_across * (kernel_width - 1) - 1) // stride_across + 1
    filters = weights.shape[0]
    sums = np.zeros((count, groups, filters // groups, output_height, output_width))
    parts = padded.reshape(count, groups, weights.shape[1], *padded.shape[2:])
    parted = weights.astype(np.float64).reshape(groups, filters // groups, *weights.shape[1:])
    for row in range(kernel_height):
        down = slice(row * apart_down, row * apart_down + stride_down * (output_height - 1) + 1, stride_down)
        for column in range(kernel_width):
            first = column * apart_across
            across = slice(first, first + stride_across * (output_width - 1) + 1, stride_across)
            sums += np.einsum("bgchw,gmc->bgmhw", parts[:, :, :, down, across], parted[..., row, column], optimize=True)
    sums = sums.reshape(count, filters, output_height, output_width)
    if bias is not None:
        sums += np.broadcast_to(np.asarray(bias, np.float64), (filters,))[:, None, None]
    return sums if activation is None else activation(sums)


def absolute_sums(
    images: np.ndarray, weights: np.ndarray, bias: float | np.ndarray | None = None, **options
) -> np.ndarray:
    """Return the sum of the absolute values of all that is added up for each output, in float64."""
    sizes = None if bias is None else np.abs(bias)
    return reference_conv2d(np.abs(images), np.abs(weights), sizes, **options)


def assert_near_conv2d(
    found: np.ndarray,
    images: np.ndarray,
    weights: np.ndarray,
    bias: float | np.ndarray | None = None,
    activation: Callable[[np.ndarray], np.ndarray] | None = None,
    precision: str = "float32",
    steepness: float = 1.0,
    **options,
) -> None:
    """Fail unless `found` is as close to the float64 answer as a precision allows; NaN never is.

    A float32 sum of n products in any order is off by at most (n + 2) · 2⁻²⁴ · (sum of absolute values), times how
    steep the activation is, which adds a few roundings of its own. Of other precisions, see `ALLOWED`.

    Parameters
    ----------
    precision : float32, tf32 or float16.
    steepness : how steep an activation is at most that is a function.
    options : stride, padding, dilation and groups, as `reference_conv2d`.
    """
    expected = reference_conv2d(images, weights, bias, activation, **options)
    assert found.shape == expected.shape
    if precision in ALLOWED:
        allowed = ALLOWED[precision] * np.abs(reference_conv2d(images, weights, bias, **options)).max(initial=0.0)
    else:
        depth = int(np.prod(weights.shape[1:]))
        steepness = steepest(activation) if isinstance(activation, Elementwise) else steepness
        allowed = ROUNDING * (steepness * (depth + 2) * absolute_sums(images, weights, bias, **options) + 8)
    distance = np.abs(found - expected)
    within = distance <= allowed
    assert within.all(), (
        f"{np.count_nonzero(~within)} of {within.size} outputs differ, by up to {np.nanmax(distance)}; the first at "
        f"{tuple(int(place) for place in np.argwhere(~within)[0])}"
    )


def _both(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def drawn_numbers(
    rng: np.random.Generator, count: int, geometry: Any, dtype: Any = np.float32, integers: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return random images of `dtype`, weights and biases of a convolution: integers from -3 to 3, or normal.

    Parameters
    ----------
    geometry : a `sparsenn.backends.cuda.conv.Geometry` of one group.
    """
    shapes = (
        (count, geometry.channels, geometry.height, geometry.width),
        (geometry.filters, geometry.channels, *geometry.kernel),
        (geometry.filters,),
    )
    images, weights, bias = (rng.integers(-3, 4, shape) if integers else rng.normal(size=shape) for shape in shapes)
    return images.astype(dtype), weights.astype(np.float32), bias.astype(np.float32)


def options_of(geometry: Any) -> dict[str, tuple[int, int]]:
    """Return a geometry's stride, padding and dilation, as the functions here take them."""
    return {name: getattr(geometry, name) for name in ("stride", "padding", "dilation")}


def uploaded(geometry: Any, weights: np.ndarray, bias: np.ndarray, activation: Any) -> Any:
    """Return a layer on the GPU, as kernels of conv2d take it."""
    layer = Conv2d(weights, bias, activation, **options_of(geometry))
    return upload_conv(0, layer, (geometry.channels, geometry.height, geometry.width))


def launched(launch: Callable, geometry: Any, given: tuple[np.ndarray, ...], activation: Any) -> np.ndarray:
    """Return the outputs of a kernel of conv2d; `given` are images, weights and bias."""
    cp = cupy()
    images, weights, bias = given
    outputs = launch(uploaded(geometry, weights, bias, activation), cp.asarray(images))
    assert outputs.dtype == images.dtype
    assert outputs.flags.c_contiguous
    return cp.asnumpy(outputs)


@st.composite
def geometries(
    draw: Callable[[Any], Any], channels: int = 300, extent: int = 60, padding: int = 3, stride: int = 1
) -> Geometry:
    """Draw sizes of convolutions of one group whose filters fit into the padded images.

    Parameters
    ----------
    channels, extent, padding, stride : the most there may be; at most 300 filters, 5 x 5 taps and a dilation of 3.
    """
    kernel, apart = (tuple(draw(st.lists(st.integers(1, most), min_size=2, max_size=2))) for most in (5, 3))
    spans = [distance * (size - 1) + 1 for distance, size in zip(apart, kernel, strict=True)]
    added = tuple(draw(st.integers(0, padding)) for _ in range(2))
    extents = [draw(st.integers(max(1, span - 2 * more), extent)) for span, more in zip(spans, added, strict=True)]
    strides = tuple(draw(st.integers(1, stride)) for _ in range(2))
    return Geometry(draw(st.integers(1, channels)), *extents, draw(st.integers(1, 300)), kernel, strides, added, apart)


@st.composite
def plain_geometries(draw: Callable[[Any], Any]) -> Geometry:
    """Draw sizes of small convolutions of stride 1, dilation 1 and one group."""
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    least = (max(1, size - 2 * added) for size, added in zip(kernel, padding, strict=True))
    height, width = (draw(st.integers(size, size + 12)) for size in least)
    channels, filters = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    return Geometry(channels, height, width, filters, kernel, padding=padding)


@st.composite
def few_channels(draw: Callable[[Any], Any]) -> Geometry:
    """Draw plain convolutions of few channels, windows larger than the image but for its padding among them."""
    kernel = draw(st.integers(1, 7)), draw(st.integers(1, 9))
    padding = draw(st.sampled_from([0, 0, 1, 3])), draw(st.sampled_from([0, 0, 1, 2]))
    size = [draw(st.integers(max(1, taps - 2 * added), 40)) for taps, added in zip(kernel, padding, strict=True)]
    return Geometry(draw(st.integers(1, 6)), *size, draw(st.integers(1, 40)), kernel, padding=padding)
