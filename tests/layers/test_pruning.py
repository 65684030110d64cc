"""Pruning by magnitude, by its properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csc_array
from strategies import mixed_networks

from sparsenn.errors import UsageError
from sparsenn.layers import Conv2d, Flatten, Linear, ReLU, SparseLinear
from sparsenn.layers.pruning import largest, nonzeros, pruned
from sparsenn.model import Model
from sparsenn.network import Network

SHARES = st.floats(0.01, 1)


def weights_of(layer: Any) -> np.ndarray:
    found: np.ndarray = layer.weights.to_scipy().toarray() if isinstance(layer, SparseLinear) else layer.weights
    return found


@given(mixed_networks(), SHARES)
def test_what_is_kept_is_the_largest_as_it_was_and_no_more_than_the_share(network: Network, share: float) -> None:
    found = network.pruned(share)
    for before, after in zip(network, found, strict=True):
        old, new = weights_of(before), weights_of(after)
        assert new.shape == old.shape
        kept = new != 0
        assert nonzeros(after) == min(nonzeros(before), max(1, round(share * old.size)))
        assert np.array_equal(new[kept], old[kept])
        if kept.any() and not kept.all():
            assert np.abs(old[~kept]).max() <= np.abs(old[kept]).min()
        assert np.array_equal(before.bias, after.bias)  # type: ignore[union-attr, arg-type]
        assert before.activation == after.activation  # type: ignore[union-attr]
    again = found.pruned(share)
    assert all(first is second for first, second in zip(found, again, strict=True))


@given(st.lists(st.integers(-3, 3), max_size=20), st.integers(1, 25))
def test_of_equal_values_the_first_are_kept(values: list[int], count: int) -> None:
    order = sorted(range(len(values)), key=lambda place: (-abs(values[place]), place))[:count]
    assert np.flatnonzero(largest(np.array(values, np.float32), count)).tolist() == sorted(order)


def test_a_dense_layer_and_a_sparse_one_keep_the_same_and_few_weights_make_a_layer_sparse() -> None:
    weights = np.random.default_rng(3).integers(-2, 3, (9, 7)).astype(np.float32)
    for share in (0.1, 0.3, 0.6):
        dense = pruned(Linear(weights), share)
        sparse = pruned(SparseLinear.from_scipy(csc_array(weights)), share)
        assert isinstance(dense, SparseLinear if share < 0.5 else Linear)
        assert isinstance(sparse, SparseLinear)
        assert np.array_equal(weights_of(dense), weights_of(sparse))


def test_a_dense_layer_that_has_so_few_weights_already_becomes_sparse() -> None:
    few = Linear(np.diag([1.0, 2.0, 3.0, 4.0]))
    kept = pruned(few, 0.5)
    assert isinstance(kept, SparseLinear)
    assert np.array_equal(kept.weights.to_scipy().toarray(), few.weights)
    full = Linear(np.ones((4, 4)))
    assert pruned(full, 1.0) is full


def test_filters_are_pruned_and_keep_their_shape_bias_and_stride() -> None:
    layer = Conv2d(np.arange(1, 9, dtype=np.float32).reshape(2, 1, 2, 2), 0.5, ReLU(6.0), stride=2, padding=1)
    found = pruned(layer, 0.25)
    assert found.weights.reshape(-1).tolist() == [0, 0, 0, 0, 0, 0, 7, 8]
    assert (found.bias, found.activation, found.sliding_window) == (layer.bias, layer.activation, layer.sliding_window)
    assert pruned(Flatten(), 0.25) == Flatten()


@pytest.mark.parametrize("share", [0, -0.1, 1.01, float("nan"), True, "half", None])
def test_what_is_no_share_is_refused(share: Any) -> None:
    with pytest.raises(UsageError, match="above 0 and at most 1"):
        Network((Linear(np.ones((2, 2))),)).pruned(share)


def test_a_model_says_that_it_was_pruned() -> None:
    model = Model(Network((Linear(np.arange(1.0, 5.0).reshape(2, 2)),)), "mse", False, {"made by": "hand"}).pruned(0.5)
    assert model.provenance["made by"] == "hand"
    assert "2 of 4 weights were set to zero" in model.provenance["pruned"]
    assert "loses accuracy" in model.provenance["pruned"]
