"""What structure the weights of a network have, layer by layer, in words and numbers."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from sparsenn.errors import UsageError
from sparsenn.formats import CSC, Array
from sparsenn.formats.equality import equal_patterns
from sparsenn.layers import SparseLinear
from sparsenn.network import Network
from sparsenn.printable import kind_of, one_line
from sparsenn.runtime.jit import example
from sparsenn.runtime.workers import map_threads
from sparsenn.structure.blocks import Blocks, Tiles, dense_tiles, independent_blocks
from sparsenn.structure.kronecker import Kronecker, kronecker_factors
from sparsenn.structure.outputs import equal_outputs, proportional, proportional_outputs

MOST_SPANS = 4  # runs of layers that are named in full
MOST_LINES = 8  # of different texts about layers


@dataclass(frozen=True, eq=False)
class Patterns:
    """Outputs that read the same inputs: each group of them is one small dense product.

    group : array of int64
        The group of each output.
    outputs, inputs : array of int64
        How many outputs each group has, and how many inputs these read.
    directions : array of int64
        How many outputs of each group are no multiples of others: the rank of its matrix is at most that, and one where
        it is one.
    """

    group: Array
    outputs: Array
    inputs: Array
    directions: Array

    __repr__ = one_line

    @property
    def low_rank(self) -> Array:
        """Which groups have a rank below their numbers of outputs and of inputs, as multiples show."""
        low: Array = self.directions < np.minimum(self.outputs, self.inputs)
        return low

    def __str__(self) -> str:
        several = (self.outputs > 1) & (self.inputs > 0)
        groups = "1 group" if several.sum() == 1 else f"{several.sum():,} groups"
        text = f"{self.outputs[several].sum():,} outputs in {groups} read the same inputs"
        low = int(self.low_rank.sum())
        return text + (f", {low:,} of low rank" if low else "")


@dataclass(frozen=True, eq=False)
class LayerStructure:
    """The structure of a sparse layer; None stands for what was not found, or not looked for.

    layer : int
        Counted from 1.
    weights : int
        How many it has.
    equal : array of int64 or None
        (outputs,), the group of each output: weights and bias of its members are equal.
    multiples : array of int64 or None
        Likewise, of outputs whose weights and bias are multiples of each other; None where these are equal.
    patterns : Patterns or None
        Outputs that read the same inputs, where not all of them are equal.
    blocks : Blocks or None
        Independent blocks.
    tiles : Tiles or None
        Aligned dense blocks.
    kronecker : Kronecker or None
        Kronecker factors.
    """

    layer: int
    weights: int
    equal: Array | None = None
    multiples: Array | None = None
    patterns: Patterns | None = None
    blocks: Blocks | None = None
    tiles: Tiles | None = None
    kronecker: Kronecker | None = None

    __repr__ = one_line

    def __str__(self) -> str:
        sentences = []
        if self.equal is not None:
            sentences.append(f"{_repeated(self.equal):,} of {self.equal.size:,} outputs equal others")
        if self.multiples is not None:
            sentences.append(
                f"{_repeated(self.multiples):,} of {self.multiples.size:,} outputs are multiples of others"
            )
        sentences += [
            str(part) for part in (self.patterns, self.blocks, self.tiles, self.kronecker) if part is not None
        ]
        return "; ".join(sentences) or "no structure found"


def _repeated(group: Array) -> int:
    """Return how many members of groups are not their group's first."""
    return int(group.size - np.unique(group).size)


@dataclass(frozen=True, eq=False)
class Structure:
    """The structure of a network's sparse layers, made by `find_structure`. `str` says it in words.

    Parameters
    ----------
    layers : tuple of LayerStructure
        One for each sparse layer.
    seconds : float
        Seconds that finding it took.
    """

    layers: tuple[LayerStructure, ...]
    seconds: float

    __repr__ = one_line

    def __str__(self) -> str:
        alike: dict[str, list[int]] = {}
        for layer in self.layers:
            alike.setdefault(str(layer), []).append(layer.layer)
        if list(alike) == ["no structure found"]:
            weights = sum(layer.weights for layer in self.layers)
            return f"No structure found in {_counted(len(self.layers))} with {weights:,} weights."
        lines = [f"{_named(numbers)}: {text}." for text, numbers in alike.items()]
        if len(lines) > MOST_LINES:
            rest = sum(map(len, list(alike.values())[MOST_LINES - 1 :]))
            lines[MOST_LINES - 1 :] = [f"{rest:,} more layers differ from these."]
        return "\n".join(lines) or "No sparse layers."


def _counted(layers: int) -> str:
    return "1 sparse layer" if layers == 1 else f"{layers:,} sparse layers"


