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

from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)

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
        (make_pipeline(PCA(), MLPClassifier()), InputError, r"pca \(PCA\): is not fitted yet"),
        (make_pipeline(PowerTransformer(), MLPClassifier()), InputError, r"\(PowerTransformer\): has no counter.*PCA"),
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


TABLE = np.column_stack([ROWS, np.random.default_rng(4).integers(0, 4, 60), np.tile([2.0, 5.0, 11.0], 20)])
"""Four columns of numbers, one of them far from zero, and two of categories."""

TABLE[:, 3] += 1e4
TABLE = TABLE.astype(np.float32).astype(np.float64)
NEAR = TABLE - TABLE.mean(axis=0)


def regressor(neurons: int = 5, epochs: int = 9) -> MLPRegressor:
    return MLPRegressor(hidden_layer_sizes=(neurons,), max_iter=epochs, random_state=1)


TRANSFORMERS = {
    "projection": make_pipeline(StandardScaler(), PCA(3)),
    "projection first": PCA(5),
    "whitened": make_pipeline(StandardScaler(), PCA(whiten=True), StandardScaler()),
    "scalers by columns": make_column_transformer((StandardScaler(), [3, 0]), (RobustScaler(), [1]), remainder="drop"),
    "rest unchanged": make_column_transformer(
        (StandardScaler(), [3]), (MaxAbsScaler(), [1, 5]), remainder="passthrough"
    ),
    "rest scaled": make_column_transformer((StandardScaler(), [-1, 0]), remainder=StandardScaler()),
    "columns twice": make_column_transformer((StandardScaler(), [0, 3]), (MinMaxScaler(), [3, 1])),
    "columns by truth": make_column_transformer(
        (StandardScaler(), [True, False, False, True, False, False]), ("passthrough", [1]), ("drop", [2])
    ),
    "weighted": ColumnTransformer(
        [("a", StandardScaler(), [0, 3]), ("b", StandardScaler(), [1])], transformer_weights={"a": 2.0, "b": 0.5}
    ),
    "clipped": make_column_transformer(
        (StandardScaler(), [0, 3]), ("passthrough", [2]), (MinMaxScaler(clip=True), slice(1, 2))
    ),
    "inner pipelines": make_column_transformer(
        (make_pipeline(StandardScaler(), PCA(2)), [0, 1, 3]), (make_pipeline("passthrough", StandardScaler()), [2])
    ),
    "transformers of transformers": make_column_transformer(
        (make_pipeline(StandardScaler(), make_column_transformer((PCA(1), [0, 1]), ("passthrough", [2]))), [0, 1, 3])
    ),
    "categories": make_column_transformer((OneHotEncoder(), [4, 5]), (StandardScaler(), [0, 3])),
    "categories but the first": make_column_transformer(
        (OneHotEncoder(drop="first", sparse_output=False), [5, 4]), (FunctionTransformer(), [2])
    ),
    "categories, then projected": make_pipeline(
        make_column_transformer((OneHotEncoder(sparse_output=False), [4]), (StandardScaler(), [1, 3])), PCA(4)
    ),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_regressors_after_transformers(name: str, device: str) -> None:
    pipeline = make_pipeline(clone(TRANSFORMERS[name]), regressor(9, 60))
    pipeline.fit(TABLE, (ROWS[:, 0] - 5) + TABLE[:, 4] / 4)
    found = Session(from_sklearn(pipeline), device=device, precision="float32")(TABLE)[:, 0]
    np.testing.assert_allclose(found, pipeline.predict(TABLE), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "chosen", [["b", "d"], "b", slice("b", "d"), lambda table: ["d"]], ids=["names", "name", "slice", "function"]
)
def test_columns_of_tables_by_their_names(chosen: Any) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(TABLE, columns=list("abcdef"))
    columns = make_column_transformer((StandardScaler(), [chosen] if isinstance(chosen, str) else chosen))
    pipeline = make_pipeline(columns, regressor()).fit(table, ROWS[:, 0])
    session = Session(from_sklearn(pipeline), device="cpu", precision="float32")
    found = session(table[list("fedcba")])
    np.testing.assert_allclose(found[:, 0], pipeline.predict(table), rtol=1e-5, atol=1e-5)


def test_affine_columns_are_one_layer_before_the_perceptron() -> None:
    pipeline = make_pipeline(TRANSFORMERS["rest unchanged"], regressor(9, 9))
    pipeline.fit(NEAR, ROWS[:, 0])
    assert [type(layer) for layer in from_sklearn(pipeline)] == [SparseLinear, Linear, Linear]


def test_integers_that_are_no_category_have_no_code() -> None:
    encoder = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), [4, 5]), (StandardScaler(), [0]))
    pipeline = make_pipeline(encoder, regressor()).fit(TABLE, ROWS[:, 0])
    rows = TABLE.copy()
    rows[::2, 4], rows[::3, 5] = 17, -1
    found = Session(from_sklearn(pipeline), device="cpu")(rows)[:, 0]
    np.testing.assert_allclose(found, pipeline.predict(rows), rtol=1e-5, atol=1e-5)


