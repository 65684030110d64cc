"""Precision float64: of all layers, hidden values and sums, on the CPU and on a GPU."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csc_array, csr_array

from sparsenn.engine import Session
from sparsenn.errors import MatrixError, UsageError
from sparsenn.layers import (
    Add,
    Concatenate,
    Conv2d,
    Flatten,
    Identity,
    Linear,
    MaxPool2d,
    Multiply,
    ReLU,
    Sigmoid,
    Softmax,
    SparseLinear,
    Tanh,
)
from sparsenn.network import Network, Node

WIDE = np.array([[1e10, 3], [-1e10, 2], [1, 5e-3]], np.float32)
"""Of rows of about equal numbers the first column leaves little of what it adds."""
NARROW = np.array([[1, -1], [1e-6, 2]], np.float32)
ROWS = np.array([[1, 1, 0.3], [0.1, 0.1, 7], [5, 5, 5], [0, 0, 1]], np.float32)


def exact(rows: np.ndarray) -> list[list[float]]:
    """The outputs of both layers, in fractions: ReLU between them."""

    def times(vector: list[Fraction], weights: np.ndarray) -> list[Fraction]:
        return [
            sum((x * Fraction(float(w)) for x, w in zip(vector, column, strict=True)), Fraction(0))
            for column in weights.T
        ]

    found = []
    for row in rows.tolist():
        hidden = [max(value, Fraction(0)) for value in times(list(map(Fraction, row)), WIDE)]
        found.append([float(value) for value in times(hidden, NARROW)])
    return found


def network(kind: str) -> Network:
    if kind == "dense":
        return Network((Linear(WIDE, None, ReLU()), Linear(NARROW, None, Identity())))
    layers = [SparseLinear.from_scipy(csc_array(WIDE), None, ReLU())]
    if kind == "mixed":
        return Network((*layers, Linear(NARROW, None, Identity())))
    return Network((*layers, SparseLinear.from_scipy(csc_array(NARROW), None, Identity())))


@pytest.fixture(params=["auto", "cpu", "reference", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where to compute."""
    return str(request.param)


@pytest.mark.parametrize("kind", ["dense", "sparse", "mixed"])
def test_digits_that_float32_loses(kind: str, device: str) -> None:
    session = Session(network(kind), device=device, precision="float64")
    outputs = session(ROWS)
    assert outputs.dtype == np.float64
    np.testing.assert_allclose(outputs, exact(ROWS), rtol=1e-5)
    plan = session.plan(ROWS)
    assert plan.precisions == ("float64", "float64")
    assert "multiplied in float64: 1–2" in str(plan)
    assert plan.to_dict()["precision"] == "float64"
    wrong = Session(network(kind), device="cpu")(ROWS)
    assert not np.allclose(wrong, exact(ROWS), rtol=1e-2)


def test_images() -> None:
    weights = np.array([1e10, -1e10, 1], np.float32).reshape(1, 1, 1, 3)
    found = Session(Network((Conv2d(weights), Flatten()), image=(1, 1, 3)), device="cpu", precision="float64")
    np.testing.assert_allclose(found(ROWS), np.float64(ROWS[:, 2:]), rtol=1e-5)


ACTIVATIONS = (ReLU(), ReLU(1.5), Sigmoid(), Tanh(), Identity())


