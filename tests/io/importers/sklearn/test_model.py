"""scikit-learn's perceptrons and pipelines give what they give there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsenn.engine import Session
from sparsenn.errors import InputError, SparseNNError, UsageError
from sparsenn.io import from_sklearn
from sparsenn.layers import Linear, SparseLinear

pytest.importorskip("sklearn", reason="needs scikit-learn")

from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

pytestmark = pytest.mark.filterwarnings("ignore:Stochastic Optimizer")

ROWS = np.random.default_rng(3).normal([5, -3, 0, 100], [1, 20, 0.1, 3], size=(60, 4))
WORDS = np.array(["adze", "bolt", "cleat"])
CLASSES = WORDS[np.digitize(ROWS[:, 0], [4.5, 5.5])]


def outputs(estimator: Any, device: str = "reference") -> np.ndarray:
    return Session(from_sklearn(estimator), device=device)(ROWS)


@pytest.mark.parametrize("activation", ["identity", "logistic", "tanh", "relu"])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_classifiers_of_several_classes(activation: str, device: str) -> None:
    estimator = MLPClassifier((7, 5), activation=activation, max_iter=20, random_state=1).fit(ROWS, CLASSES)
    np.testing.assert_allclose(outputs(estimator, device), estimator.predict_proba(ROWS), atol=2e-5)


def test_classifiers_of_two_classes() -> None:
    estimator = MLPClassifier((7,), max_iter=20, random_state=1).fit(ROWS, CLASSES == "bolt")
    np.testing.assert_allclose(outputs(estimator), estimator.predict_proba(ROWS)[:, 1:], atol=2e-5)


def test_regressors_of_several_targets() -> None:
    estimator = MLPRegressor(hidden_layer_sizes=(7,), max_iter=20, random_state=1).fit(ROWS, ROWS[:, :2])
    np.testing.assert_allclose(outputs(estimator), estimator.predict(ROWS), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "scaler",
    [
        StandardScaler(),
        StandardScaler(with_mean=False),
        StandardScaler(with_std=False),
        MinMaxScaler((-1, 3)),
        MaxAbsScaler(),
        RobustScaler(),
        RobustScaler(with_centering=False),
        RobustScaler(with_scaling=False),
    ],
    ids=str,
)
def test_scalings_become_part_of_the_first_layer(scaler: Any) -> None:
    pipeline = make_pipeline(scaler, "passthrough", MLPClassifier((6,), max_iter=20, random_state=1)).fit(ROWS, CLASSES)
    assert len(from_sklearn(pipeline)) == 3
    np.testing.assert_allclose(outputs(pipeline), pipeline.predict_proba(ROWS), atol=2e-5)


def test_scalings_that_clip_are_layers() -> None:
    inner = make_pipeline(
        MinMaxScaler((-2, 2), clip=True).fit(ROWS[::3]),
        MLPRegressor(hidden_layer_sizes=(6,), max_iter=20, random_state=1),
    )
    inner.steps[-1][1].fit(inner[0].transform(ROWS), ROWS[:, 0])
    assert [type(layer) for layer in from_sklearn(inner)] == [SparseLinear, Linear, Linear]
    np.testing.assert_allclose(outputs(inner)[:, 0], inner.predict(ROWS), rtol=1e-5, atol=1e-4)


def test_pruned_weights_become_sparse() -> None:
    estimator = MLPClassifier((20,), max_iter=5, random_state=1).fit(ROWS, CLASSES)
    for matrix in estimator.coefs_:
        matrix[np.abs(matrix) < np.quantile(np.abs(matrix), 0.8)] = 0
    assert [type(layer) for layer in from_sklearn(estimator)][:2] == [SparseLinear, SparseLinear]
    np.testing.assert_allclose(outputs(estimator), estimator.predict_proba(ROWS), atol=2e-5)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            LogisticRegression(),
            InputError,
            "LogisticRegression: has no counterpart in sparsenn; known: MLPClassifier",
        ),
        (make_pipeline(PCA(), MLPClassifier()), InputError, r"pca \(PCA\): has no counterpart"),
        (make_pipeline(StandardScaler()), InputError, r"standardscaler \(StandardScaler\): has no counterpart"),
        (MLPClassifier(), InputError, "MLPClassifier: is not fitted yet"),
        (make_pipeline(StandardScaler(), MLPClassifier()), InputError, r"standardscaler .* is not fitted yet"),
        (MLPClassifier, UsageError, "MLPClassifier is not a fitted estimator"),
        (3, UsageError, "int is not a fitted estimator"),
    ],
)
def test_what_is_refused(given: Any, error: type[SparseNNError], message: str) -> None:
    with pytest.raises(error, match=message):
        from_sklearn(given)