def test_a_column_whose_only_category_is_dropped_gives_nothing() -> None:
    table = np.column_stack([np.full(60, 3.0), NEAR[:, 0]])
    columns = make_column_transformer((OneHotEncoder(drop="first", sparse_output=False), [0]), ("passthrough", [1]))
    pipeline = make_pipeline(columns, regressor()).fit(table, ROWS[:, 0])
    found = Session(from_sklearn(pipeline), device="cpu")(table)[:, 0]
    np.testing.assert_allclose(found, pipeline.predict(table), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("transformer", "message"),
    [
        (make_column_transformer((OneHotEncoder(), [0])), r"columntransformer .*onehotencoder .* no integers up to"),
        (make_column_transformer((OneHotEncoder(max_categories=2), [4])), "puts rare categories together"),
        (make_column_transformer((SimpleImputer(), [0])), r"\(SimpleImputer\): fills in missing numbers"),
        (make_column_transformer((PowerTransformer(), [0])), r"\(PowerTransformer\): has no counterpart"),
        (make_pipeline(SimpleImputer()), r"\(SimpleImputer\): fills in missing numbers.*through"),
        (FunctionTransformer(np.abs), "calls a function"),
    ],
    ids=str,
)
def test_transformers_that_are_refused(transformer: Any, message: str) -> None:
    pipeline = make_pipeline(transformer, regressor()).fit(TABLE, ROWS[:, 0])
    with pytest.raises(InputError, match=message):
        from_sklearn(pipeline)


@pytest.mark.parametrize("labels", [CLASSES, (CLASSES == "bolt").astype(int)], ids=["texts", "integers"])
def test_other_estimators_through_onnx(labels: np.ndarray) -> None:
    pytest.importorskip("skl2onnx")
    imputed = make_column_transformer((SimpleImputer(), [0, 2]), (OneHotEncoder(), [4]))
    for classifier in (LogisticRegression(), MLPClassifier((5,), max_iter=20, random_state=1)):
        pipeline = make_pipeline(imputed, classifier).fit(TABLE, labels)
        found = Session(from_sklearn(pipeline, through="onnx"), device="cpu")(TABLE.astype(np.float32))
        np.testing.assert_allclose(found, pipeline.predict_proba(TABLE), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("steps", [("columns", "scaled"), ("scaled",), ()])
def test_tables_through_onnx(steps: tuple[str, ...]) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("skl2onnx")
    table = pandas.DataFrame(TABLE[:, :4], columns=list("abcd"))
    before = {"columns": make_column_transformer((PowerTransformer(), ["a", "c"])), "scaled": StandardScaler()}
    estimator: Any = LogisticRegression()
    if steps:
        estimator = make_pipeline(*map(before.get, steps), estimator)
    estimator.fit(table, (CLASSES == "bolt").astype(int))
    session = Session(from_sklearn(estimator, through="onnx"), device="cpu")
    for columns in list("abcd"), list("dbca"):
        np.testing.assert_allclose(session(table[columns]), estimator.predict_proba(table), rtol=1e-4, atol=1e-4)
