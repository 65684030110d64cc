"""A layer that the positions of a row share: sizes, weights, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsenn import Network
from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.layers import Flatten, Identity, Linear, PerPosition, ReLU, SparseLinear, replace_fields

LAYER = Linear(np.arange(6.0).reshape(3, 2), [0.0, -1.0], Identity())


@pytest.mark.parametrize("shape", [(5, 12), (5, 4, 3), (5, 4, 1, 3), (5, 2, 2, 3)])
def test_rows_of_any_shape_with_as_many_numbers(shape: tuple[int, ...]) -> None:
    layer = PerPosition(LAYER, 4)
    assert layer.output_shape(shape) == (5, 8)
    assert layer.multiply_adds(shape) == 5 * 4 * 6
    assert (layer.inputs, layer.outputs, layer.edges, layer.parameters) == (12, 8, 6, 8)


def test_zero_rows_stay_zero_only_without_a_bias() -> None:
    assert not PerPosition(LAYER, 4).keeps_zero_rows
    assert PerPosition(Linear(LAYER.weights), 4).keeps_zero_rows


def test_rows_of_other_sizes_are_refused() -> None:
    with pytest.raises(ShapeError, match="4 positions of 3"):
        PerPosition(LAYER, 4).output_shape((5, 13))
    with pytest.raises(ShapeError, match="layer 2"):
        Network((PerPosition(LAYER, 4), PerPosition(LAYER, 4)))


@pytest.mark.parametrize("positions", [0, -1, 2.0, True, (2, 3)])
def test_positions_that_are_none(positions: Any) -> None:
    with pytest.raises(UsageError, match="positions"):
        PerPosition(LAYER, positions)


def test_layers_that_positions_cannot_share() -> None:
    with pytest.raises(InputError, match="Flatten"):
        PerPosition(Flatten(), 4)  # type: ignore[arg-type]


def test_networks_change_the_layer_within() -> None:
    network = Network((PerPosition(LAYER, 4),))
    assert network.inputs == 12
    (changed,) = network.with_bias(3.0)
    assert isinstance(changed, PerPosition)
    assert changed.layer.bias == 3.0
    (pruned,) = network.pruned(1 / 3)
    assert isinstance(pruned, PerPosition)
    assert isinstance(pruned.layer, SparseLinear)
    assert network.pruned(1 / 3).nonzeros == 2
    assert network.pruned(1.0)[0] is network[0]
    changed = replace_fields(network[0], activation=ReLU())
    assert (changed.activation, changed.positions) == (ReLU(), 4)
