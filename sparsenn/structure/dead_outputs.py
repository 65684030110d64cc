"""Dead outputs: neurons that are zero whatever comes in are neither computed nor read.

A neuron to which no weight leads is act(bias) for every input. Where that is zero, as it is for most neurons that
pruning has cut off, the next layer reads nothing from it: sums begin at zero and a product with zero adds zero, so that
no bit changes without it. What only dead outputs led to may be dead in turn. Outputs of the last layer stay, as do
outputs that a layer of another kind reads.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sparsenn.formats import CSC, Array
from sparsenn.formats.arrays import frozen, index_dtype
from sparsenn.formats.conversion import scan
from sparsenn.layers import SparseLinear
from sparsenn.network import Network


def without_dead_outputs(network: Network) -> Network:
    """Return the network without hidden neurons that are always zero; itself where there is none."""
    layers, found = list(network), False
    for number, readers in enumerate(network.consumers[1:]):
        if len(readers) != 1:
            continue
        layer, following = layers[number], layers[readers[0] - 1]
        if not isinstance(layer, SparseLinear) or not isinstance(following, SparseLinear):
            continue
        alive = _alive(layer)
        if not alive.all():
            layers[number], layers[readers[0] - 1] = _computing(layer, alive), _reading(following, alive)
            found = True
    return network.with_layers(layers) if found else network


def _alive(layer: SparseLinear) -> Array:
    """Return which outputs need not be zero, (outputs,) bool; at least one is said to be alive."""
    alive = np.diff(layer.weights.indptr) > 0
    if not alive.all():
        alive |= layer.activation(layer.bias_vector()) != 0
        alive[0] |= not alive.any()
    return alive


def _computing(layer: SparseLinear, alive: Array) -> SparseLinear:
    """Return a layer with some of its outputs; no weight leads to the others."""
    weights = layer.weights
    lengths = np.diff(weights.indptr)[alive]
    bias = frozen(layer.bias[alive]) if isinstance(layer.bias, np.ndarray) else layer.bias
    weights = CSC((layer.inputs, lengths.size), frozen(scan(lengths)), weights.indices, weights.values)
    return replace(layer, weights=weights, bias=bias)


def _reading(layer: SparseLinear, alive: Array) -> SparseLinear:
    weights, count = layer.weights, int(alive.sum())
    read = alive[weights.indices]
    indptr = scan(read)[weights.indptr]
    indices = (np.cumsum(alive) - 1)[weights.indices[read]].astype(index_dtype(count))
    values = weights.values[: indices.size] if weights.iso else weights.values[read]
    weights = CSC((count, layer.outputs), frozen(indptr), frozen(indices), frozen(values))
    return replace(layer, weights=weights)
