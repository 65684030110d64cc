"""Merging equal outputs: neurons that must compute the same number compute it once.

Two outputs of a layer whose weights and bias are equal bit for bit are equal for every input. One of them stays;
the next layer reads it in place of all its copies, with the sum of their weights. That is the dual of computing
equal rows once, it holds for any network, and it applies again after each merge: columns that differed only in which
copy of a neuron they read become equal themselves. Networks built by Kronecker products with blocks of ones, as
RadiX-Net builds them, shrink by about the size of the block; in an unstructured network nothing is found and the
layers are used as they are.

Only sparse layers are merged, and of those not the outputs that a layer of another kind reads: such stay as they are.

Outputs merge only where each weight that the next layer sums is exact: the sum of its float32 weights is a float32
number, zero or not subnormal. Where a sum is not, the outputs whose copies it reads all stay apart, in the layer that
computes them and for the layers that read it, while others of the same layer merge.

Outputs merge, too, where weights and bias are those of another times a power of two s, if the activation passes such
factors on, f(s·z) = s·f(z), as ReLU without a clip and the identity do. The largest of them stays, so that s is at
most 1, and the next layer's weights are multiplied by s before they are summed; what is said of sums holds for these
products. Multiplying by a power of two rounds nothing: s·f(z) has the bits of f(s·z), and w·s times f(z) those of w
times s·f(z), but where a number of the output that is left out is smaller than 2^-126; the merged network has
digits that this one loses. No number gets larger: what was finite stays so. The outputs of a network merge only where
they are equal.

The merged network hence computes the same function of real numbers. Its products are rounded at other places, though:
(w1 + w2)·x once, w1·x + w2·x twice. For a neuron with n weights, either computation on the same inputs is within
γ·(|w1·x1| + … + |wn·xn| + |b|) of the exact sum, with γ = (n + 1)·u / (1 - (n + 1)·u) and u = 2^-24, so that the two
differ by at most twice that; they are equal bit for bit where all products and partial sums are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from sparsenn.formats import CSC, Array
from sparsenn.formats.arrays import collapse_iso, frozen, index_dtype, read_only
from sparsenn.formats.conversion import scan
from sparsenn.layers import SparseLinear
from sparsenn.network import Layer, Network
from sparsenn.runtime.jit import compiled
from sparsenn.runtime.workers import NUMBERS, map_threads
from sparsenn.structure.outputs import equal_outputs, largest, numbered, passes_scales, scaled_outputs

_Groups: TypeAlias = tuple[Array, Array, Array]


@dataclass(frozen=True, eq=False)
class Merged:
    """A network without repeated outputs, and the map to the original ones.

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


@lru_cache
def _ones(count: int) -> Array:
    return np.broadcast_to(np.int64(1), (count,))


@dataclass(frozen=True, eq=False)
class _Merging:
    """A sparse layer and what was merged of it.

    classes : (original inputs,) int64: which input of the merged layer holds each original one.
    inputs : how many inputs the merged layer has.
    factors : (original inputs,) float64: of each to the merged input that holds it; (1,) where all are equal.
    group, scales : of outputs that merge, as `scaled_outputs` returns them.
    merged : the layer of the representatives alone, which reads merged inputs.
    """

    original: SparseLinear
    classes: Array
    inputs: int
    factors: Array
    group: Array
    scales: Array
    merged: SparseLinear

    def without(self, classes: Array) -> _Merging:
        """Return the same with the outputs of some classes apart; `classes` is (outputs,) bool."""
        apart = classes[self.group]
        _, group = numbered(np.where(apart, self.merged.outputs + np.arange(self.group.size), self.group))
        scales = np.where(apart, 1.0, self.scales)
        merged, _ = _reduce(self.original, largest(group, scales), self.classes, self.inputs, self.factors)
        return replace(self, group=group, scales=scales, merged=merged)


