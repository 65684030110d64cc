"""Weights of a convolution in the order in which the tensor-core kernels of few channels read them.

A product of `kernels/conv2d/tensor.cuh` takes 16 items, which are ACROSS neighbouring output pixels each, and 8
columns, each of which is a filter and one of those pixels. Filters are laid out as a band: the weights of pixel p lie p
numbers further to the right in the row of the image that all pixels of the item share. Which of them each lane of a
warp holds follows from the instructions m16n8k8 and m16n8k16 (PTX ISA, "Matrix Fragments for mma").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.backends.cuda.runtime.precision import SPLIT_PRODUCTS, split_tf32
from sparsenn.backends.machine import WARP
from sparsenn.formats import Array


@dataclass(frozen=True)
class Kind:
    """The differences between the kernels."""

    source: str  # the kernel
    quad: int  # numbers of an image's row that the four lanes of an item read at once: 1 or 2 each
    words: int  # registers of a lane for a step's weights of 8 columns
    passes: int  # products for each step
    number: int  # bytes of a number of an image

    @property
    def multiplied(self) -> str:
        """The precision that tensor cores multiply in."""
        return "float16" if self.quad == 8 else "tf32"


FLOAT32 = Kind("conv2d/tensor_float32.cu", quad=4, words=4, passes=SPLIT_PRODUCTS, number=4)
TF32 = Kind("conv2d/tensor_tf32.cu", quad=4, words=2, passes=1, number=4)
HALF = Kind("conv2d/tensor_half.cu", quad=8, words=2, passes=1, number=4)
HALF_ROWS = Kind("conv2d/tensor_half.cu", quad=8, words=2, passes=1, number=2)
"""HALF with images and outputs of half precision."""


@dataclass(frozen=True)
class Layout:
    """How weights are cut for a kernel."""

    across: int  # output pixels of an item beside each other, a power of 2 up to 8
    at_once: int  # channels that are multiplied one after the other; divides the channels
    panel: int  # tiles of 8 columns that a warp sums at a time

    def quads(self, kind: Kind, geometry: Geometry) -> int:
        """Return the quads of a row of the image that an item meets."""
        return -(-(geometry.kernel[1] + self.across - 1) // kind.quad)

    def steps(self, kind: Kind, geometry: Geometry) -> int:
        """Return the steps of a turn, each of two quads."""
        return -(-self.at_once * geometry.kernel[0] * self.quads(kind, geometry) // 2)

    def turns(self, geometry: Geometry) -> int:
        """Return how often `at_once` channels are taken."""
        return geometry.channels // self.at_once

    def panels(self, geometry: Geometry) -> int:
        """Return how often `panel` tiles of columns are taken."""
        return -(-columns_of(geometry.filters, self.across) // (8 * self.panel))

    def weight_bytes(self, kind: Kind, geometry: Geometry) -> int:
        """Return the size of `weight_image`."""
        tiles = self.panels(geometry) * self.turns(geometry) * self.steps(kind, geometry) * self.panel
        return 4 * kind.words * WARP * tiles


def columns_of(filters: int, across: int) -> int:
    """Return the columns of a layer, padded to whole tiles."""
    return -(-filters * across // 8) * 8


def places(kind: Kind, geometry: Geometry, layout: Layout) -> Array:
    """Return which weight each lane holds, in the order of the kernels' steps.

    Lane 4 g + t has weights of column g of a tile, and of quad q those that belong to number 4 q + t of the row that an
    item meets. If numbers are read in pairs (across > 1), it is 8 (q // 2) + 2 t + q % 2 instead, for all quads but an
    odd last one. In half precision it is 8 q + 2 t and the one after it.

    Returns
    -------
    (panels, turns, steps, panel, 32, 2 quads, numbers of a lane in a quad) int64: places in the row-major weights, -1
    where a weight is zero because no pixel of the item, filter or row of the filters is there.
    """
    kernel_y, kernel_x = geometry.kernel
    quads = layout.quads(kind, geometry)
    quad = np.arange(2 * layout.steps(kind, geometry)).reshape(-1, 1, 1, 2, 1)  # step, tile, lane, quad, number
    row, quad_of_row = quad // quads, quad % quads
    channel = np.arange(layout.turns(geometry)).reshape(-1, 1, 1, 1, 1, 1) * layout.at_once + row // kernel_y
    g, t = np.divmod(np.arange(WARP).reshape(-1, 1, 1), 4)
    if kind.quad == 8:
        x = 8 * quad_of_row + 2 * t + np.arange(2)
    else:
        pairs = quads // 2 if layout.across > 1 else 0
        x = np.where(quad_of_row < 2 * pairs, 8 * (quad_of_row // 2) + 2 * t + quad_of_row % 2, 4 * quad_of_row + t)
    tiles = np.arange(layout.panels(geometry) * layout.panel).reshape(-1, 1, 1, layout.panel, 1, 1, 1)
    filters, pixel = np.divmod(8 * tiles + g, layout.across)
    tap = x - pixel
    place = ((filters * geometry.channels + channel) * kernel_y + row % kernel_y) * kernel_x + tap
    there = (filters < geometry.filters) & (row < layout.at_once * kernel_y) & (tap >= 0) & (tap < kernel_x)
    return np.where(there, place, -1)


def weight_image(kind: Kind, geometry: Geometry, layout: Layout, weights: Array) -> Array:
    """Return weights in the order in which a kernel reads them, as bytes."""
    found = places(kind, geometry, layout)
    held = np.where(found < 0, np.float32(0), weights.ravel()[np.maximum(found, 0)])
    if kind.quad == 8:
        image = held.astype(np.float16)
    else:
        high, low = split_tf32(held)
        image = np.concatenate((high, low), axis=5) if kind.passes > 1 else high
    laid_out: Array = np.ascontiguousarray(image).reshape(-1).view(np.uint8)
    return laid_out
