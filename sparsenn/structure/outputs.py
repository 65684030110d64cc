"""Outputs of a layer that are equal, or multiples of each other: weights and bias alike."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from sparsenn.formats import Array
from sparsenn.formats.proportion import proportional_groups
from sparsenn.layers import SparseLinear
from sparsenn.layers.activation_names import table_row

Proportional: TypeAlias = tuple[Array, Array, Array, bool]
"""What `proportional` returns of a layer."""


def numbered(*names: Array) -> tuple[Array, Array]:
    """Number what has equal names (all of them, in arrays of one length) by its first occurrence.

    Returns (representatives, group), as `equal_groups` does.
    """
    first, group = _numbered(names[0])
    for more in names[1:]:
        first, group = _numbered(group * group.size + _numbered(more)[1])
    return first, group


def _numbered(names: Array) -> tuple[Array, Array]:
    _, first, group = np.unique(names, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return first[order], place[group.reshape(-1)]


def largest(group: Array, sizes: Array) -> Array:
    """Return the first of the largest members of each group, (groups,) int64; group and sizes are (members,)."""
    order = np.argsort(-sizes, kind="stable")[::-1]
    representatives = np.empty(group.max(initial=-1) + 1, np.int64)
    representatives[group[order]] = order  # the last one that is written stays
    return representatives


def proportional(layer: SparseLinear) -> Proportional:
    """Return the layer's `proportional_groups`, and whether they are equal outputs as they stand."""
    representatives, group, leading = proportional_groups(layer.weights)
    alike = layer.weights.iso or bool((leading == leading[representatives][group]).all())
    alike = alike and not isinstance(layer.bias, np.ndarray)
    return representatives, group, leading, alike or representatives.size == layer.outputs


def equal_outputs(layer: SparseLinear, found: Proportional | None = None) -> tuple[Array, Array]:
    """Group the outputs whose weights and bias are equal; returns (representatives, group), as `equal_groups` does."""
    representatives, group, leading, equal = found or proportional(layer)
    return (representatives, group) if equal else numbered(group, leading, layer.bias_vector())


def proportional_outputs(layer: SparseLinear, found: Proportional) -> tuple[Array, Array]:
    """Group the outputs whose weights and bias are multiples of each other, by any number but zero."""
    representatives, group, leading, equal = found
    return (representatives, group) if equal else numbered(group, layer.bias_vector() / leading)


def passes_scales(layer: SparseLinear) -> bool:
    """Whether f(s·z) = s·f(z) for the layer's activation f, any z and any s > 0."""
    row = table_row(layer.activation)
    return row is not None and row.is_homogeneous


def scaled_outputs(layer: SparseLinear) -> tuple[Array, Array, Array]:
    """Group the outputs whose weights and bias are multiples of each other by powers of two.

    Returns
    -------
    representatives : the first of the largest members of each group; int64.
    group : (outputs,) int64, the group of each.
    scales : (outputs,) float64, powers of two of at most 1: each output is its representative times this.
    """
    representatives, group, leading, equal = proportional(layer)
    if equal:
        return representatives, group, np.ones(layer.outputs)
    _, group = numbered(group, np.frexp(leading)[0], layer.bias_vector() / leading)
    representatives = largest(group, np.abs(leading))
    return representatives, group, leading / leading[representatives][group]