def merge_equal_outputs(network: Network) -> Merged:
    """Return the network with its sparse layers' outputs merged that are equal, or multiples by powers of two.

    Layers with nothing to merge are shared.
    """
    merged_layers: list[_Merging | Layer] = []
    for number, (layer, found) in enumerate(zip(network, _search(network), strict=True)):
        if not isinstance(layer, SparseLinear):  # what it reads was not merged, and nor is what it gives
            merged_layers.append(layer)
            continue
        (source,) = network.nodes[number].sources
        read = merged_layers[source - 1] if source and network.consumers[source] == (number + 1,) else None
        before = read if isinstance(read, _Merging) else None
        scaled = _scaled(network, number)
        part, inexact = _merge(layer, found, scaled, before)
        if before is not None and inexact.any():
            before = merged_layers[source - 1] = before.without(inexact)
            part, _ = _merge(layer, found, scaled, before)
        merged_layers.append(part)
    layers = tuple(part.merged if isinstance(part, _Merging) else part for part in merged_layers)
    copies = tuple(map(_copies, merged_layers, network.sizes[1:]))
    last = merged_layers[-1]
    expansion = last.group if isinstance(last, _Merging) and last.merged.outputs < last.original.outputs else None
    distinct = replace(network, named_outputs=None).with_layers(layers)
    if expansion is None:  # or else the names are those of other widths
        distinct = replace(distinct, named_outputs=network.named_outputs)
    return Merged(distinct, copies, expansion)


def _copies(layer: _Merging | Layer, outputs: int) -> Array:
    if not isinstance(layer, _Merging):
        return _ones(outputs)
    return np.bincount(layer.group, minlength=layer.merged.outputs).astype(np.int64)


def _merge(layer: SparseLinear, found: _Groups | None, scaled: bool, before: _Merging | None) -> tuple[_Merging, Array]:
    """Merge the inputs of a layer as the one before it says, then its equal outputs.

    found : what `_groups` returns of the layer as it is, None where its outputs are not to be merged.
    scaled : whether outputs may merge that are multiples of each other.

    Returns
    -------
    The layer, and which of its inputs, (inputs,) bool, are classes whose weights have a sum that is not exact.
    """
    representatives, group, scales = found or (*(np.arange(layer.outputs),) * 2, np.ones(layer.outputs))
    whole = before is None or before.merged.outputs == before.original.outputs
    inputs = layer.inputs if before is None else before.merged.outputs
    classes = np.arange(layer.inputs) if before is None else before.group
    factors = np.ones(1) if before is None or (before.scales == 1).all() else before.scales
    merged, inexact = layer, np.zeros(inputs, np.bool_)
    if not whole or representatives.size < layer.outputs:
        merged, inexact = _reduce(layer, representatives, classes, inputs, factors)
        if not whole and (scales < 1).any():  # the next layer may have them apart, even the smallest
            inexact |= _reduce(layer, largest(group, -scales), classes, inputs, factors)[1]
        if not whole and found is not None and not inexact.any():
            again, regroup, rescaled = _groups(merged, scaled)
            if again.size < merged.outputs:
                merged, _ = _reduce(merged, again, np.arange(inputs), inputs, np.ones(1))
                group, scales = regroup[group], scales * rescaled[group]
    return _Merging(layer, classes, inputs, factors, group, scales, merged), inexact


def _search(network: Network) -> list[_Groups | None]:
    """Group the outputs of each layer that merge; layers do not depend on each other for that.

    None stands for layers whose outputs are not to be merged.
    """

    def groups(number: int) -> _Groups | None:
        layer = network[number]
        if not isinstance(layer, SparseLinear) or not (number + 1 == len(network) or _read_by_sparse(network, number)):
            return None
        return _groups(layer, _scaled(network, number))

    if network.edges < NUMBERS * len(network):
        return list(map(groups, range(len(network))))
    return map_threads(groups, range(len(network)))


def _read_by_sparse(network: Network, number: int) -> bool:
    """Whether one sparse layer, and no other layer, reads the outputs of layer `number`, counted from 0."""
    readers = network.consumers[number + 1]
    return len(readers) == 1 and isinstance(network[readers[0] - 1], SparseLinear)


def _scaled(network: Network, number: int) -> bool:
    """Whether outputs that are multiples of each other may merge: a sparse layer's weights take the factor."""
    layer = network[number]
    return isinstance(layer, SparseLinear) and _read_by_sparse(network, number) and passes_scales(layer)


def _groups(layer: SparseLinear, scaled: bool) -> _Groups:
    """Group the outputs that merge; returns what `scaled_outputs` does."""
    if scaled:
        return scaled_outputs(layer)
    return *equal_outputs(layer), np.ones(layer.outputs)


