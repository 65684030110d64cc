"""What every layer tells of itself: its family, and what its weights come to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csc_array

from sparsenn.errors import ShapeError
from sparsenn.layers import (
    AvgPool2d,
    Conv2d,
    Flatten,
    FullyConnected,
    ImageLayer,
    Linear,
    MaxPool2d,
    Softmax,
    SparseLinear,
)
from sparsenn.network import Network

SPARSE = SparseLinear.from_scipy(csc_array(np.array([[1.0, 0, 2], [0, 0, 3]])), 0.5)
DENSE = Linear(np.ones((2, 3)))
CONVOLUTION = Conv2d(np.ones((6, 2, 3, 3)), np.zeros(6), groups=2)


@pytest.mark.parametrize(
    ("layer", "family", "parameters"),
    [
        (SPARSE, SparseLinear, 3 + 3),
        (DENSE, Linear, 6),
        (Linear(np.ones((2, 3)), 0), Linear, 6 + 3),
        (CONVOLUTION, ImageLayer, 6 * 18 + 6),
        (Conv2d(np.ones((6, 2, 3, 3))), ImageLayer, 6 * 18),
        *((layer, ImageLayer, 0) for layer in (MaxPool2d(2), AvgPool2d(3), Flatten(), Softmax())),
    ],
)
def test_families_and_parameters(layer: Any, family: type, parameters: int) -> None:
    assert layer.family is family
    assert isinstance(layer, family)
    assert layer.parameters == parameters


def test_bytes_are_those_of_the_weights() -> None:
    assert SPARSE.weight_bytes == SPARSE.weights.nbytes > 0
    assert DENSE.weight_bytes == 4 * 6
    assert CONVOLUTION.weight_bytes == 4 * 6 * 18
    assert [layer.weight_bytes for layer in (MaxPool2d(2), Flatten(), Softmax())] == [0, 0, 0]


@pytest.mark.parametrize("layer", [SPARSE, DENSE])
def test_multiply_adds_of_fully_connected_layers(layer: FullyConnected) -> None:
    assert layer.multiply_adds((7, 2)) == 7 * layer.edges
    assert layer.multiply_adds((0, 2)) == 0
    for shape in ((7, 3), (2,), (1, 1, 2)):
        with pytest.raises(ShapeError, match=r"the layer takes \(rows, 2\)"):
            layer.multiply_adds(shape)


def test_a_network_adds_up() -> None:
    network = Network((Conv2d(np.ones((2, 1, 2, 2)), 1.0), MaxPool2d(2), Flatten(), Linear(np.ones((8, 3)))), (1, 5, 5))
    assert network.parameters == (8 + 2) + 24
    assert network.multiply_adds == 4 * 4 * 8 + 24
