"""Precision float64: of all layers, hidden values and sums, on the CPU; refused elsewhere."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.sparse import csc_array

from sparsenn.engine import Session
from sparsenn.errors import UsageError
from sparsenn.layers import Conv2d, Flatten, Identity, Linear, ReLU, SparseLinear
from sparsenn.network import Network

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


@pytest.mark.parametrize("kind", ["dense", "sparse", "mixed"])
@pytest.mark.parametrize("device", ["auto", "cpu", "reference"])
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


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"device": "cuda"}, "cuda does not compute in float64, which the CPU alone does; take device cpu"),
        ({"machine": "h200"}, "a machine that is not here does not compute in float64"),
        ({"device": "cpu", "kernel": "panel"}, "panel"),
    ],
)
def test_what_is_refused(how: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Session(network("sparse"), precision="float64", **how)
