"""Branches of a model as the chain that a network is: what is needed later is kept, and recalled where it is joined."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TypeAlias

from sparsenn.layers import (
    Activation,
    Add,
    Conv2d,
    Flatten,
    Identity,
    Keep,
    Linear,
    MaxPool2d,
    Recall,
    SparseLinear,
)
from sparsenn.layers.activation_names import table_row
from sparsenn.network import Layer

__all__ = ["Node", "Source", "activated", "chain"]


@dataclass(frozen=True, eq=False)
class Node:
    """A layer and what it takes.

    Parameters
    ----------
    layer : one of a network.
    sources : one, or as many as a `Join` joins, in order; None is the network's input.
    """

    layer: Layer
    sources: tuple[Source, ...]


Source: TypeAlias = Node | None


def chain(last: Source) -> tuple[Layer, ...]:
    """Return the layers that give what a node gives, each node's once, with what keeps and recalls between them."""
    order = _in_order(last)
    writer = _Writer(Counter(source for node in order for source in node.sources))
    for node in order:
        writer.write(node)
    return tuple(writer.layers)


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


_OPERAND = object()
"""What is kept for the next layer alone."""


class _Writer:
    """Writes a chain.

    Parameters
    ----------
    uses : how often each source is still taken.
    """

    def __init__(self, uses: Counter[Source]) -> None:
        self._uses = uses
        self._current: Source = None
        self._kept: list[Source | object] = []
        self.layers: list[Layer] = []

    def write(self, node: Node) -> None:
        """Write a node's layer, after what brings it its sources."""
        *others, last = node.sources
        if isinstance(node.layer, Add) and others == [self._current]:
            others, last = [last], self._current  # the sum is the same
        count = len(others)
        in_place = self._kept[len(self._kept) - count :] == others and self._current is last
        if in_place and all(self._uses[each] == 1 for each in (*others, last)):
            del self._kept[len(self._kept) - count :]
        else:
            for other in others:
                self._bring(other)
                self._keep(_OPERAND)
            self._bring(last)
            del self._kept[len(self._kept) - count :]
        self.layers.append(node.layer)
        self._current = node

    def _bring(self, source: Source) -> None:
        """Make a source the current one, for one use; it stays kept where there are others."""
        self._uses[source] -= 1
        more = self._uses[source] > 0
        if source in self._kept:
            if source is self._current and more:
                return
            if self._uses[self._current] > 0 and self._current not in self._kept:
                self._keep(self._current)
            place = self._kept.index(source)
            self.layers.append(Recall(len(self._kept) - place, more))
            if not more:
                del self._kept[place]
            self._current = source
        elif more:
            self._keep(source)

    def _keep(self, source: Source | object) -> None:
        self.layers.append(Keep())
        self._kept.append(source)


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
    if node is None or not isinstance(node.layer, Add | Conv2d | Linear | SparseLinear):
        return None
    if node.layer.activation != Identity():
        return None
    node = Node(replace(node.layer, activation=activation), node.sources)
    for layer in reversed(after):
        node = Node(layer, (node,))
    return node
