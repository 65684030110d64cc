"""Merging equal outputs: neurons that must compute the same number compute it once.

Two outputs of a layer whose weights and bias are equal bit for bit are equal for every input. One of them is kept;
the next layer reads it in place of all its copies, with the sum of their weights. That is the dual of computing
equal rows once, it holds for any network, and it applies again after each merge: columns that differed only in which
copy of a neuron they read become equal themselves. Networks built by Kronecker products with blocks of ones, as
RadiX-Net builds them, shrink by about the size of the block; in an unstructured network nothing is found and the
layers are used as they are.

Only sparse layers are merged, and of those not the outputs that a layer of another kind reads: such stay as they are.

A summed weight is computed in float64 and rounded once to float32, so that the factored product (w1 + w2)·x is never
further from the exact value than the rounding of w1·x + w2·x allows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sparsenn.formats import CSC, Array, equal_groups
from sparsenn.formats.conversion import scan
from sparsenn.jit import compiled
from sparsenn.layers import SparseLinear
from sparsenn.network import Layer, Network
from sparsenn.workers import map_threads

__all__ = ["Merged", "merge_equal_outputs", "unmerged"]

_THREADED_EDGES = 200_000
"""Mean edges a layer from which on threads search faster than one does: a call must outweigh the hand-over."""


@dataclass(frozen=True, eq=False)
class Merged:
    """A network without repeated outputs, and the way back.

    Parameters
    ----------
    network : layers whose outputs are the distinct ones of the original's.
    copies : for each layer, (outputs,) int64: how many of the original's neurons each output stands for; read-only
        where all stand for one.
    expansion : (original outputs,) int64: which output of the last layer holds each original one; None if all do
        themselves.
    """

    network: Network
    copies: tuple[Array, ...]
    expansion: Array | None


def unmerged(network: Network) -> Merged:
    """Return the network as it is, every output standing for itself."""
    return Merged(network, tuple(map(_ones, network.sizes[1:])), None)


def _ones(count: int) -> Array:
    """Return that many ones, which take no memory."""
    return np.broadcast_to(np.int64(1), (count,))


def merge_equal_outputs(network: Network) -> Merged:
    """Return the network with equal outputs of its sparse layers merged; layers with nothing to merge are shared."""
    layers: list[Layer] = []
    copies: list[Array] = []
    classes: Array | None = None  # for each input of the next layer, the merged output that holds it
    count = network.inputs
    for number, (layer, found) in enumerate(zip(network, _search(network), strict=True), start=1):
        if not isinstance(layer, SparseLinear):  # what it reads was not merged, and nor is what it gives
            layers.append(layer)
            count = network.sizes[number]
            copies.append(_ones(count))
            continue
        representatives, group = found or (np.arange(layer.outputs), np.arange(layer.outputs))
        merged = layer
        if classes is not None or representatives.size < layer.outputs:
            merged = _reduce(layer, representatives, classes, count)
            if classes is not None and found is not None:
                again, regroup = _equal_outputs(merged)
                group = regroup[group]
                merged = merged if again.size == merged.outputs else _reduce(merged, again, None, count)
        layers.append(merged)
        copies.append(np.bincount(group, minlength=merged.outputs).astype(np.int64))
        count = merged.outputs
        classes = None if count == layer.outputs else group
    return Merged(Network(tuple(layers), network.image), tuple(copies), classes)


def _search(network: Network) -> list[tuple[Array, Array] | None]:
    """Group the equal outputs of each layer; layers do not depend on each other for that.

    None stands for layers whose outputs are not to be merged.
    """

    def groups(number: int) -> tuple[Array, Array] | None:
        layer = network[number]
        read_by_others = number + 1 < len(network) and not isinstance(network[number + 1], SparseLinear)
        return _equal_outputs(layer) if isinstance(layer, SparseLinear) and not read_by_others else None

    if network.edges < _THREADED_EDGES * len(network):
        return list(map(groups, range(len(network))))
    return map_threads(groups, range(len(network)))


def _equal_outputs(layer: SparseLinear) -> tuple[Array, Array]:
    """Group the outputs whose weights and bias are equal; returns (representatives, group)."""
    representatives, group = equal_groups(layer.weights)
    if isinstance(layer.bias, np.ndarray):
        keys = np.stack([group, layer.bias.view(np.int32).astype(np.int64)])
        _, first, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        order = np.argsort(first)  # by first occurrence, as `equal_groups` numbers them
        representatives, group = first[order], np.argsort(order)[group.reshape(-1)]
    return representatives, group


def _reduce(layer: SparseLinear, outputs: Array, classes: Array | None, count: int) -> SparseLinear:
    """Keep some outputs of a layer, and read merged inputs: `classes` maps each input to one of `count`."""
    weights = layer.weights
    inputs = np.arange(layer.inputs) if classes is None else classes
    indptr, indices, values = _collect(weights.indptr, weights.indices, weights.values, outputs, inputs)
    bias = layer.bias[outputs] if isinstance(layer.bias, np.ndarray) else layer.bias
    return replace(layer, weights=CSC.from_arrays((count, outputs.size), indptr, indices, values), bias=bias)


@compiled
def _gather_columns(indptr: Array, indices: Array, values: Array, columns: Array, classes: Array,
                    inputs: Array, weights: Array, lengths: Array) -> None:  # fmt: skip
    """Write each chosen column's entries by increasing class, equal classes' weights summed in float64."""
    at = 0
    for number in range(columns.size):
        first, last = indptr[columns[number]], indptr[columns[number] + 1]
        mapped = np.empty(last - first, np.int64)
        for entry in range(first, last):
            mapped[entry - first] = classes[indices[entry]]
        start = at
        for entry in np.argsort(mapped, kind="mergesort"):
            weight = np.float64(values[0] if values.size == 1 else values[first + entry])
            if at > start and inputs[at - 1] == mapped[entry]:
                weights[at - 1] += weight
            else:
                inputs[at] = mapped[entry]
                weights[at] = weight
                at += 1
        lengths[number] = at - start


def _collect(
    indptr: Array, indices: Array, values: Array, columns: Array, classes: Array
) -> tuple[Array, Array, Array]:
    entries = int((indptr[columns + 1] - indptr[columns]).sum())
    inputs, weights, lengths = np.empty(entries, np.int64), np.empty(entries), np.empty(columns.size, np.int64)
    _gather_columns(indptr, indices, values, columns, classes, inputs, weights, lengths)
    offsets = scan(lengths)
    return offsets, inputs[: offsets[-1]], weights[: offsets[-1]].astype(np.float32)