def _reduce(
    layer: SparseLinear, outputs: Array, classes: Array, count: int, factors: Array
) -> tuple[SparseLinear, Array]:
    """Keep some outputs of a layer, and read merged inputs: `classes` maps each input to one of `count`.

    Weights are multiplied by the `factors` of their inputs, which are one for each, or (1,) where all are 1.
    Returns the layer, and which of the inputs, (count,) bool, have summed weights that are not exact.
    """
    indptr, indices, values, inexact = _collect(*layer.weights.arrays, outputs, classes, count, factors)
    bias = frozen(layer.bias[outputs]) if isinstance(layer.bias, np.ndarray) else layer.bias
    weights = CSC((count, outputs.size), frozen(indptr), frozen(indices), frozen(collapse_iso(values)))
    return replace(layer, weights=weights, bias=bias), inexact


@compiled
def _gather_columns(indptr: Array, indices: Array, values: Array, columns: Array, classes: Array, factors: Array,
                    inputs: Array, weights: Array, lengths: Array, inexact: Array) -> None:  # fmt: skip
    """Write each chosen column's entries by increasing class, equal classes' weights summed in float64, in their order.

    Weights are float32 numbers times their inputs' factors. A sum is exact where no addition rounds (the error of an
    addition is computed as Knuth's TwoSum does) and the result is a float32 number that is not subnormal. Classes with
    another sum are marked in `inexact`; their weight is 0.
    """
    least = np.float64(1.1754943508222875e-38)  # the smallest normal number of float32
    scaled = factors.size > 1
    iso, many = values.size == 1, 1 << 29  # fewer than so many equal float32 numbers add up exactly in float64
    counted = iso and not scaled
    count = inexact.size
    owner = np.full(count, -1, np.int64)  # the column that a class was last read by
    times, totals, rounded = np.empty(count, np.int64), np.empty(count), np.empty(count, np.bool_)
    made = np.empty(count, np.bool_)  # whether a weight is not one of the layer's own
    read = np.empty(count + 1, np.int64)
    at = 0
    for number in range(columns.size):
        found, ordered = 0, True
        for entry in range(indptr[columns[number]], indptr[columns[number] + 1]):
            mine = classes[indices[entry]]
            factor = factors[indices[entry]] if scaled else 1.0
            if owner[mine] != number:
                owner[mine], times[mine], rounded[mine], made[mine] = number, 1, False, factor != 1.0
                totals[mine] = factor * np.float32(values[0] if iso else values[entry])
                ordered &= found == 0 or read[found - 1] < mine
                read[found] = mine
                found += 1
                continue
            times[mine] += 1
            made[mine] = True
            if not counted:
                total, weight = totals[mine], factor * np.float32(values[0] if iso else values[entry])
                together = total + weight
                part = together - total
                totals[mine] = together
                rounded[mine] |= (total - (together - part)) + (weight - part) != 0.0
        if not ordered and count < 8 * found:  # looking at every class is faster than sorting
            found = 0
            for mine in range(count):
                read[found] = mine
                found += owner[mine] == number
        elif not ordered:
            read[:found].sort()
        for place in range(found):
            mine = read[place]
            total = totals[mine] * times[mine] if counted else totals[mine]
            narrow = np.float32(total)
            exact = np.float64(narrow) == total and (total == 0.0 or least <= abs(total))
            exact = exact and times[mine] < many and not rounded[mine]
            if made[mine] and not exact:
                inexact[mine] = True
                narrow = np.float32(0.0)
            inputs[at] = mine
            weights[at] = narrow
            at += 1
        lengths[number] = found


def _collect(
    indptr: Array, indices: Array, values: Array, columns: Array, classes: Array, count: int, factors: Array
) -> tuple[Array, Array, Array, Array]:
    """Return offsets, indices and float32 values of the columns, and which classes have a sum that is not exact."""
    entries = int((indptr[columns + 1] - indptr[columns]).sum())
    inputs, weights = np.empty(entries, index_dtype(count)), np.empty(entries, np.float32)
    lengths, inexact = np.empty(columns.size, np.int64), np.zeros(count, np.bool_)
    how = read_only(columns), read_only(classes), read_only(factors)
    _gather_columns(indptr, indices, values, *how, inputs, weights, lengths, inexact)
    offsets = scan(lengths)
    return offsets, inputs[: offsets[-1]].copy(), weights[: offsets[-1]].copy(), inexact
