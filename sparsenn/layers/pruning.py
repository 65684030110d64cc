"""Pruning by magnitude: a layer's largest weights stay, all others become zero."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import Any

import numpy as np

from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.layers.conv2d import Conv2d
from sparsenn.layers.linear import Linear
from sparsenn.layers.per_position import PerPosition
from sparsenn.layers.sparse_linear import SparseLinear
from sparsenn.layers.sparse_or_dense import fully_connected


def check_share(share: float) -> None:
    """Refuse what is no share of the weights to keep."""
    if isinstance(share, bool | np.bool_) or not isinstance(share, int | float | np.number) or not 0 < share <= 1:
        raise UsageError(f"the share of weights to keep is {share!r}; give a number above 0 and at most 1")


def largest(values: Array, count: int) -> Array:
    """Return which of the values, of shape (n,), are the `count` >= 1 largest by magnitude; of equal ones the first."""
    if count >= values.size:
        return np.ones(values.size, bool)
    magnitudes = np.abs(values)
    least = np.partition(magnitudes, values.size - count)[values.size - count]
    remaining: Array = magnitudes > least
    remaining[np.flatnonzero(magnitudes == least)[: count - np.count_nonzero(remaining)]] = True
    return remaining


@singledispatch
def pruned(layer: Any, share: float) -> Any:
    """Return a layer with that share of its weights, rounded, at least one; the layer itself where nothing changes.

    Kept are those largest by magnitude; of equal ones those of the first output, then of its first input. Weights that
    are zero count, too: a layer that has so few already keeps them all. Biases stay. A `Linear` becomes a
    `SparseLinear` where `fully_connected` says so; a layer without weights is returned as it is.
    """
    return layer


@pruned.register
def _(layer: Linear, share: float) -> Linear | SparseLinear:
    remaining = _pruned_weights(layer.weights.T, share)
    made = fully_connected(layer.weights if remaining is None else remaining.T, layer.bias, layer.activation)
    return layer if remaining is None and isinstance(made, Linear) else made


@pruned.register
def _(layer: Conv2d, share: float) -> Conv2d:
    weights = _pruned_weights(layer.weights, share)
    return layer if weights is None else replace(layer, weights=weights)


@pruned.register
def _(layer: SparseLinear, share: float) -> SparseLinear:
    count = _count(layer.inputs * layer.outputs, share)
    if nonzeros(layer) <= count:
        return layer
    weights = layer.weights.to_scipy()
    weights.data = np.where(largest(weights.data, count), weights.data, 0)
    weights.eliminate_zeros()
    return SparseLinear.from_scipy(weights, layer.bias, layer.activation)


@pruned.register
def _(layer: PerPosition, share: float) -> PerPosition:
    made = pruned(layer.layer, share)
    return layer if made is layer.layer else replace(layer, layer=made)


def _pruned_weights(weights: Array, share: float) -> Array | None:
    """Return weights, the outputs first, with zeros in place of all but the largest; None where nothing changes."""
    count = _count(weights.size, share)
    if np.count_nonzero(weights) <= count:
        return None
    remaining: Array = np.where(largest(weights.reshape(-1), count).reshape(weights.shape), weights, np.float32(0))
    return remaining


def _count(weights: int, share: float) -> int:
    return max(1, round(share * weights))


@singledispatch
def nonzeros(layer: Any) -> int:
    """Return how many of a layer's weights are not zero."""
    return 0


@nonzeros.register(Linear)
@nonzeros.register(Conv2d)
def _(layer: Linear | Conv2d) -> int:
    return int(np.count_nonzero(layer.weights))


@nonzeros.register
def _(layer: SparseLinear) -> int:
    return int(np.count_nonzero(layer.weights.expanded_values()))


@nonzeros.register
def _(layer: PerPosition) -> int:
    return nonzeros(layer.layer)
