"""Networks of scikit-learn's multi-layer perceptrons, alone or at the end of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from sparsenn.errors import InputError, UsageError, prefix_errors
from sparsenn.formats import InputLayout
from sparsenn.io.rounding import check_rounding
from sparsenn.io.signal import Signal, inputs
from sparsenn.layers.activation_names import activation_elsewhere, names_elsewhere
from sparsenn.layers.sparse_or_dense import SPARSE_BELOW
from sparsenn.network import Network

__all__ = ["from_sklearn"]


def from_sklearn(estimator: Any, *, sparse_below: float = SPARSE_BELOW) -> Network:
    """Return a fitted estimator of scikit-learn as a network.

    Known are `MLPClassifier` and `MLPRegressor`, and a `Pipeline` of `StandardScaler`, `MinMaxScaler`, `MaxAbsScaler`
    and `RobustScaler` that ends with one of them: scalings become part of the first layer. The outputs are what the
    classifier's `predict_proba` gives (of two classes, the share of the second alone), or the regressor's `predict`.

    Parameters
    ----------
    estimator : object
        A fitted estimator or pipeline; it stays as it is.
    sparse_below : float, default 0.5
        A layer in which a smaller share of weights is not zero becomes sparse.

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
        The argument is not an estimator.
    """
    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        found = estimator.__name__ if isinstance(estimator, type) else type(estimator).__name__
        raise UsageError(f"{found} is not a fitted estimator of scikit-learn")
    steps = list(_steps("", estimator))
    signal = inputs(None, "fit the estimator", sparse_below)
    for number, (name, step) in enumerate(steps, start=1):
        kind = type(step).__name__
        with prefix_errors(f"{name} ({kind})" if name else kind):
            if kind in _SCALERS and number < len(steps):
                signal = _SCALERS[kind](signal, step)
            elif kind in ("MLPClassifier", "MLPRegressor") and number == len(steps):
                signal = _perceptron(signal, step)
            else:
                raise InputError(
                    "has no counterpart in sparsenn; known: MLPClassifier, MLPRegressor and, before them in a "
                    f"Pipeline, {', '.join(_SCALERS)}"
                )
    network = signal.network()
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None:
        network = replace(network, input_layout=InputLayout(names=tuple(map(str, names))))
    return check_rounding(network, signal.entering)


def _steps(name: str, estimator: Any) -> Iterator[tuple[str, Any]]:
    """Yield an estimator, or those that a pipeline applies one after the other, by their paths."""
    if type(estimator).__name__ != "Pipeline":
        yield name, estimator
        return
    for key, step in estimator.steps:
        if step is not None and not (isinstance(step, str) and step == "passthrough"):
            yield from _steps(f"{name}.{key}" if name else key, step)


def _perceptron(signal: Signal, estimator: Any) -> Signal:
    """Return what all layers of a perceptron make of a signal."""
    weights, biases = _fitted(estimator, "coefs_"), _fitted(estimator, "intercepts_")
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


def _fitted(estimator: Any, attribute: str) -> Any:
    """Return what an estimator has learned."""
    if not hasattr(estimator, attribute):
        raise InputError("is not fitted yet")
    return getattr(estimator, attribute)


def _standard(signal: Signal, scaler: Any) -> Signal:
    scale = _fitted(scaler, "scale_") if scaler.with_std else np.ones(_fitted(scaler, "n_features_in_"))
    return signal.scaled(1 / scale, -scaler.mean_ / scale if scaler.with_mean else 0.0)


def _robust(signal: Signal, scaler: Any) -> Signal:
    scale = _fitted(scaler, "scale_") if scaler.with_scaling else np.ones(_fitted(scaler, "n_features_in_"))
    return signal.scaled(1 / scale, -scaler.center_ / scale if scaler.with_centering else 0.0)


def _minimum_maximum(signal: Signal, scaler: Any) -> Signal:
    signal = signal.scaled(_fitted(scaler, "scale_"), scaler.min_)
    return signal.clipped(*map(float, scaler.feature_range)) if scaler.clip else signal


def _largest(signal: Signal, scaler: Any) -> Signal:
    signal = signal.scaled(1 / _fitted(scaler, "scale_"), 0.0)
    return signal.clipped(-1.0, 1.0) if getattr(scaler, "clip", False) else signal


_SCALERS: dict[str, Callable[[Signal, Any], Signal]] = {
    "StandardScaler": _standard,
    "MinMaxScaler": _minimum_maximum,
    "MaxAbsScaler": _largest,
    "RobustScaler": _robust,
}
"""What each kind of scaler makes of a signal."""
