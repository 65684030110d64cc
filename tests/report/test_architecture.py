"""Networks of images in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csc_array

from sparsenn.layers import AvgPool2d, Conv2d, Flatten, LayerNorm, Linear, MaxPool2d, PerPosition, Softmax, SparseLinear
from sparsenn.network import Network
from sparsenn.report.architecture import architecture_table, layer_title, shape_text

SPARSE = SparseLinear.from_scipy(csc_array(np.eye(8)), 0.5)


@pytest.mark.parametrize(
    ("layer", "title", "count"),
    [
        (Conv2d(np.ones((4, 3, 5, 7)), np.ones(4)), "convolution 5 × 7", 424),
        (Conv2d(np.ones((4, 3, 5, 7)), None), "convolution 5 × 7", 420),
        (
            Conv2d(np.ones((4, 2, 3, 3)), 1.0, stride=2, padding=(1, 0), dilation=(1, 2), groups=2),
            "convolution 3 × 3, stride 2 × 2, padding 1 × 0, dilation 1 × 2, groups 2",
            76,
        ),
        (MaxPool2d(2), "max-pool 2 × 2", 0),
        (MaxPool2d((3, 2), 2, (1, 0)), "max-pool 3 × 2, stride 2 × 2, padding 1 × 0", 0),
        (AvgPool2d(3), "average pool 3 × 3", 0),
        (AvgPool2d(3, 1, 1, 0), "average pool 3 × 3, stride 1 × 1, padding 1 × 1, padding after 0 × 0", 0),
        (AvgPool2d(3, 3, 1, counts_padding=False), "average pool 3 × 3, padding 1 × 1, padding left out", 0),
        (Flatten(), "flatten", 0),
        (Softmax(), "softmax", 0),
        (LayerNorm(np.ones(768), np.ones(768)), "layer norm of 768 numbers", 1536),
        (LayerNorm(np.ones(768), np.ones(768), positions=12), "layer norm of 768 numbers, at 12 positions", 1536),
        (Linear(np.ones((6, 5)), np.ones(5)), "dense", 35),
        (SPARSE, "sparse, 12.5 % of the weights", 16),
        (PerPosition(SPARSE, 1970), "sparse, 12.5 % of the weights, at 1,970 positions", 16),
    ],
)
def test_layers(layer: Any, title: str, count: int) -> None:
    assert (layer_title(layer), layer.parameters) == (title, count)


def test_pruned_convolutions_say_how_many_weights_are_left() -> None:
    weights = np.ones((4, 1, 5, 5))
    weights[1:] = 0
    table = architecture_table(Network((Conv2d(weights), Conv2d(np.ones((2, 4, 5, 5)))), image=(1, 9, 9)))
    assert [str(cell) for cell in table.columns[1].cells][1:3] == [
        "convolution 5 × 5, 25.0 % of the weights",
        "convolution 5 × 5",
    ]


def test_shapes() -> None:
    assert shape_text((4, 80, 80)) == "4 × 80 × 80"
    assert shape_text((4624,)) == "4,624"
