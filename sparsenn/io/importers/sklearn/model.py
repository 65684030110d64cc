"""Networks of scikit-learn's multi-layer perceptrons, alone or at the end of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sparsenn.errors import InputError, UsageError, prefix_errors
from sparsenn.formats import InputLayout
from sparsenn.io.importers.rounding import check_rounding
from sparsenn.io.importers.signal import Signal, inputs
from sparsenn.io.importers.sklearn.transformers import fitted, steps_of, transformed
from sparsenn.layers.activation_names import activation_elsewhere, names_elsewhere
from sparsenn.layers.sparse_or_dense import SPARSE_BELOW
from sparsenn.network import Network


def from_sklearn(estimator: Any, *, sparse_below: float = SPARSE_BELOW, through: str | None = None) -> Network:
    """Return a fitted estimator of scikit-learn as a network.

    Known are `MLPClassifier` and `MLPRegressor`, and a `Pipeline` that ends with one of them, of `StandardScaler`,
    `MinMaxScaler`, `MaxAbsScaler`, `RobustScaler`, `PCA`, `OneHotEncoder` of integers, and `ColumnTransformer` of these
    and of pipelines of them. Scalings become part of the first layer; projections and columns that are chosen, a layer
    before it. An integer that is no category of an encoder has the code of none.

    Parameters
    ----------
    estimator : object
        A fitted estimator or pipeline; it stays as it is.
    sparse_below : float, default 0.5
        A layer in which a smaller share of weights is not zero becomes sparse.
    through : {"onnx"}, optional
        Have the package skl2onnx make an ONNX graph of any estimator, and read that as `from_onnx` does: what has no
        layer here, ONNX Runtime computes. Outputs are then the probabilities of all classes.

    Returns
    -------
    Network
        One that gives what the classifier's `predict_proba` gives (of two classes, the share of the second alone), or
        the regressor's `predict`. It keeps the names of features, if the estimator was fitted with them.

    Raises
    ------
    InputError
        The estimator, or a step of the pipeline, is of another kind, or not fitted; the message names it.
    UsageError
        The argument is not an estimator; there is no other format of that name, or skl2onnx is not installed.
    """
    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        found = estimator.__name__ if isinstance(estimator, type) else type(estimator).__name__
        raise UsageError(f"{found} is not a fitted estimator of scikit-learn")
    if through is not None:
        if through != "onnx":
            raise UsageError(f'through is {through!r}; give "onnx"')
        from sparsenn.io.importers.sklearn.through_onnx import network_through_onnx

        return network_through_onnx(estimator, sparse_below)
    steps = list(steps_of("", estimator))
    signal = inputs(None, "fit the estimator", sparse_below)
    for number, (name, step) in enumerate(steps, start=1):
        kind = type(step).__name__
        with prefix_errors(f"{name} ({kind})" if name else kind):
            if number < len(steps):
                signal = transformed(signal, step)
            elif kind in ("MLPClassifier", "MLPRegressor"):
                signal = _perceptron(signal, step)
            else:
                raise InputError(
                    "has no counterpart in sparsenn; known: MLPClassifier and MLPRegressor, at the end of a Pipeline; "
                    'others through="onnx"'
                )
    network = signal.network()
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None:
        network = replace(network, input_layout=InputLayout(names=tuple(map(str, names))))
    return check_rounding(network, signal.entering)


def _perceptron(signal: Signal, estimator: Any) -> Signal:
    weights, biases = fitted(estimator, "coefs_"), fitted(estimator, "intercepts_")
    hidden, known = activation_elsewhere("sklearn", estimator.activation), ", ".join(names_elsewhere("sklearn"))
    if hidden is None:
        raise InputError(f"has the activation {estimator.activation!r}; known: {known}")
    for number, (matrix, bias) in enumerate(zip(weights, biases, strict=True), start=1):
        last = number == len(weights)
        activation = activation_elsewhere("sklearn", estimator.out_activation_) if last else hidden
        with prefix_errors(f"layer {number}"):
            signal = signal.connected(matrix, bias)
            if activation is not None:
                signal = signal.activated(activation)
            elif estimator.out_activation_ == "softmax":
                signal = signal.softmax()
            else:
                raise InputError(f"gives {estimator.out_activation_!r} of its sums; known: softmax, {known}")
    return signal
