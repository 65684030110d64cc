"""Kronecker factors of a sparse matrix whose inputs and outputs are in any order.

Found is W = P·(I ⊗ B ⊗ J)·Q, with permutations P and Q, an identity I, any matrix B and a block of ones J, in two
steps:

1. Inputs with equal weights, and outputs with equal weights, are as many of each kind as J has rows and columns, or a
   multiple of that. This finds every J, whatever P and Q are.
2. What is left without repetitions falls into independent blocks. I ⊗ B is found where these are one matrix B once the
   inputs of each are put in order by their weights; P may be any permutation, Q any one that leaves unequal outputs of
   a block in B's order, as I ⊗ B, B ⊗ I and whatever lies between do.

So the layers of a butterfly (I ⊗ J ⊗ I), of a RadiX-Net (cyclic windows ⊗ I ⊗ J, its inputs permuted), permutations and
block-diagonal repetitions are found. Not found are products of two matrices neither of which is an identity or of ones,
and repetitions of a B whose outputs are in another order in each: these are problems of graph isomorphism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from sparsenn.formats import CSC, Array, csc_to_csr, equal_groups
from sparsenn.formats.equality import equal_patterns
from sparsenn.structure.blocks import Blocks


@dataclass(frozen=True)
class Kronecker:
    """Factors of a layer's weights: I ⊗ B ⊗ J, but for the order of its inputs and outputs.

    copies : int
        Rows of the identity I.
    core : tuple of int
        Rows and columns of B.
    ones : tuple of int
        Rows and columns of J, a block of ones.
    of_values : bool
        Whether the weights are this product; only the places that hold one are where it is False.
    """

    copies: int
    core: tuple[int, int]
    ones: tuple[int, int]
    of_values: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the product."""
        return self.copies * self.core[0] * self.ones[0], self.copies * self.core[1] * self.ones[1]

    def __str__(self) -> str:
        factors = [f"I of {self.copies:,}"] * (self.copies > 1)
        factors.append(f"a matrix of {_shape(self.core)}")
        factors += [f"ones of {_shape(self.ones)}"] * (self.ones != (1, 1))
        what = "weights" if self.of_values else "places of weights"
        return f"{what} are {' ⊗ '.join(factors)}, permuted"


def _shape(sizes: tuple[int, int]) -> str:
    return f"{sizes[0]:,} × {sizes[1]:,}"


def kronecker_factors(weights: CSC, blocks: Blocks | None) -> Kronecker | None:
    """Return the factors of a layer's weights in float32, or else of their places; None where neither has any."""
    if not weights.nnz:
        return None
    by_input = csc_to_csr(weights)
    found = _factors(weights, equal_groups(by_input), equal_groups(weights), blocks, True)
    if found is None and not weights.iso and weights.density < 1:
        places = CSC(weights.shape, weights.indptr, weights.indices, np.ones(1, np.float32))
        found = _factors(places, equal_patterns(by_input), equal_patterns(weights), blocks, False)
    return found


_Groups: TypeAlias = tuple[Array, Array]


def _factors(
    weights: CSC, inputs: _Groups, outputs: _Groups, blocks: Blocks | None, of_values: bool
) -> Kronecker | None:
    high, wide = (int(np.gcd.reduce(np.bincount(group))) for _, group in (inputs, outputs))
    copies = blocks.count if blocks is not None and _alike(weights, inputs, outputs, blocks) else 1
    if weights.shape[0] % (copies * high) or weights.shape[1] % (copies * wide):
        copies = 1  # inputs or outputs without weights do not give each block as many as J takes
    if copies * high * wide == 1:
        return None
    core = weights.shape[0] // (copies * high), weights.shape[1] // (copies * wide)
    return Kronecker(copies, core, (high, wide), of_values)


def _alike(weights: CSC, inputs: _Groups, outputs: _Groups, blocks: Blocks) -> bool:
    """Whether all blocks are one matrix, but for the order of their inputs; the rest is as for `_factors`."""
    count, lengths = blocks.count, np.diff(weights.indptr)
    bits = weights.values.view(np.uint32)
    even = _even(blocks.inputs, None, count) and _even(blocks.outputs, None, count)
    even = even and _even(blocks.outputs, lengths, count)
    if not even or not (weights.iso or _even(np.repeat(blocks.outputs, lengths), bits % (1 << 20), count)):
        return False
    (rows, row_group), (columns, column_group) = inputs, outputs
    rows, columns = rows[blocks.inputs[rows] >= 0], columns[blocks.outputs[columns] >= 0]
    if rows.size % count or columns.size % count:
        return False
    high, wide = rows.size // count, columns.size // count
    columns = columns[np.argsort(blocks.outputs[columns], kind="stable")]
    matrix = weights.to_scipy()[:, columns]
    place = np.repeat(np.arange(columns.size) % wide, np.diff(matrix.indptr))
    row_times, column_times = np.bincount(row_group)[row_group], np.bincount(column_group)[column_group]
    keys = _mixed(row_times, np.zeros(1, np.uint32))
    np.add.at(keys, matrix.indices, _mixed(place, matrix.data.view(np.uint32)))
    rows = rows[np.lexsort((keys[rows], blocks.inputs[rows]))]
    matrix = matrix.tocsr()[rows].tocsc()
    first = np.repeat(np.arange(columns.size) // wide * high, np.diff(matrix.indptr))  # row of each entry's block
    return (
        _repeats(np.diff(matrix.indptr), count)
        and _repeats(matrix.indices - first, count)
        and _repeats(matrix.data.view(np.uint32), count)
        and _repeats(row_times[rows], count)
        and _repeats(column_times[columns], count)
    )


def _repeats(numbers: Array, count: int) -> bool:
    """Whether a vector consists of so many equal parts."""
    return numbers.size % count == 0 and bool((numbers.reshape(count, -1) == numbers[: numbers.size // count]).all())


def _even(blocks: Array, numbers: Array | None, count: int) -> bool:
    """Whether each block has as many members, or as large a sum of their numbers, as the others.

    Members of no block, -1, must go into as many equal parts.
    """
    totals = np.bincount(blocks + 1, numbers, minlength=count + 1)
    return bool((totals[1:] == totals[1]).all()) and totals[0] % count == 0


def _mixed(left: Array, right: Array) -> Array:
    """Mix pairs of numbers of at most 32 bits into uint64."""
    state = (left.astype(np.uint64) << np.uint64(32)) ^ right
    for shift in (29, 32):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(0x9E3779B97F4A7C15)
    return state ^ (state >> np.uint64(31))
