"""Sparse layers that have the weights of a dense matrix."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csc_array

from sparsenn.formats import COO, CSC, coo_to_csc
from sparsenn.layers import Activation, SparseLinear

__all__ = ["csc", "csc_of_all", "scattered_layers", "sparse_layer"]


def csc(dense: Any) -> CSC:
    """Return the nonzeros of a matrix, in float32."""
    return CSC.from_scipy(csc_array(np.asarray(dense, np.float32)))


def csc_of_all(dense: Any) -> CSC:
    """Return all of a matrix, zeros included, in float32."""
    dense = np.atleast_2d(np.asarray(dense, np.float32))
    return coo_to_csc(COO.from_arrays(dense.shape, *np.indices(dense.shape).reshape(2, -1), dense.reshape(-1)))


def sparse_layer(dense: Any, bias: Any = None, activation: Activation | None = None) -> SparseLinear:
    """Return a layer, with ReLU unless another activation is named."""
    return SparseLinear.from_scipy(csc_array(np.asarray(dense, np.float32)), bias, activation)


def scattered_layers(
    rng: np.random.Generator, widths: Sequence[int], density: float, activation: Activation | None = None
) -> list[SparseLinear]:
    """Return layers of normal weights at random places, a tenth of whose outputs have none, and normal biases."""
    layers = []
    for inputs, outputs in pairwise(widths):
        matrix = rng.normal(size=(inputs, outputs)) * (rng.random((inputs, outputs)) < density)
        matrix[:, rng.random(outputs) < 0.1] = 0
        layers.append(sparse_layer(matrix, rng.normal(size=outputs), activation))
    return layers
