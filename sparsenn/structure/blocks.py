"""Blocks of a sparse matrix: those that share no input and no output, and small dense ones on a grid."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sparsenn.formats import CSC, Array
from sparsenn.formats.equality import equal_patterns
from sparsenn.printable import one_line
from sparsenn.runtime.jit import compiled

WIDEST_TILE = 64


@dataclass(frozen=True, eq=False)
class Blocks:
    """The independent blocks of a layer: connected components of its graph of inputs and outputs, with some weight.

    In the orders `np.argsort(inputs, kind="stable")` and `np.argsort(outputs, kind="stable")` the weights are block
    diagonal, behind what no weight leads from or to.

    count : int
        How many there are; two or more.
    inputs, outputs : array of int64
        The block of each input, and of each output; -1 where it has no weight.
    """

    count: int
    inputs: Array
    outputs: Array

    __repr__ = one_line

    def __str__(self) -> str:
        sizes = [np.bincount(labels[labels >= 0]) for labels in (self.inputs, self.outputs)]
        upto = "" if all((side == side[0]).all() for side in sizes) else "up to "
        return f"{self.count:,} independent blocks of {upto}{sizes[0].max():,} × {sizes[1].max():,}"


def independent_blocks(weights: CSC) -> Blocks | None:
    """Return the independent blocks of a layer's weights; None where there are fewer than two."""
    roots = np.arange(weights.width)
    _join_inputs(weights.indptr, weights.indices, roots)
    reading = np.diff(weights.indptr) > 0
    outputs = np.full(weights.groups, -1)
    held, outputs[reading] = np.unique(roots[weights.indices[weights.indptr[:-1][reading]]], return_inverse=True)
    if held.size < 2:
        return None
    place = np.full(weights.width, -1)
    place[held] = np.arange(held.size)
    return Blocks(held.size, place[roots], outputs)


@compiled
def _join_inputs(indptr: Array, indices: Array, roots: Array) -> None:
    """Join the inputs that an output reads, by union and find: each gets the least of those that it is joined with.

    SciPy's connected components take ten times as long, as they need the graph in both directions.
    """
    for column in range(indptr.size - 1):
        root: Any = -1
        for entry in range(indptr[column], indptr[column + 1]):
            node: Any = np.int64(indices[entry])
            while roots[node] != node:
                roots[node] = roots[roots[node]]
                node = roots[node]
            if root < 0:
                root = node
            if node < root:
                roots[root] = node
                root = node
            else:
                roots[node] = root
    for node in range(roots.size):
        roots[node] = roots[roots[node]]


@dataclass(frozen=True)
class Tiles:
    """Small dense blocks on a grid that begins at the first input and the first output.

    width : int
        Inputs and outputs of a tile.
    fill : float
        The share of the places of tiles with a weight that hold one.
    """

    width: int
    fill: float

    def __str__(self) -> str:
        share = "all" if self.fill == 1 else f"{100 * self.fill:.3g} %"
        return f"{share} of the places in aligned {self.width} × {self.width} blocks with a weight hold one"


def dense_tiles(weights: CSC) -> Tiles | None:
    """Return the widest tiles, of 2 to 64, that are much denser than the layer: None where there are none.

    That is, where the share of their places without a weight is at most half of that of the whole layer's. Weights at
    random, at whatever density, have none.
    """
    if not 0 < weights.density < 1:
        return None
    most = int(weights.nnz / ((1 + weights.density) / 2))
    patterns = equal_patterns(weights)[1]

    @cache
    def places(width: int) -> int:
        tiles = np.arange(weights.width, dtype=np.int32) // width
        return _places(weights.indptr, weights.indices, patterns, tiles, np.bincount(tiles), width, most)

    for width in range(min((WIDEST_TILE, *weights.shape)), 1, -1):
        parts = (part for part in range(2, width + 1) if width % part == 0)  # tiles of which take in fewer places
        if all(places(part) <= most for part in parts):
            return Tiles(width, weights.nnz / places(width))
    return None


@compiled
def _places(indptr: Array, indices: Array, patterns: Array, tiles: Array, heights: Array, width: int, most: int) -> int:
    """Count the places of the tiles that hold an entry, until they are more than `most`.

    patterns : (columns,) equal ones for columns with entries in the same rows.
    tiles, heights : (rows,) the tile of each row, and (tiles,) the rows of each tile.
    """
    columns = indptr.size - 1
    seen = np.full(heights.size, -1, np.int32)
    places = 0
    for start in range(0, columns, width):
        stop = min(start + width, columns)
        for column in range(start, stop):
            if column > start and patterns[column] == patterns[column - 1]:
                continue
            for entry in range(indptr[column], indptr[column + 1]):
                tile = tiles[indices[entry]]
                if seen[tile] != start:
                    seen[tile] = start
                    places += (stop - start) * heights[tile]
        if places > most:
            break
    return places
