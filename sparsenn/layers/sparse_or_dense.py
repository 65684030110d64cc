"""Fully connected layers in the form that suits them: sparse where few of the weights are not zero."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csc_array, issparse

from sparsenn.formats import Array
from sparsenn.layers.activation import Identity
from sparsenn.layers.elementwise import Activation
from sparsenn.layers.linear import Linear
from sparsenn.layers.sparse_linear import SparseLinear

SPARSE_BELOW = 0.5
"""A fully connected layer with a smaller share of weights that are not zero is sparse.

From there on a sparse matrix takes more memory than the dense one. How either is multiplied is the plan's choice."""


def fully_connected(
    weights: Any,
    bias: float | Array | None = None,
    activation: Activation | None = None,
    *,
    sparse_below: float = SPARSE_BELOW,
) -> SparseLinear | Linear:
    """Return the layer of weights, a `SparseLinear` where fewer than that share of them are not zero.

    Parameters
    ----------
    weights : a SciPy sparse matrix or an array of shape (inputs, outputs). Stored zeros of a sparse one are dropped.
    bias : None, one number, or a vector of shape (outputs,).
    activation : `Identity()` unless given.
    sparse_below : 0 keeps every layer dense; more than 1 keeps every layer sparse.
    """
    activation = Identity() if activation is None else activation
    if not issparse(weights):
        array = np.asarray(weights)
        if array.ndim != 2 or array.size == 0 or np.count_nonzero(array) >= sparse_below * array.size:
            return Linear(array, bias, activation)
        weights = csc_array(array)
    stored = csc_array(weights, copy=True)
    stored.eliminate_zeros()
    if stored.nnz >= sparse_below * stored.shape[0] * stored.shape[1]:
        return Linear(stored.toarray(), bias, activation)
    return SparseLinear.from_scipy(stored, bias, activation)


def with_zeros(layer: SparseLinear) -> Linear:
    """Return a sparse layer as a dense one, with its zeros stored."""
    return Linear(layer.weights.to_scipy().toarray(), layer.bias, layer.activation)
