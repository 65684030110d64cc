"""Weights of other programs become sparse layers where few of them are not zero."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import coo_array, csc_array, csr_array

from sparsenn.errors import InputError
from sparsenn.layers import Identity, Linear, ReLU, SparseLinear
from sparsenn.layers.sparse_or_dense import SPARSE_BELOW, fully_connected

PRUNED = np.array([[0, 2, 0], [0, 0, 0], [1.5, 0, -3]], np.float32)


@pytest.mark.parametrize("form", [np.asarray, csr_array, coo_array])
def test_few_weights_make_a_sparse_layer(form):
    layer = fully_connected(form(PRUNED), [1, 2, 3], ReLU())
    assert isinstance(layer, SparseLinear)
    np.testing.assert_array_equal(layer.weights.to_scipy().toarray(), PRUNED)
    np.testing.assert_array_equal(layer.bias, [1, 2, 3])
    assert layer.activation == ReLU()


@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_half_of_the_weights_make_a_dense_layer(form):
    weights = np.array([[1, 0], [0, 2]], np.float32)
    assert SPARSE_BELOW == 0.5
    layer = fully_connected(form(weights))
    assert isinstance(layer, Linear)
    np.testing.assert_array_equal(layer.weights, weights)
    assert layer.activation == Identity()


def test_stored_zeros_count_as_none():
    weights = csc_array((np.zeros(4), [0, 1, 0, 1], [0, 2, 4]), shape=(2, 2))
    layer = fully_connected(weights)
    assert weights.nnz == 4
    assert isinstance(layer, SparseLinear)
    assert layer.edges == 0


@pytest.mark.parametrize(("share", "kind"), [(0, Linear), (1.5, SparseLinear)])
def test_the_share_is_the_callers(share, kind):
    assert isinstance(fully_connected(PRUNED, sparse_below=share), kind)
    assert isinstance(fully_connected(np.ones((2, 2)), sparse_below=share), kind)


@pytest.mark.parametrize("weights", [np.array([[np.nan, 0], [0, 0]]), np.ones(3), np.array([["a", "b"]])])
def test_what_is_no_matrix_of_numbers_is_refused(weights):
    with pytest.raises(InputError):
        fully_connected(weights)
