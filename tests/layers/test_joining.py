"""Layers that keep what they are given, and those that join it: what they do to shapes, and what they refuse."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from sparsenn import Add, Concatenate, Conv2d, Flatten, Keep, Linear, Network, Recall, ReLU
from sparsenn.errors import InputError, ShapeError, UsageError

NARROW, WIDE = Linear(np.eye(3, 2)), Linear(np.eye(3, 5))
SAME = Linear(np.eye(3))


def test_what_is_kept() -> None:
    network = Network((Keep(), NARROW, Keep(), Recall(2), WIDE, Concatenate(), Flatten()))
    assert network.shapes == ((3,), (3,), (2,), (2,), (3,), (5,), (7,), (7,))
    assert network.kept == ((), ((3,),), ((3,),), ((3,), (2,)), ((2,),), ((2,),), (), ())
    assert network.edges == network.multiply_adds == 6 + 15


def test_what_is_recalled_again() -> None:
    assert Recall(1, again=True).move("y", ("a", "b")) == (("b",), ("a", "b"))
    assert Recall(2).move("y", ("a", "b", "c")) == (("b",), ("a", "c"))
    assert Add(3).move("y", ("a", "b", "c")) == (("b", "c", "y"), ("a",))


def test_images_are_concatenated_by_channels() -> None:
    grow = Conv2d(np.ones((4, 2, 3, 3)), padding=1)
    network = Network((Keep(), grow, Concatenate()), (2, 5, 6))
    assert network.shapes[-1] == (6, 5, 6)


def test_a_prefix_may_keep_what_it_does_not_use() -> None:
    assert Network((SAME, Keep(), SAME, Add())).prefix(2).outputs == 3


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((SAME, Add()), r"layer 2: add takes 1 of what is kept, and 0 is; Keep comes before it"),
        ((SAME, Keep(), Add(3)), r"layer 3: add takes 2 of what is kept, and 1 is"),
        ((SAME, Recall()), r"layer 2: recall takes 1"),
        ((Keep(), NARROW, Add()), r"layer 3: it adds 3 and 2, which are not of one shape"),
        ((Keep(), NARROW, Recall(), NARROW, Concatenate()), "layer 5: concatenate takes 1"),
        ((Keep(),), "say what images the network takes"),
    ],
)
def test_stacks_that_do_not_fit(layers: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        Network(layers)


def test_images_of_several_sizes_are_not_joined() -> None:
    shrink = Conv2d(np.ones((2, 2, 3, 3)))
    with pytest.raises(ShapeError, match=r"layer 3: it concatenates 2 × 5 × 6 and 2 × 3 × 4, which differ in more"):
        Network((Keep(), shrink, Concatenate()), (2, 5, 6))


@pytest.mark.parametrize("make", [Add, Concatenate, Recall])
@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True])
def test_counts_that_are_none(make: Any, count: Any) -> None:
    with pytest.raises(UsageError):
        make(count)


def test_one_is_not_joined() -> None:
    with pytest.raises(UsageError, match="a count of 1; it must join two or more"):
        Add(1)


def test_an_activation_must_be_one() -> None:
    with pytest.raises(InputError, match="the activation is 'relu'"):
        Add(activation="relu")  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", [Keep(), Recall(2, again=True), Add(3, ReLU(2.0)), Concatenate(4)])
def test_copies_are_equal(layer: Any) -> None:
    assert pickle.loads(pickle.dumps(layer)) == layer
    with pytest.raises(ShapeError, match="depends on what is kept"):
        layer.output_shape((1, 3))
