"""Hypothesis strategies: layers of images and what goes through them, of every shape that must work."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st
from strategies import activations, biases, seeds

from sparsenn.layers import AvgPool2d, Conv2d, Flatten, ImageLayer, LayerNorm, MaxPool2d, Slice, Softmax

__all__ = ["convolutions", "images_for", "pools", "weightless_layers"]


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Conv2d, tuple[int, int, int]]:
    """A convolution and the (channels, height, width) of an image that it takes, often no larger than a window."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    filters, channels = groups * draw(st.integers(1, 9)), groups * draw(st.integers(1, 3))
    kernel = draw(_pairs(1, 4))
    stride, padding, dilation = draw(_pairs(1, 3)), draw(_pairs(0, 3)), draw(_pairs(1, 3))
    spans = [apart * (size - 1) + 1 - 2 * added for size, apart, added in zip(kernel, dilation, padding, strict=True)]
    image = [max(1, span + draw(st.integers(0, 12))) for span in spans]
    rng = np.random.default_rng(draw(seeds))
    weights = rng.normal(size=(filters, channels // groups, *kernel))
    layer = Conv2d(weights, draw(biases(filters)), draw(activations()), stride, padding, dilation, groups)
    return layer, (channels, image[0], image[1])


@st.composite
def pools(draw: st.DrawFn) -> tuple[ImageLayer, tuple[int, int, int]]:
    """A pooling of either kind and the shape of an image that it takes."""
    window = draw(_pairs(1, 4))
    before, after = (tuple(draw(st.integers(0, size - 1)) for size in window) for _ in range(2))
    stride = draw(st.none() | _pairs(1, 5))
    least = [size - first - last for size, first, last in zip(window, before, after, strict=True)]
    image = [max(1, size + draw(st.integers(0, 9))) for size in least]
    make = draw(st.sampled_from([MaxPool2d, AvgPool2d, partial(AvgPool2d, counts_padding=False)]))
    return make(window, stride, before, after), (draw(st.integers(1, 3)), *image)


@st.composite
def weightless_layers(draw: st.DrawFn) -> tuple[ImageLayer, tuple[int, ...]]:
    """A layer that is no convolution and the shape of one input that it takes: an image, or for some a row."""
    shapes = st.tuples(*3 * [st.integers(1, 6)]) | st.tuples(st.integers(1, 700))
    others = st.tuples(st.sampled_from([Flatten(), Softmax()]), shapes)
    return draw(pools() | others | shapes.flatmap(_slices) | shapes.flatmap(_norms))


@st.composite
def _norms(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[ImageLayer, tuple[int, ...]]:
    numbers = prod(shape)
    positions = draw(st.sampled_from([count for count in range(1, numbers + 1) if numbers % count == 0]))
    rng = np.random.default_rng(draw(seeds))
    scale, shift = rng.normal(size=(2, numbers // positions))
    return LayerNorm(scale, shift, draw(st.sampled_from([1e-5, 1.0])), positions), shape


@st.composite
def _slices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[ImageLayer, tuple[int, ...]]:
    axis = draw(st.integers(0, len(shape) - 1))
    first = draw(st.integers(0, shape[axis] - 1))
    last = draw(st.integers(first + 1, shape[axis]))
    image = (1, last - first, prod(shape) // shape[axis])
    return Slice(first, last, draw(st.sampled_from([None, image])), axis), shape


@st.composite
def images_for(draw: st.DrawFn, shape: tuple[int, ...], most: int = 7) -> np.ndarray:
    """Up to `most` inputs of a shape, float32: any numbers, zeros, or few ones among zeros."""
    count, kind = draw(st.integers(0, most)), draw(st.sampled_from(["normal", "zeros", "few"]))
    rng = np.random.default_rng(draw(seeds))
    if kind == "zeros":
        return np.zeros((count, *shape), np.float32)
    numbers: Any = rng.normal(size=(count, *shape)) if kind == "normal" else rng.random((count, *shape)) < 0.05
    return numbers.astype(np.float32)


def _pairs(least: int, most: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(least, most), st.integers(least, most))
