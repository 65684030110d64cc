"""Formats, layers and networks cross to another process, and copy, as they were and checked as they were."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from strategies import coo_matrices, csc_matrices, csr_matrices, mixed_networks

from sparsenn.errors import InputError, MatrixError, ShapeError
from sparsenn.formats import COO, CSC, CSR
from sparsenn.formats.arrays import frozen, is_own
from sparsenn.layers import (
    AvgPool2d,
    Conv2d,
    Flatten,
    Identity,
    LayerNorm,
    Linear,
    MaxPool2d,
    PerPosition,
    ReLU,
    Sigmoid,
    Softmax,
    SparseLinear,
    Tanh,
)
from sparsenn.network import Network, Node


def out_of_band(value: Any) -> Any:
    buffers: list[Any] = []
    content = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return pickle.loads(content, buffers=[bytearray(buffer.raw()) for buffer in buffers])


WAYS: dict[str, Callable[[Any], Any]] = {
    **{f"protocol {n}": lambda value, n=n: pickle.loads(pickle.dumps(value, n)) for n in (2, 5)},
    "out of band": out_of_band,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
EACH_WAY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def same(found: Any, expected: Any) -> bool:
    if type(found) is not type(expected):
        return False
    if isinstance(expected, np.ndarray):
        return found.dtype == expected.dtype and np.array_equal(found, expected)
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if hasattr(expected, "__dataclass_fields__"):
        names = [part.name for part in fields(expected)]
        return all(same(getattr(found, name), getattr(expected, name)) for name in names if name != "_checked")
    return bool(found == expected)


LAYERS = [
    SparseLinear.from_scipy(sp.csc_array(np.array([[1.0, 0, 2], [0, 0, 3]])), -0.3, ReLU(32.0)),
    SparseLinear.from_scipy(sp.csc_array(np.ones((2, 2))), [0.5, 1.5], Tanh()),
    Linear(np.arange(6).reshape(2, 3), None, Sigmoid()),
    Linear(np.ones((2, 3)), np.ones(3), Identity()),
    Conv2d(np.ones((4, 1, 3, 3)), np.zeros(4), stride=(2, 1), padding=1, groups=2),
    MaxPool2d(2),
    AvgPool2d((3, 2), padding=(1, 0)),
    Flatten(),
    LayerNorm(np.arange(3), np.ones(3), 1e-3, 4),
    PerPosition(Linear(np.ones((3, 2))), 4),
    Softmax(),
]


@EACH_WAY
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_layers(layer: Any, way: Callable[[Any], Any]) -> None:
    getattr(layer, "sliding_window", None)  # computed and cached where a layer has it
    found = way(layer)
    assert same(found, layer)
    assert getattr(found, "sliding_window", None) == getattr(layer, "sliding_window", None)
    arrays = [value for value in vars(found).values() if isinstance(value, np.ndarray)]
    if isinstance(layer, SparseLinear):
        assert found.weights.is_checked
        arrays += found.weights.arrays
    assert all(map(is_own, arrays))


@EACH_WAY
@given(mixed_networks(max_layers=3))
def test_mixed_networks(way: Callable[[Any], Any], network: Network) -> None:
    assert same(way(network), network)


@EACH_WAY
@given(csr_matrices(), csc_matrices(), coo_matrices())
def test_matrices(way: Callable[[Any], Any], by_row: CSR, by_column: CSC, triples: COO) -> None:
    for matrix in (by_row, by_column, triples, by_row.checked(), by_column.checked()):
        found = way(matrix)
        assert same(found, matrix)
        assert getattr(found, "is_checked", False) == getattr(matrix, "is_checked", False)


@EACH_WAY
def test_a_matrix_that_was_not_checked_stays_so(way: Callable[[Any], Any]) -> None:
    matrix = CSR((1, 3), np.array([0, 2]), np.array([2, 2], np.uint16), np.ones(2, np.float32))
    found = way(matrix)
    assert not found.is_checked
    with pytest.raises(MatrixError, match="occurs twice"):
        found.validate()


def test_shared_arrays_stay_shared() -> None:
    offsets, values = frozen(np.array([0, 1, 2])), frozen(np.ones(1, np.float32))
    indices = [frozen(np.array(order, np.uint16)) for order in ([0, 1], [1, 0])]
    network = Network(tuple(SparseLinear(CSC((2, 2), offsets, order, values)) for order in indices))
    assert network[0].weights.indptr is network[1].weights.indptr
    for protocol in (2, 3, 4):
        first, second = pickle.loads(pickle.dumps(network, protocol))
        assert first.weights.indptr is second.weights.indptr


def forged(value: Any, name: str, wrong: Any) -> bytes:
    """The pickle of an object, one of whose fields was changed behind its back."""
    object.__setattr__(value, name, wrong)
    return pickle.dumps(value)


def test_what_is_wrong_in_a_pickle_is_found() -> None:
    matrix = CSC.from_scipy(sp.csc_array(np.eye(3))).checked()
    with pytest.raises(MatrixError, match="index 7 is outside"):
        pickle.loads(forged(matrix, "indices", frozen(np.array([0, 1, 7], np.uint16))))
    with pytest.raises(InputError, match="NaN"):
        pickle.loads(forged(Linear(np.ones((2, 2))), "weights", np.full((2, 2), np.nan, np.float32)))
    network = Network((Linear(np.ones((2, 2))),))
    with pytest.raises(ShapeError, match="layer 2 takes 3 inputs"):
        pickle.loads(forged(network, "nodes", (*network.nodes, Node(Linear(np.ones((3, 1))), (1,)))))
