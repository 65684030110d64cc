"""Performance models of convolutions and matrix products: how many bytes a way to compute them moves.

The ideas are those of a study of 3 x 3 convolutions on a Titan V: it models a *naive* kernel by what a pass over all
images for one filter moves, a *coalesced* one by what a block needs that computes all filters at one pixel, a
*block-tiled* one by what a block needs for a tile of filters and pixels, and a *shared* one by what such blocks bring
from the L2 cache. Here they count bytes, whatever the shape.

A matrix product (rows, depth) x (depth, columns) is the convolution of one image of 1 x `rows` pixels and `depth`
channels with `columns` filters of one pixel: `product_geometry`.

The field `traffic` of a kernel of `conv2d` or `gemm` is such a `Model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from sparsenn.backends.cuda.conv.geometry import Geometry

STUDY_TILE = (64, 14, 14)
"""The study's blocks: filters, and pixels down and across."""

L1_BYTES = 128 << 10
"""A multiprocessor's first cache, as the study takes it."""


@dataclass(frozen=True)
class Traffic:
    """What a way to compute something moves and multiplies."""

    model: str  # the way's name
    compulsory: int  # bytes that any way moves: each input read once, each output written once
    multiply_adds: int  # those of the whole, padding included
    loaded: int = 0
    """Bytes that all blocks together read and write, in whichever memory they find them; 0 where the model does not
    tell."""
    between: int = 0
    """Bytes that are touched between two readings of the same ones: if a cache holds so many, it serves all readings
    but the first."""
    shared: int = 0  # bytes that threads read from shared memory
    blocks: int = 0
    """Of threads; where there are fewer than multiprocessors, some are idle. 0 where the model does not tell."""


Model: TypeAlias = Callable[[Geometry, int, int], Traffic]
"""What says how much a kernel moves, given a geometry, the number of images, and the bytes of a number."""


def product_geometry(rows: int, depth: int, columns: int) -> Geometry:
    """Return the convolution that is a matrix product, of one image."""
    return Geometry(depth, 1, rows, columns, (1, 1))


def compulsory(geometry: Geometry, images: int, element_bytes: int = 4) -> Traffic:
    """Return what no way can go below: images and filters read once, outputs written once.

    `element_bytes` are of a number: 4 for float32, 2 for float16.
    """
    numbers = images * (_image(geometry) + _outputs(geometry)) + geometry.filters * geometry.depth
    return Traffic("compulsory", element_bytes * numbers, images * geometry.multiply_adds)


def naive(geometry: Geometry, images: int, element_bytes: int = 4) -> Traffic:
    """Model one thread per output, filter after filter: for each filter all images are read again.

    The caches are taken to be perfect within a filter's pass, and a pass to lie between two readings: with
    P = output height x output width and C = channels / groups, a pass reads images * C * height * width numbers of
    images and C * kernel of weights, and writes images * P.
    """
    read = images * _image(geometry) // geometry.groups
    passing = read + geometry.depth + images * _pixels(geometry)
    return replace(
        compulsory(geometry, images, element_bytes),
        model="naive",
        loaded=element_bytes * geometry.filters * passing,
        between=element_bytes * passing,
    )


def coalesced(geometry: Geometry, images: int, element_bytes: int = 4, block: int | None = None) -> Traffic:
    """Model a block that computes `block` filters, all of them unless given, at one pixel of one image.

    It reads that pixel's window, T = channels / groups x kernel numbers, and `block` * T weights, and writes `block`
    numbers. Between two readings of the same weights lie the other weights and a window.
    """
    filters = min(geometry.filters, block or geometry.filters)
    blocks = images * _pixels(geometry) * -(-geometry.filters // filters)
    return replace(
        compulsory(geometry, images, element_bytes),
        model="coalesced",
        loaded=element_bytes * blocks * (geometry.depth + filters * geometry.depth + filters),
        between=element_bytes * (geometry.filters + 1) * geometry.depth,
        blocks=blocks,
    )


def block_tiled(
    geometry: Geometry,
    images: int,
    element_bytes: int = 4,
    tile: tuple[int, int, int] = STUDY_TILE,
    l1_bytes: int = L1_BYTES,
) -> Traffic:
    """Model a block that computes a tile of filters and of pixels down and across, its inputs cached in L1.

    It reads its filters' weights and its window of the images, and writes its outputs; a window that is x times as
    large as L1 is read 1 + x times, as in the study. Edges are counted as whole tiles, but no larger than the image.
    """
    weights, window, outputs, blocks = _tile(geometry, images, element_bytes, tile)
    return replace(
        compulsory(geometry, images, element_bytes),
        model="block_tiled",
        loaded=round(blocks * (weights + outputs + window * (1 + window / l1_bytes))),
        between=element_bytes * geometry.filters * geometry.depth + window,
        blocks=blocks,
    )


def shared_tiled(
    geometry: Geometry,
    images: int,
    element_bytes: int = 4,
    tile: tuple[int, int, int] = STUDY_TILE,
    thread_tile: tuple[int, int] = (1, 1),
) -> Traffic:
    """Model a block that brings its tile's weights and window into shared memory, once, and computes from there.

    tile : filters, and pixels down and across, of a block.
    thread_tile : filters and pixels of a thread: for each multiply-add it reads 1 / pixels weights and 1 / filters
        pixels from shared memory, and holds them in registers meanwhile. A number that several threads read at once
        counts for each of them.
    """
    weights, window, outputs, blocks = _tile(geometry, images, element_bytes, tile)
    least = compulsory(geometry, images, element_bytes)
    filters, pixels = thread_tile
    return replace(
        least,
        model="shared_tiled",
        loaded=blocks * (weights + outputs + window),
        between=element_bytes * geometry.filters * geometry.depth + window,
        shared=round(element_bytes * least.multiply_adds * (1 / pixels + 1 / filters)),
        blocks=blocks,
    )


def tiled(model: Callable[..., Traffic], side: int, **others: Any) -> Model:
    """Return a model of blocks of `side` filters and as many pixels, one after the other along the rows of an image.

    `model` takes a `tile`, and `others`.
    """

    def model_of(geometry: Geometry, images: int, element_bytes: int) -> Traffic:
        across = min(side, geometry.output_width)
        return model(geometry, images, element_bytes, tile=(side, max(1, side // across), across), **others)

    return model_of


def _tile(geometry: Geometry, images: int, element_bytes: int, tile: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Return bytes of a block's weights, window and outputs, and the number of blocks."""
    filters = min(tile[0], geometry.filters // geometry.groups)
    down, across = min(tile[1], geometry.output_height), min(tile[2], geometry.output_width)
    blocks = images * -(-geometry.output_height // down) * -(-geometry.output_width // across)
    blocks *= geometry.groups * -(-(geometry.filters // geometry.groups) // filters)
    spans = [
        (size - 1) * stride + (kernel - 1) * dilation + 1
        for size, stride, kernel, dilation in zip(
            (down, across), geometry.stride, geometry.kernel, geometry.dilation, strict=True
        )
    ]
    window = geometry.channels // geometry.groups * spans[0] * spans[1]
    numbers = filters * geometry.depth, window, filters * down * across
    return (*(element_bytes * number for number in numbers), blocks)  # type: ignore[return-value]


def _image(geometry: Geometry) -> int:
    return geometry.channels * geometry.height * geometry.width


def _pixels(geometry: Geometry) -> int:
    return geometry.output_height * geometry.output_width


def _outputs(geometry: Geometry) -> int:
    return geometry.filters * _pixels(geometry)