def layers(rng: np.random.Generator) -> tuple[Any, ...]:
    """Sparse and dense layers of all activations, some empty columns among them, and shares of one in the end."""
    found: list[Any] = []
    for number, activation in enumerate(ACTIVATIONS):
        weights = rng.standard_normal((20 + number, 21 + number)) * (rng.random((20 + number, 21 + number)) < 0.2)
        bias = rng.standard_normal(21 + number)
        found.append(SparseLinear.from_scipy(csc_array(weights), bias, activation))
    found += [Linear(rng.standard_normal((25, 25)), rng.standard_normal(25), activation) for activation in ACTIVATIONS]
    return (*found, SparseLinear.from_scipy(csc_array((25, 25)), 0.5, ReLU()), Flatten(), Softmax())


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("count", [0, 1, 37])
def test_all_activations(device: str, form: str, count: int, rng: np.random.Generator) -> None:
    network = Network(layers(rng))
    rows = rng.standard_normal((count, 20)) * (rng.random((count, 20)) < 0.5)
    given = rows if form == "dense" else csr_array(rows)
    want = Session(network, device="reference")(rows)
    for options in ({}, {"batch_size": 5}, {"weight_memory": 3000}, {"merging": True}):
        session = Session(network, device=device, precision="float64", **options)
        found = session(given, form="dense")
        np.testing.assert_allclose(found, want, rtol=1e-12)
        result = session.run(given)
        np.testing.assert_allclose(result.outputs.to_scipy().toarray(), want, rtol=1e-12)
        assert result.categories.size == count
        assert all(layer.rows == count for layer in result.statistics if layer.rows is not None) or device != "cuda"
    back = Session(network, device=device, precision="float64")(given, form="csr")
    np.testing.assert_allclose((back.to_scipy() if hasattr(back, "to_scipy") else back).toarray(), want, rtol=1e-12)


@pytest.mark.parametrize("activation", [Identity(), Sigmoid()], ids=str)
@pytest.mark.parametrize("combined", [Add, Multiply, Concatenate])
def test_combined_layers(device: str, combined: Any, activation: Any, rng: np.random.Generator) -> None:
    layer = combined() if combined is Concatenate else combined(activation)
    one, other = (Linear(rng.standard_normal((20, 8)), None, Identity()) for _ in range(2))
    network = Network((one, Node(other, (0,)), Node(layer, (1, 2))))
    rows = rng.standard_normal((9, 20))
    found = Session(network, device=device, precision="float64")(rows)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, Session(network, device="reference")(rows), rtol=1e-12)


def test_rows_of_zeros_and_equal_rows(device: str) -> None:
    rows = np.zeros((6, 3))
    rows[1] = rows[4] = [0.25, 0.5, 1]
    result = Session(network("sparse"), device=device, precision="float64").run(rows)
    np.testing.assert_allclose(result.outputs.to_scipy().toarray(), exact(rows), rtol=1e-12)
    assert list(result.categories) == [1, 4]


def test_rows_that_break_their_format(device: str) -> None:
    session = Session(network("sparse"), device=device, precision="float64")
    broken = csr_array((np.array([1.0, np.nan]), np.array([0, 1]), np.array([0, 1, 2])), shape=(2, 3))
    with pytest.raises(MatrixError):
        session(broken)
    unsorted = csr_array((np.array([1.0, 2.0]), np.array([2, 0]), np.array([0, 2])), shape=(1, 3))
    np.testing.assert_allclose(session(unsorted, form="dense"), exact(unsorted.toarray()), rtol=1e-12)


@pytest.mark.parametrize("layer", [Conv2d(np.ones((1, 1, 1, 3))), MaxPool2d(1)])
def test_images_stay_on_the_cpu(layer: Any) -> None:
    with pytest.raises(UsageError, match=f"GPUs do not compute {layer.name} in float64; use device cpu"):
        Session(Network((layer, Flatten()), image=(1, 1, 3)), device="cuda", precision="float64")


@pytest.mark.gpu
def test_rows_on_the_gpu(rng: np.random.Generator) -> None:
    cupy = pytest.importorskip("cupy")
    sparse = pytest.importorskip("cupyx.scipy.sparse")
    network = Network(layers(rng))
    rows = rng.standard_normal((9, 20)) * (rng.random((9, 20)) < 0.5)
    want = Session(network, device="reference")(rows)
    session = Session(network, device="cuda", precision="float64")
    found = session(cupy.asarray(rows))
    assert isinstance(found, cupy.ndarray)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found.get(), want, rtol=1e-12)
    found = session(sparse.csr_matrix(cupy.asarray(rows)))
    assert sparse.issparse(found)
    np.testing.assert_allclose(found.toarray().get(), want, rtol=1e-12)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"device": "abacus"}, "abacus does not compute in float64; use device cpu or cuda"),
        ({"machine": "h200"}, "a machine that is not here does not compute in float64"),
        ({"device": "cpu", "kernel": "panel"}, "panel"),
    ],
)
def test_what_is_refused(how: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Session(network("sparse"), precision="float64", **how)
