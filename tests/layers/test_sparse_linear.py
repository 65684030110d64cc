from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from strategies import layers

from sparsenn.errors import InputError, ShapeError
from sparsenn.formats import CSC, CSR
from sparsenn.layers import Activation, Identity, Linear, ReLU, Sigmoid, SparseLinear, Tanh

WEIGHTS = CSC.from_scipy(sp.csc_array([[1.0, 0, 2], [0, 0, 3]]))

both = pytest.mark.parametrize(
    "made", [partial(SparseLinear, WEIGHTS), partial(Linear, WEIGHTS.to_scipy().toarray())], ids=["sparse", "dense"]
)


def test_shape_of_weights_is_inputs_by_outputs() -> None:
    layer = SparseLinear(WEIGHTS)
    assert (layer.inputs, layer.outputs, layer.edges) == (2, 3, 3)
    assert layer.activation == ReLU()
    assert layer.output_shape((7, 2)) == (7, 3)
    assert layer.output_shape((0, 2)) == (0, 3)


@both
@pytest.mark.parametrize("shape", [(7, 3), (7,), (), (1, 7, 2)])
def test_inputs_that_do_not_fit(made: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"takes \(rows, 2\); its input has shape"):
        made().output_shape(shape)


@both
@pytest.mark.parametrize("bias", [None, -0.3, 0, np.float32(0.5), np.float64(0.5), np.array(0.5)])
def test_scalar_biases(made: Any, bias: Any) -> None:
    layer = made(bias)
    assert layer.bias is None if bias is None else type(layer.bias) is float
    vector = layer.bias_vector()
    assert vector.dtype == np.float32
    np.testing.assert_array_equal(vector, np.full(3, np.float32(bias or 0.0)))


@pytest.mark.parametrize("bias", [[1, 2, 3], np.array([1.0, 2, 3]), np.array([1, 2, 3], np.int8)])
def test_vector_biases(bias: Any) -> None:
    layer = SparseLinear(WEIGHTS, bias)
    assert isinstance(layer.bias, np.ndarray)
    assert layer.bias.dtype == np.float32
    assert layer.bias_vector().tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("bias", [np.zeros(2), np.zeros(4), np.zeros((1, 3)), np.zeros((3, 1)), np.zeros(0), [1.0]])
@both
def test_bias_of_a_wrong_shape(made: Any, bias: Any) -> None:
    with pytest.raises(ShapeError, match=r"bias has shape .* \(3,\)"):
        made(bias)


@pytest.mark.parametrize("bias", [np.nan, np.inf, -np.inf, 1e39, [0.0, np.nan, 0.0], np.array([0, 1e300, 0])])
def test_bias_that_is_not_finite(bias: Any) -> None:
    with pytest.raises(InputError, match=r"bias holds .*float32"):
        SparseLinear(WEIGHTS, bias)


@pytest.mark.parametrize(
    ("bias", "activation", "expected"),
    [
        (None, ReLU(), True),
        (None, Tanh(), True),
        (None, Identity(), True),
        (None, Sigmoid(), False),  # 1/2 everywhere
        (-0.3, ReLU(clip=32.0), True),
        (0.0, ReLU(), True),
        (-0.0, Identity(), True),
        (0.3, ReLU(), False),
        (1e-45, ReLU(), False),
        (1e-60, ReLU(), True),  # zero in float32
        (-0.3, Tanh(), False),
        (-0.3, Identity(), False),
        (-200.0, Sigmoid(), True),  # rounds to zero in float32
        ([-1, -2, 0], ReLU(), True),
        ([-1, -2, 1e-3], ReLU(), False),
        ([0, 0, 0], Identity(), True),
        ([0, 0, -1], Identity(), False),
    ],
)
@both
def test_keeps_zero_rows(made: Any, bias: Any, activation: Activation, expected: bool) -> None:
    assert made(bias, activation).keeps_zero_rows is expected


@given(st.tuples(st.integers(1, 20), st.integers(1, 20)).flatmap(lambda shape: layers(*shape)))
def test_keeps_zero_rows_says_what_becomes_of_zeros(layer: SparseLinear) -> None:
    zeros = np.zeros((1, layer.inputs), np.float32)
    output = layer.activation(zeros @ layer.weights.to_scipy().toarray() + layer.bias_vector())
    assert output.shape == layer.output_shape(zeros.shape)
    assert layer.keeps_zero_rows is not bool(output.any())


def test_from_scipy() -> None:
    layer = SparseLinear.from_scipy(sp.csr_matrix([[1.0, 0], [0, 1]]), -0.3, Tanh())
    assert isinstance(layer.weights, CSC)
    assert (layer.bias, layer.activation, layer.edges) == (-0.3, Tanh(), 2)
    assert SparseLinear.from_scipy(sp.eye_array(2)).activation == ReLU()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (CSR.from_scipy(sp.csr_array(np.eye(3))), r"a CSR; .* CSC"),
        (sp.csc_array(np.eye(3)), r"CSC .*SparseLinear.from_scipy"),
    ],
)
def test_weights_of_other_types_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SparseLinear(weights)
