"""Networks as estimators: scikit-learn's conventions, held against scikit-learn where it is there."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from sparsenn import Session, SparseClassifier, SparseRegressor
from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.layers import Identity, Linear, ReLU, Sigmoid, Softmax
from sparsenn.network import Network

ROWS = np.random.default_rng(8).normal(size=(50, 4)).astype(np.float32)
WEIGHTS = np.random.default_rng(9).normal(size=(4, 3)).astype(np.float32)
SCORES = ROWS @ WEIGHTS
WORDS = np.array(["adze", "bolt", "cleat"])


def ending(*layers: Any, outputs: int = 3, activation: Any = None) -> Network:
    return Network((Linear(WEIGHTS[:, :outputs], activation=activation or Identity()), *layers))


def softmax(scores: Any) -> Any:
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("network", [ending(), ending(Softmax())])
def test_probabilities_and_labels(network: Network) -> None:
    classifier = SparseClassifier(network, WORDS, device="cpu")
    np.testing.assert_allclose(classifier.predict_proba(ROWS), softmax(SCORES), atol=1e-6)
    np.testing.assert_array_equal(classifier.predict(ROWS), WORDS[SCORES.argmax(axis=1)])
    np.testing.assert_array_equal(classifier.classes_, WORDS)
    assert classifier.n_features_in_ == 4
    assert classifier.decision_function(ROWS).shape == (50, 3)
    assert classifier.score(ROWS, WORDS[SCORES.argmax(axis=1)]) == 1
    assert classifier.score(ROWS, WORDS[SCORES.argmax(axis=1), None]) == 1
    for labels in WORDS[:1], np.stack([WORDS[SCORES.argmax(axis=1)]] * 2, axis=1):
        with pytest.raises(ShapeError, match="labels have the shape"):
            classifier.score(ROWS, labels)
    assert classifier.score(ROWS[:4], ["x", *WORDS[SCORES.argmax(axis=1)][1:4]], [1, 0, 0, 1]) == 0.5


@pytest.mark.parametrize("activation", [Identity(), Sigmoid()])
def test_one_output_tells_two_classes_apart(activation: Any) -> None:
    classifier = SparseClassifier(ending(outputs=1, activation=activation), [False, True])
    probability = 1 / (1 + np.exp(-SCORES[:, 0]))
    np.testing.assert_allclose(classifier.predict_proba(ROWS), np.stack([1 - probability, probability], 1), atol=1e-6)
    np.testing.assert_array_equal(classifier.predict(ROWS), SCORES[:, 0] > 0)
    assert classifier.decision_function(ROWS).shape == (50,)


def test_classes_count_from_0() -> None:
    np.testing.assert_array_equal(SparseClassifier(ending()).classes_, [0, 1, 2])
    np.testing.assert_array_equal(SparseClassifier(ending(outputs=1)).classes_, [0, 1])


@pytest.mark.parametrize("network", [ending(activation=ReLU()), ending(activation=Sigmoid())])
def test_other_outputs_are_no_probabilities(network: Network) -> None:
    classifier = SparseClassifier(network)
    assert classifier.predict(ROWS).shape == (50,)
    with pytest.raises(UsageError, match="decision_function"):
        classifier.predict_proba(ROWS)


class Table:
    """As pandas gives one."""

    def to_numpy(self) -> Any:
        return ROWS


@pytest.mark.parametrize("rows", [csr_array(ROWS), ROWS.tolist(), ROWS.astype(np.float64), Table()], ids=type)
def test_rows_of_any_kind(rows: Any) -> None:
    np.testing.assert_array_equal(SparseClassifier(ending()).predict(rows), SCORES.argmax(axis=1))


@pytest.mark.parametrize(("outputs", "shape"), [(1, (50,)), (3, (50, 3))])
def test_regression(outputs: int, shape: tuple[int, ...]) -> None:
    regressor = SparseRegressor(ending(outputs=outputs), device="cpu")
    found = regressor.predict(ROWS)
    np.testing.assert_allclose(found, SCORES[:, :outputs].reshape(shape), rtol=1e-5, atol=1e-5)
    assert regressor.score(ROWS, found) == 1
    with pytest.raises(ShapeError, match=r"targets of shape \(50, 7\)"):
        regressor.score(ROWS, np.zeros((50, 7)))


def test_parameters() -> None:
    network = ending()
    classifier = SparseClassifier(network, WORDS, device="cpu", batch_size=7)
    assert classifier.get_params() == {"network": network, "classes": WORDS, "device": "cpu", "batch_size": 7}
    with pytest.warns(UserWarning, match=r"SparseClassifier\.fit trains nothing: it neither continues .* nor starts"):
        assert classifier.fit(ROWS, WORDS) is classifier
    assert classifier.set_params(classes=None, batch_size=9) is classifier
    assert classifier.get_params()["batch_size"] == 9
    np.testing.assert_array_equal(classifier.predict(ROWS), SCORES.argmax(axis=1))
    assert "SparseClassifier(Network(1 layer" in repr(classifier)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict(ROWS), classifier.predict(ROWS))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((ending(), ["a", "b"]), ShapeError, r"classes of shape \(2,\); the network has 3"),
        ((WEIGHTS,), UsageError, r"the network is an ndarray"),
    ],
)
def test_what_makes_no_classifier(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SparseClassifier(*arguments)
    with pytest.raises(UsageError, match="there is no option 'speed'"):
        SparseRegressor(ending(), speed=11)


class TestWithScikitLearn:
    """What scikit-learn does with its own estimators."""

    pytestmark = pytest.mark.filterwarnings("ignore:Stochastic Optimizer")

    @pytest.fixture(autouse=True)
    def _sklearn(self) -> None:
        pytest.importorskip("sklearn", reason="needs scikit-learn")

    def test_the_same_as_its_own(self) -> None:
        from sklearn.neural_network import MLPClassifier, MLPRegressor

        labels = WORDS[SCORES.argmax(axis=1)]
        for known in (labels, labels == "bolt"):
            model = MLPClassifier((9,), max_iter=50, random_state=1).fit(ROWS, known)
            classifier = SparseClassifier.from_sklearn(model, device="cpu")
            np.testing.assert_allclose(classifier.predict_proba(ROWS), model.predict_proba(ROWS), atol=1e-5)
            np.testing.assert_array_equal(classifier.predict(ROWS), model.predict(ROWS))
            np.testing.assert_array_equal(classifier.classes_, model.classes_)
            assert classifier.score(ROWS, known) == model.score(ROWS, known)
        for targets in (SCORES[:, 0], SCORES):
            model = MLPRegressor(hidden_layer_sizes=(9,), max_iter=50, random_state=1).fit(ROWS, targets)
            regressor = SparseRegressor.from_sklearn(model, device="cpu")
            np.testing.assert_allclose(regressor.predict(ROWS), model.predict(ROWS), rtol=1e-4, atol=1e-5)
            assert regressor.score(ROWS, targets) == pytest.approx(model.score(ROWS, targets), rel=1e-4)

    def test_several_labels_a_row_are_refused(self) -> None:
        from sklearn.neural_network import MLPClassifier, MLPRegressor

        for model in (
            MLPClassifier((3,), max_iter=5).fit(ROWS, SCORES > 0),
            MLPRegressor(hidden_layer_sizes=(3,), max_iter=5).fit(ROWS, SCORES),
        ):
            with pytest.raises(InputError, match="gives no class, or several, to a row"):
                SparseClassifier.from_sklearn(model)

    def test_in_its_tools(self) -> None:
        from sklearn.base import clone, is_classifier, is_regressor
        from sklearn.metrics import get_scorer
        from sklearn.model_selection import cross_val_score
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer
        from sklearn.utils.validation import check_is_fitted

        classifier, regressor = SparseClassifier(ending(), WORDS, device="cpu"), SparseRegressor(ending())
        labels = WORDS[SCORES.argmax(axis=1)]
        assert is_classifier(classifier)
        assert is_regressor(regressor)
        check_is_fitted(classifier)
        copied = clone(classifier)
        np.testing.assert_array_equal(copied.predict(ROWS), labels)
        with pytest.warns(UserWarning, match="fit trains nothing"):
            assert cross_val_score(classifier, ROWS, labels, cv=2).tolist() == [1, 1]
        pipeline = make_pipeline(FunctionTransformer(), classifier)
        with pytest.warns(UserWarning, match="fit trains nothing"):
            assert pipeline.fit(ROWS, labels).score(ROWS, labels) == 1
        assert get_scorer("neg_log_loss")(classifier, ROWS, labels) < 0


@pytest.fixture
def named() -> Any:
    """A pipeline that was fitted on a table, and the table."""
    pandas = pytest.importorskip("pandas")
    neural, pipeline = pytest.importorskip("sklearn.neural_network"), pytest.importorskip("sklearn.pipeline")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    rng = np.random.default_rng(3)
    table = pandas.DataFrame({name: rng.random(40) * 10**place for place, name in enumerate("abc")})
    mlp = neural.MLPClassifier((5,), max_iter=20, random_state=0)
    fitted = pipeline.make_pipeline(preprocessing.StandardScaler(), mlp)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fitted.fit(table, (table["a"] > 0.5).astype(int)), table


def test_names_of_features_are_kept_and_checked(named: Any) -> None:
    pipeline, table = named
    classifier = SparseClassifier.from_sklearn(pipeline, device="cpu")
    assert classifier.feature_names_in_.tolist() == list("abc")
    assert classifier.predict(table).tolist() == pipeline.predict(table).tolist()
    others = {
        "unknown are 'z'; missing are 'b'": table.rename(columns={"b": "z"}),
        "unknown are 'd'$": table.assign(d=0.0),
        "missing are 'c'$": table[["a", "b"]],
        "there more than once are 'b'$": table[["a", "b", "c", "b"]],
    }
    session = Session(classifier.network, device="cpu")
    for message, other in others.items():
        with pytest.raises(ValueError, match=r"feature names|names"):
            pipeline.predict(other)
        for run in (classifier.predict, session, session.run, session.plan):
            with pytest.raises(InputError, match=message):
                run(other)
    for run in (classifier.decision_function, session):
        np.testing.assert_array_equal(run(table[["c", "a", "b"]]), run(table))
    numbered = table.set_axis(range(3), axis=1)
    for unnamed in (table.to_numpy(), table.to_numpy().tolist(), numbered):
        with pytest.warns(UserWarning, match="X does not have valid feature names") as warned:
            assert classifier.predict(unnamed).tolist() == pipeline.predict(table.to_numpy()).tolist()
        ours, theirs = (str(warning.message) for warning in warned)
        assert ours.replace("SparseClassifier", "StandardScaler") == theirs
        assert warned[0].filename == __file__


TABLES: dict[str, Any] = {
    "polars": lambda library, columns: library.DataFrame(columns),
    "pyarrow": lambda library, columns: library.table(columns),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_other_libraries_are_rows(name: str, named: Any) -> None:
    pipeline, table = named
    classifier = SparseClassifier.from_sklearn(pipeline, device="cpu")
    other = TABLES[name](pytest.importorskip(name), {key: table[key].to_numpy() for key in table})
    np.testing.assert_array_equal(classifier.predict_proba(other), classifier.predict_proba(table))
    moved = other.select(["b", "a", "c"])
    np.testing.assert_array_equal(classifier.predict_proba(moved), classifier.predict_proba(table))


def test_tables_need_numbers_and_no_names(named: Any) -> None:
    pipeline, table = named
    classifier = SparseClassifier.from_sklearn(pipeline, device="cpu")
    with pytest.raises(InputError, match="does not hold numbers alone"):
        classifier.predict(table.assign(a="text"))
    plain = SparseClassifier(Network(classifier.network.layers), device="cpu")
    assert not hasattr(plain, "feature_names_in_")
    with pytest.warns(UserWarning, match="X has feature names, but SparseClassifier was fitted without feature names"):
        assert len(plain.predict(table[["c", "a", "b"]])) == len(table)
