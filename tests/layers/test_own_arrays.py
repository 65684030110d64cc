"""Layers keep arrays of their own, which nothing that callers do later changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sparsenn.errors import MatrixError
from sparsenn.formats import CSC
from sparsenn.formats.arrays import frozen, is_own
from sparsenn.layers import Conv2d, Linear, SparseLinear

SHAPES = {Linear: (3, 2), Conv2d: (2, 3, 1, 1)}
DENSE = pytest.mark.parametrize("kind", [Linear, Conv2d])


def columns(values: np.ndarray) -> CSC:
    return CSC((3, 2), np.array([0, 2, 3]), np.array([0, 2, 1], np.uint16), values)


@DENSE
def test_dense_weights_and_bias_are_copied(kind: Any) -> None:
    weights, bias = np.ones(SHAPES[kind], np.float32), np.ones(2, np.float32)
    layer = kind(weights, bias)
    weights[:] = np.nan
    bias[:] = np.nan
    assert np.isfinite(layer.weights).all()
    assert np.isfinite(layer.bias).all()
    for array in (layer.weights, layer.bias):
        assert is_own(array)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert layer.bias_vector().flags.writeable


@DENSE
def test_only_arrays_that_nobody_writes_to_are_taken(kind: Any) -> None:
    weights, bias = np.ones(SHAPES[kind], np.float32), frozen(np.ones(2, np.float32))
    view = weights.view()
    view.flags.writeable = False
    assert not np.shares_memory(kind(view).weights, weights)
    layer = kind(frozen(weights), bias)
    assert layer.weights is weights
    assert layer.bias is bias


@DENSE
def test_what_hands_out_its_own_array_is_left_alone(kind: Any) -> None:
    class Holder:
        def __init__(self) -> None:
            self.array = np.ones(SHAPES[kind], np.float32)

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return self.array

    holder = Holder()
    layer = kind(holder)
    holder.array[:] = 7
    assert (layer.weights == 1).all()


def test_sparse_weights_and_bias_are_copied() -> None:
    weights, bias = columns(np.array([1, 2, 3], np.float32)), np.ones(2, np.float32)
    values = weights.values.base
    layer = SparseLinear(weights, bias)
    values[0] = np.nan
    bias[0] = np.nan
    assert layer.weights.is_checked
    assert layer.weights.values.tolist() == [1, 2, 3]
    assert layer.bias.tolist() == [1, 1]
    assert all(map(is_own, (*layer.weights.arrays, layer.bias)))


def test_checked_sparse_weights_and_those_within_float32_are_taken() -> None:
    weights = CSC.from_scipy(sp.csc_array(np.eye(3)))
    assert SparseLinear(weights).weights is weights
    assert weights.is_checked
    assert SparseLinear(columns(np.array([1, 2, 1e38]))).weights.values.dtype == np.float64


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (columns(np.array([1, np.nan, 3], np.float32)), "entry 1: the value nan"),
        (columns(np.array([1, 1e39, 3])), "exceed 3.403e.38, the largest number of float32"),
        (columns(np.array([1, -1e39, 3])), "exceed"),
        (CSC((3, 1), np.array([0, 2]), np.array([1, 1], np.uint16), np.ones(2, np.float32)), "index 1 occurs twice"),
        (CSC((3, 1), np.array([0, 2]), np.array([1, 60_000], np.uint16), np.ones(1, np.float32)), "60000 is outside"),
        (CSC((3, 1), np.array([0, 10**9]), np.array([1, 2], np.uint16), np.ones(1, np.float32)), "must rise from 0"),
    ],
)
def test_sparse_weights_are_checked(weights: CSC, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        SparseLinear(weights)


def test_what_scipy_is_given_does_not_change_a_layer() -> None:
    source = sp.csc_array(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    layer = SparseLinear.from_scipy(source)
    layer.weights.to_scipy().data[:] = 0
    source.data[:] = 0
    assert layer.weights.values.tolist() == [1, 3, 2, 4]