def _named(numbers: list[int]) -> str:
    """Name layers: `Layer 3`, `Layers 1–4 and 7`, or `20 layers (1, 7, 13, …)`."""
    starts = [numbers[0], *(after for before, after in pairwise(numbers) if after > before + 1)]
    ends = [*(before for before, after in pairwise(numbers) if after > before + 1), numbers[-1]]
    spans = [str(start) if start == end else f"{start}–{end}" for start, end in zip(starts, ends, strict=True)]
    if len(numbers) == 1:
        return f"Layer {numbers[0]}"
    if len(spans) > MOST_SPANS:
        return f"{len(numbers):,} layers ({', '.join(spans[: MOST_SPANS - 1])}, …)"
    return f"Layers {', '.join(spans[:-1])}{' and ' * (len(spans) > 1)}{spans[-1]}"


def find_structure(
    network: Network,
    *,
    equal: bool = True,
    multiples: bool = True,
    patterns: bool = True,
    blocks: bool = True,
    tiles: bool = True,
    kronecker: bool = True,
) -> Structure:
    """Find what structure the weights of a network's sparse layers have: exactly, to the last bit of each weight.

    Parameters
    ----------
    network : Network
        Layers of other kinds are left out.
    equal : bool, default True
        Look for outputs whose weights and bias are equal.
    multiples : bool, default True
        Look for outputs whose weights and bias are those of another times some number.
    patterns : bool, default True
        Look for outputs that read the same inputs, and for such groups of low rank.
    blocks : bool, default True
        Look for independent blocks, whatever the order of inputs and outputs.
    tiles : bool, default True
        Look for dense blocks of 2 × 2 to 64 × 64 on a grid.
    kronecker : bool, default True
        Look for Kronecker factors, whatever the order of inputs and, with limits, of outputs: an identity, and a block
        of ones. Products of other matrices are not found.

    Returns
    -------
    Structure
        What was found; `str` says it in words, or that there was nothing.

    Raises
    ------
    UsageError
        The network is something else.

    Examples
    --------
    >>> print(sparsenn.find_structure(sparsenn.radixnet(64, 2)))  # doctest: +NORMALIZE_WHITESPACE
    Layer 1: 60 of 64 outputs equal others; weights are a matrix of 4 × 4 ⊗ ones of 16 × 16, permuted.
    Layer 2: 62 of 64 outputs equal others; 2 independent blocks of 32 × 32; weights are I of 2 ⊗ a matrix of 1 × 1 ⊗
    ones of 32 × 32, permuted.
    """
    if not isinstance(network, Network):
        raise UsageError(f"the network is {kind_of(network)}; what has structure is a sparsenn.Network")
    start = time.perf_counter()

    def look(numbered: tuple[int, SparseLinear]) -> LayerStructure:
        number, layer = numbered
        weights = replace(layer.weights, values=layer.weights.values.astype(np.float32, copy=False))
        found = proportional(layer)
        distinct, same = equal_outputs(layer, found)
        directions, alike = proportional_outputs(layer, found)
        apart = independent_blocks(weights) if blocks or kronecker else None
        return LayerStructure(
            number,
            weights.nnz,
            same if equal and distinct.size < layer.outputs else None,
            alike if multiples and directions.size < distinct.size else None,
            _patterns(layer, distinct, found[0]) if patterns else None,
            apart if blocks else None,
            dense_tiles(weights) if tiles else None,
            kronecker_factors(weights, apart) if kronecker else None,
        )

    sparse = [(number, layer) for number, layer in enumerate(network, start=1) if isinstance(layer, SparseLinear)]
    return Structure(tuple(map_threads(look, sparse)), time.perf_counter() - start)


@example
def _find_in_few() -> None:
    values = np.array([1, 1, 2, 2, 1], np.float32)
    for weights in (values, values[:1]):
        matrix = CSC((3, 3), np.array([0, 2, 4, 5]), np.array([0, 1, 0, 1, 2], np.uint16), weights)
        find_structure(Network((SparseLinear(matrix),)))


def _patterns(layer: SparseLinear, distinct: Array, directions: Array) -> Patterns | None:
    """Return the outputs that read the same inputs; None where only equal ones do.

    distinct : the first of each group of equal outputs.
    directions : the first of each group whose weights are multiples of each other.
    """
    weights = layer.weights
    first, group = equal_patterns(weights)
    inputs = np.diff(weights.indptr)[first]
    if not (inputs[np.bincount(group[distinct]) > 1] > 0).any():
        return None
    return Patterns(group, np.bincount(group), inputs, np.bincount(group[directions]))
