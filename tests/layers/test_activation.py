from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sparse_layers import csc

from sparsenn.errors import InputError, UsageError
from sparsenn.layers import (
    Activation,
    Add,
    Conv2d,
    Identity,
    Linear,
    Multiply,
    ReLU,
    Sigmoid,
    SparseLinear,
    Tanh,
    activation_named,
)


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


@pytest.mark.parametrize(
    ("name", "clip", "error", "message"),
    [
        *((name, 32.0, InputError, f"{name} takes no parameter") for name in ("identity", "sigmoid", "tanh")),
        ("relu", -1.0, InputError, r"clip of -1\.0"),
        (
            "sigmoyd",
            None,
            UsageError,
            r"'sigmoyd'; did you mean 'sigmoid'\? \(known: .*identity, .*none, relu, .*tanh\)",
        ),
    ],
)
def test_names_and_clips_that_are_none(name: str, clip: float | None, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        activation_named(name, clip)


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
    for make in (
        lambda: SparseLinear(csc(np.eye(2)), None, given),
        lambda: Linear(np.eye(2), None, given),
        lambda: Conv2d(np.ones((1, 1, 2, 2)), None, given),
        lambda: Add(given),
        lambda: Multiply(given),
    ):
        with pytest.raises(InputError, match=message):
            make()
