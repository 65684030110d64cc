"""The graph of a network: nodes, what each of them reads, and who reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from math import prod
from typing import Any, TypeAlias

from sparsenn.errors import InputError, ShapeError
from sparsenn.formats.rebuilt import Rebuilt
from sparsenn.layers import (
    CombiningLayer,
    Flatten,
    ForeignLayer,
    FullyConnected,
    ImageLayer,
    Linear,
    Slice,
    SparseLinear,
)
from sparsenn.layers.images import integers
from sparsenn.printable import kind_of

__all__ = [
    "FAMILIES",
    "Layer",
    "Node",
    "called",
    "chains_of",
    "checked_nodes",
    "consumers_of",
    "integer_columns",
    "live_values",
    "output_shape_of",
]

Layer: TypeAlias = SparseLinear | Linear | ImageLayer
"""Any layer that a network can hold."""

FAMILIES: dict[type[Layer], str] = {SparseLinear: "sparse", Linear: "dense", ImageLayer: "image"}
"""Families of layers that run together, and what messages call them."""


@dataclass(frozen=True, eq=False)
class Node(Rebuilt):
    """A layer of a network, and the nodes whose outputs it reads.

    Parameters
    ----------
    layer : layer
        Any that a network can hold.
    sources : sequence of int
        Numbers of nodes of the same network, counted from 1, all of them before this one; 0 is the network's input.
        One, or at least two for a layer that combines several (`Add`, `Multiply`, `Concatenate`), in its order.

    Raises
    ------
    InputError
        The layer is something else, such as a matrix, or the sources are not as many integers as it reads.
    """

    layer: Layer
    sources: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.layer, FullyConnected | ImageLayer):
            raise InputError(
                f"{kind_of(self.layer)} is not a layer; Network.from_scipy and SparseLinear.from_scipy make layers of "
                "SciPy's matrices, and Linear of NumPy's"
            )
        sources = integers(self.sources, 0)
        least = self.layer.least_sources if isinstance(self.layer, CombiningLayer) else 0
        if sources is None or (len(sources) < least if least else len(sources) != 1):
            count = "two or more" if least > 1 else "one"
            raise InputError(
                f"{called(self.layer)} reads {count}, and its sources are {self.sources!r}; give the number of each "
                "node that it reads, counted from 1, and 0 for the network's input"
            )
        object.__setattr__(self, "sources", sources)


def checked_nodes(nodes: Any) -> tuple[Node, ...]:
    """Return the nodes of layers and nodes, or say what was given instead."""
    alone = isinstance(nodes, FullyConnected | ImageLayer | Node) or hasattr(nodes, "tocsc")
    if alone or not isinstance(nodes, Iterable):
        raise InputError(f"the layers are {kind_of(nodes)}; a network takes a tuple of layers")
    checked: list[Node] = []
    for number, each in enumerate(nodes, start=1):
        try:
            node = each if isinstance(each, Node) else Node(each, (number - 1,))
        except InputError as error:
            raise InputError(f"layer {number}: {error}") from error
        if max(node.sources) >= number:
            raise InputError(f"layer {number} reads layer {max(node.sources)}; a layer reads layers before it")
        checked.append(node)
    return tuple(checked)


def consumers_of(nodes: Sequence[Node]) -> tuple[tuple[int, ...], ...]:
    """Return for the input and for each node the numbers of the nodes that read it, ascending."""
    found: list[list[int]] = [[] for _ in range(len(nodes) + 1)]
    for number, node in enumerate(nodes, start=1):
        for source in set(node.sources):
            found[source].append(number)
    return tuple(map(tuple, found))


def live_values(consumers: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return what is still to be read before each layer and after the last: 0 for the input, and numbers of nodes.

    `consumers`: what `consumers_of` returns. The last node gives the network's outputs.
    """
    last = {value: readers[-1] for value, readers in enumerate(consumers) if readers}
    end = len(consumers) - 1
    values = [0] if 0 in last else []
    found = [tuple(values)]
    for number in range(1, end + 1):
        values = [value for value in values if last[value] > number]
        if number in last or number == end:
            values.append(number)
        found.append(tuple(values))
    return tuple(found)


def chains_of(nodes: Sequence[Node], consumers: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Return ranges of layers, within which only the next layer reads a layer's outputs."""
    follows = [node.sources == (number,) and consumers[number] == (number + 1,) for number, node in enumerate(nodes)]
    starts = [0, *(number for number in range(1, len(nodes)) if not follows[number])]
    return tuple(pairwise((*starts, len(nodes))))


def integer_columns(nodes: Sequence[Node], shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the ranges of inputs, of a shape, that ONNX Runtime takes as integers, such as places in a table."""
    found, sources = list[tuple[int, int]](), set[int]()
    for node in nodes:
        if isinstance(node.layer, ForeignLayer):
            sources.update(compress(node.sources, node.layer.takes_integers))
    for source in sources:
        while source and isinstance(nodes[source - 1].layer, Flatten):
            (source,) = nodes[source - 1].sources
        layer = nodes[source - 1].layer if source else None
        if source == 0:
            found.append((0, prod(shape)))
        elif isinstance(layer, Slice) and nodes[source - 1].sources == (0,):
            found.append(layer.columns(shape))
    return found


def output_shape_of(node: Node, shapes: Sequence[tuple[int, ...]], number: int) -> tuple[int, ...]:
    """Return the shape of what node `number` (1-based) gives for one input, where it reads `shapes`."""
    layer, shape = node.layer, shapes[0]
    if isinstance(layer, FullyConnected) and shape != (layer.inputs,):
        before = f"layer {node.sources[0]} gives" if node.sources[0] else "the network is given"
        if len(shape) == 1:
            raise ShapeError(f"layer {number} takes {layer.inputs} inputs, but {before} {shape[0]}")
        raise ShapeError(
            f"layer {number} takes rows of {layer.inputs} inputs, but {before} images of shape {shape}; put a "
            f"Flatten between them, which makes rows of {prod(shape)}"
        )
    try:
        if isinstance(layer, CombiningLayer):
            return layer.combined_shape(shapes)
        return layer.output_shape((1, *shape))[1:]
    except ShapeError as error:
        raise ShapeError(f"layer {number}: {error}") from error


def called(layer: Layer) -> str:
    """Return what messages call a layer."""
    return kind_of(layer) if layer.family is ImageLayer else FAMILIES[layer.family]
