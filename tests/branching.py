"""Networks with branches, as graphs of layers; numbers are small integers, so that float32 holds all sums exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from oracle import outputs_of
from sparse_layers import sparse_layer
from strategies import seeds

from sparsenn.io.importers.nodes import Node, Source
from sparsenn.layers import Add, Concatenate, FullyConnected, Identity, Linear, Multiply, ReLU

__all__ = ["evaluated", "graphs"]

WIDTH = 4


@st.composite
def graphs(draw: st.DrawFn, sparse: bool = False) -> Node:
    """A graph of up to a dozen layers: sparse or dense ones, and sums, products and concatenations of two or three."""
    rng = np.random.default_rng(draw(seeds))
    nodes: list[tuple[Source, int]] = [(_connected(rng, None, WIDTH, WIDTH, sparse), WIDTH)]
    for _ in range(draw(st.integers(0, 11))):
        kind = draw(st.sampled_from(["connected", "connected", "add", "multiply", "concatenate"]))
        picked = [nodes[draw(st.integers(0, len(nodes) - 1))] for _ in range(draw(st.integers(2, 3)))]
        source, width = picked[0]
        if kind == "connected":
            outputs = draw(st.sampled_from([1, WIDTH, WIDTH]))
            nodes.append((_connected(rng, source, width, outputs, sparse), outputs))
        elif kind != "concatenate":
            activation = draw(st.sampled_from([Identity(), ReLU(), ReLU(3.0)]))
            same = [node for node, other in picked if other == width]
            if len(same) > 1:  # a product is clipped: numbers stay small
                nodes.append((Node(Add(activation) if kind == "add" else Multiply(ReLU(3.0)), tuple(same)), width))
        elif sum(other for _, other in picked) <= 4 * WIDTH:
            layer = Concatenate()
            nodes.append((Node(layer, tuple(node for node, _ in picked)), sum(other for _, other in picked)))
    source, width = nodes[-1]
    return _connected(rng, source, width, WIDTH, sparse)


def _connected(rng: np.random.Generator, source: Source, inputs: int, outputs: int, sparse: bool) -> Node:
    weights = rng.integers(-1, 2, (inputs, outputs)) * (rng.random((inputs, outputs)) < 0.5)
    bias = rng.integers(-2, 3, outputs).astype(np.float32)
    activation = ReLU(8.0)  # numbers stay small
    kind = sparse_layer if sparse and rng.random() < 0.7 else Linear
    return Node(kind(weights, bias, activation), (source,))


def evaluated(node: Source, rows: Any) -> Any:
    found: dict[Source, Any] = {None: np.asarray(rows, np.float64)}

    def of(node: Source) -> Any:
        if node not in found:
            assert node is not None
            found[node] = _computed(node.layer, [of(source) for source in node.sources])
        return found[node]

    return of(node)


def _computed(layer: Any, given: list[Any]) -> Any:
    if isinstance(layer, Concatenate):
        return np.concatenate(given, axis=1)
    if isinstance(layer, Add):
        return layer.activation(sum(given))
    if isinstance(layer, Multiply):
        return layer.activation(np.prod(given, axis=0))
    assert isinstance(layer, FullyConnected)
    return outputs_of(layer, given[0])
