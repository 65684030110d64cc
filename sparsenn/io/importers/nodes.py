"""The graph of a model that is being read: layers and what they read, until their order and numbers are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from sparsenn.layers import (
    Activation,
    Add,
    Conv2d,
    Flatten,
    Identity,
    Linear,
    MaxPool2d,
    Multiply,
    PerPosition,
    SparseLinear,
    replace_fields,
)
from sparsenn.layers.activation_names import table_row
from sparsenn.network import Layer
from sparsenn.network import Node as NetworkNode


@dataclass(frozen=True, eq=False)
class Node:
    """A layer and what it takes.

    layer : one of a network.
    sources : one, or as many as the layer combines, in order; None is the network's input.
    """

    layer: Layer
    sources: tuple[Source, ...]


Source: TypeAlias = Node | None


def network_nodes(last: Source) -> tuple[NetworkNode, ...]:
    """Return the nodes of the network that gives what a node gives: each node once, and those that lead to it first."""
    order = _in_order(last)
    numbers = {None: 0} | {node: number for number, node in enumerate(order, start=1)}
    return tuple(NetworkNode(node.layer, tuple(numbers[source] for source in node.sources)) for node in order)


def _in_order(last: Source) -> list[Node]:
    """Return what leads to a node, and that node, each after its sources."""
    order: dict[Node, None] = {}
    waiting = [last]
    while waiting:
        node = waiting[-1]
        missing = [] if node is None else [each for each in node.sources if each is not None and each not in order]
        if missing:
            waiting.append(missing[0])
            continue
        waiting.pop()
        if node is not None:
            order[node] = None
    return list(order)


def activated(node: Source, activation: Activation) -> Node | None:
    """Return layers with an activation in the last that has none, before poolings that may as well come after it.

    The largest number of a window stays so under activations that do not fall. None where there is no such layer.
    """
    after: list[Layer] = []
    row = table_row(activation)
    passed = (MaxPool2d, Flatten) if row is not None and row.is_monotone else (Flatten,)
    while node is not None and isinstance(node.layer, passed):
        after.append(node.layer)
        (node,) = node.sources
    if node is None or not isinstance(node.layer, Add | Conv2d | Linear | Multiply | PerPosition | SparseLinear):
        return None
    if node.layer.activation != Identity():
        return None
    node = Node(replace_fields(node.layer, activation=activation), node.sources)
    for layer in reversed(after):
        node = Node(layer, (node,))
    return node
