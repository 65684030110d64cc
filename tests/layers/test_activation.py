from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.errors import InputError, UsageError
from sparsenn.formats import CSC, from_dense
from sparsenn.layers import (
    Activation,
    Conv2d,
    Identity,
    Linear,
    ReLU,
    Sigmoid,
    SparseLinear,
    Tanh,
    activation_named,
)

ALL = [ReLU(), ReLU(clip=32.0), Sigmoid(), Tanh(), Identity()]
EXTREME = [0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0, 88.7, -88.7, 1000.0, -1000.0, 3.4e38, -3.4e38, math.inf, -math.inf]


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (ReLU(), lambda z: max(0.0, z)),
        (ReLU(clip=32.0), lambda z: min(32.0, max(0.0, z))),
        (ReLU(clip=0.5), lambda z: min(0.5, max(0.0, z))),
        (Sigmoid(), sigmoid),
        (Tanh(), math.tanh),
        (Identity(), lambda z: z),
    ],
)
@given(values=st.lists(st.floats(-500, 500), max_size=20))
def test_against_math(activation: Activation, expected: Any, values: list[float]) -> None:
    z = np.array(values)
    np.testing.assert_allclose(activation(z), [expected(value) for value in values], rtol=1e-12, atol=0)
    single = z.astype(np.float32)
    exact = np.array([expected(float(value)) for value in single])
    np.testing.assert_allclose(activation(single), exact, rtol=1e-6, atol=1e-44)


@pytest.mark.parametrize("activation", ALL, ids=str)
def test_shape_and_type_are_kept(activation: Activation) -> None:
    for shape, dtype in product([(), (0,), (0, 3), (5,), (2, 3), (2, 1, 4)], [np.float32, np.float64]):
        result = np.asarray(activation(np.full(shape, 0.25, dtype)))
        assert (result.shape, result.dtype) == (shape, dtype)


@pytest.mark.parametrize("activation", ALL, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_values_give_no_warning_and_no_nan(activation: Activation, dtype: type) -> None:
    z = np.array(EXTREME, dtype)
    result = activation(z)
    assert not np.isnan(result).any()
    if not isinstance(activation, Identity | ReLU) or (isinstance(activation, ReLU) and activation.clip):
        assert np.isfinite(result).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sigmoid_and_tanh_reach_their_limits(dtype: type) -> None:
    far = np.array([-1000.0, 0.0, 1000.0], dtype)
    assert Sigmoid()(far).tolist() == [0.0, 0.5, 1.0]
    assert Tanh()(far).tolist() == [-1.0, 0.0, 1.0]


def test_sigmoid_of_small_results_is_not_rounded_to_zero() -> None:
    np.testing.assert_allclose(Sigmoid()(np.array([-80.0], np.float32)), [math.exp(-80)], rtol=1e-5)
    np.testing.assert_allclose(Sigmoid()(np.array([-700.0])), [math.exp(-700)], rtol=1e-12)


@pytest.mark.parametrize("activation", ALL, ids=str)
def test_nan_stays_visible(activation: Activation) -> None:
    assert np.isnan(activation(np.array([np.nan, 1.0], np.float32))).tolist() == [True, False]


@pytest.mark.parametrize("activation", ALL, ids=str)
def test_the_argument_is_left_alone(activation: Activation) -> None:
    z = np.array([-40.0, 0.5, 40.0], np.float32)
    activation(z)
    assert z.tolist() == [-40.0, 0.5, 40.0]


@pytest.mark.parametrize("clip", [1, 32.0, 1e-30, np.float32(6), 3.4e38])
def test_clips_accepted(clip: float) -> None:
    assert float(ReLU(clip)(np.array([np.inf], np.float32))[0]) == np.float32(clip)


@pytest.mark.parametrize(
    "clip",
    [
        *(0, 0.0, -1.0, math.nan, math.inf, -math.inf, 3.5e38, 1e300, 10**400, 1e-50, 1e-40),
        *("1", b"1", 1j, [1], np.ones(2), True, np.True_, {}),
    ],
)
def test_clips_refused(clip: Any) -> None:
    with pytest.raises(InputError, match=r"^(a|the) .*(ReLU|clip).*( is not in |; give a finite number$)"):
        ReLU(clip)


@pytest.mark.parametrize(
    ("activation", "name", "words"),
    [
        (ReLU(), "relu", "relu"),
        (ReLU(clip=32.0), "relu", "relu clipped at 32"),
        (Sigmoid(), "sigmoid", "sigmoid"),
        (Tanh(), "tanh", "tanh"),
        (Identity(), "identity", "identity"),
    ],
)
def test_names(activation: Activation, name: str, words: str) -> None:
    assert (activation.name, str(activation)) == (name, words)
    assert activation_named(name, getattr(activation, "clip", None)) == activation


def test_equal_activations_are_equal() -> None:
    assert ReLU(32.0) == ReLU(clip=32)
    assert ReLU() != ReLU(32.0)
    assert len({ReLU(), ReLU(), Sigmoid(), Sigmoid(), Tanh()}) == 3


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"'sigmoyd'; did you mean 'sigmoid'\? \(known: .*identity, .*none, relu, .*tanh\)"
    ):
        activation_named("sigmoyd")


@pytest.mark.parametrize("name", ["identity", "sigmoid", "tanh"])
def test_activations_without_a_parameter_take_no_clip(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} takes no parameter"):
        activation_named(name, 32.0)


def test_a_wrong_clip_by_name() -> None:
    with pytest.raises(InputError, match=r"clip of -1\.0"):
        activation_named("relu", -1.0)


def test_none_is_another_name_of_identity() -> None:
    assert activation_named("none") == Identity()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("relu", r"the activation is 'relu'; take an object, such as sparsenn\.ReLU\(\)"),
        ("tanh", r"'tanh'; take an object, such as sparsenn\.Tanh\(\)"),
        ("", r"''; take an object"),
        (Sigmoid, r"Sigmoid.*; take an object, such as sparsenn\.Sigmoid\(\)"),
        (None, "None; take an object"),
        (np.tanh, "take an object"),
        (32, "32; take an object"),
        (["relu"], r"\['relu'\]; take an object"),
    ],
)
def test_layers_refuse_what_is_no_activation(given: Any, message: str) -> None:
    weights = CSC.from_scipy(from_dense(np.eye(2)).to_scipy())
    for make in (
        lambda: SparseLinear(weights, None, given),
        lambda: Linear(np.eye(2), None, given),
        lambda: Conv2d(np.ones((1, 1, 2, 2)), None, given),
    ):
        with pytest.raises(InputError, match=message):
            make()
