"""Layers that combine what several nodes give, in graphs: shapes, who reads what, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from sparsenn import Add, Concatenate, Conv2d, Flatten, Linear, Multiply, Network, Node, ReLU, Softmax
from sparsenn.errors import InputError, ShapeError, UsageError

NARROW, WIDE = Linear(np.eye(3, 2)), Linear(np.eye(3, 5))
SAME = Linear(np.eye(3))
BRANCHES = Network((SAME, NARROW, Node(WIDE, (1,)), Node(Concatenate(), (2, 3)), Flatten(), Softmax()))


def test_shapes_and_readers() -> None:
    assert BRANCHES.shapes == ((3,), (3,), (2,), (5,), (7,), (7,), (7,))
    assert BRANCHES.consumers == ((1,), (2, 3), (4,), (4,), (5,), (6,), ())
    assert BRANCHES.live == ((0,), (1,), (1, 2), (2, 3), (4,), (5,), (6,))
    assert BRANCHES.chains == ((0, 1), (1, 2), (2, 3), (3, 6))
    assert BRANCHES.runs() == ((0, 1), (1, 2), (2, 3), (3, 6))
    assert BRANCHES.input_shapes(3) == ((2,), (5,))
    assert BRANCHES.edges == BRANCHES.multiply_adds == 9 + 6 + 15
    with pytest.raises(UsageError, match="layer 3 does not read layer 2"):
        BRANCHES.layers_of(Linear, 0, 3)
    biased = BRANCHES.with_bias(1.0)
    assert [node.sources for node in biased.nodes] == [node.sources for node in BRANCHES.nodes]
    assert biased[2].bias == 1.0  # type: ignore[union-attr]


def of_images(*shape: int) -> Conv2d:
    return Conv2d(np.ones(shape))


@pytest.mark.parametrize("sources", [(0, 1), (1, 0), (1, 0, 0, 1)])
def test_factors_of_channels(sources: tuple[int, ...]) -> None:
    network = Network((of_images(2, 2, 5, 6), Node(Multiply(), sources)), (2, 5, 6))
    assert network.shapes == ((2, 5, 6), (2, 1, 1), (2, 5, 6))
    assert network[1].multiply_adds((1, 2, 5, 6)) == 0


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((SAME, Add()), "layer 2: an Add reads two or more, and its sources are"),
        ((SAME, Multiply()), "layer 2: a Multiply reads two or more, and its sources are"),
        ((SAME, Node(NARROW, (2,))), "layer 2 reads layer 2; a layer reads layers before it"),
    ],
)
def test_graphs_that_are_none(nodes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Network(nodes)


@pytest.mark.parametrize("sources", [(), (1, 2), (-1,), (1.5,), "1", None, (True,)])
def test_sources_that_are_none(sources: Any) -> None:
    with pytest.raises(InputError, match="sources are "):
        Node(SAME, sources)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((NARROW, Node(WIDE, (0,)), Node(Add(), (1, 2))), r"layer 3: it adds 2 and 5, which are not of one shape"),
        ((NARROW, Node(WIDE, (0,)), Node(Multiply(), (1, 2))), r"layer 3: it multiplies 2 and 5, which are not of one"),
        ((Linear(np.eye(3, 1)), Node(Multiply(), (0, 1))), r"layer 2: it multiplies 3 and 1, which are not of one"),
        ((NARROW, Node(NARROW, (1,))), r"layer 2 takes 3 inputs, but layer 1 gives 2"),
        ((Node(Concatenate(), (0, 0)),), "say what images the network takes"),
        ((of_images(2, 2, 3, 3), Node(Concatenate(), (0, 1))), r"layer 2: .* 2 × 5 × 6 and 2 × 3 × 4"),
        *(
            ((of_images(*shape), Node(Multiply(), (0, 1))), r"layer 2: .* 2 × 5 × 6 and .* channel")
            for shape in ((2, 2, 3, 3), (3, 2, 5, 6), (2, 2, 5, 1))
        ),
    ],
)
def test_shapes_that_do_not_fit(nodes: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        Network(nodes, (2, 5, 6) if isinstance(nodes[0], Conv2d) else None)


@pytest.mark.parametrize("layer", [Add(ReLU(2.0)), Multiply(ReLU(2.0)), Concatenate()])
def test_copies_are_equal(layer: Any) -> None:
    assert pickle.loads(pickle.dumps(layer)) == layer
    with pytest.raises(ShapeError, match="depends on all that it reads"):
        layer.output_shape((1, 3))
