"""Transformers of scikit-learn as operations on a signal.

They are scalings, projections, codes of categories, and selected columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csc_array

from sparsenn.errors import InputError, prefix_errors
from sparsenn.formats import Array
from sparsenn.io.importers.axes import take
from sparsenn.io.importers.combinations import concatenated
from sparsenn.io.importers.signal import Signal
from sparsenn.layers import ReLU

_LARGEST_CATEGORY = 1 << 20
"""Largest category: up to this integer, float32 distinguishes integers and the halves between them."""


class _Scaling(NamedTuple):
    """x · factor + addend, column by column, and the bounds that the result is clipped to."""

    factor: Array
    addend: Array
    bounds: tuple[float, float] | None = None

    def after(self, signal: Signal) -> Signal:
        scaled = signal.scaled(self.factor, self.addend)
        return scaled if self.bounds is None else scaled.clipped(*self.bounds)

    def relative_to(self, factor: Array, addend: Array) -> _Scaling:
        """Return it for columns that were multiplied and moved before."""
        remaining = self.factor / factor
        return self._replace(factor=remaining, addend=self.addend - addend * remaining)


def steps_of(name: str, estimator: Any) -> Iterator[tuple[str, Any]]:
    """Yield an estimator, or those that a pipeline applies one after the other, by their paths."""
    if type(estimator).__name__ != "Pipeline":
        yield name, estimator
        return
    for key, step in estimator.steps:
        if step is not None and not (isinstance(step, str) and step == "passthrough"):
            yield from steps_of(f"{name}.{key}" if name else key, step)


def fitted(estimator: Any, attribute: str) -> Any:
    """Return what an estimator has learned."""
    if not hasattr(estimator, attribute):
        raise InputError("is not fitted yet")
    return getattr(estimator, attribute)


def transformed(signal: Signal, transformer: Any) -> Signal:
    """Return what a fitted transformer makes of rows."""
    kind = type(transformer).__name__
    if kind in _SCALERS:
        return _SCALERS[kind](transformer).after(signal)
    if kind not in _OTHERS:
        known = ", ".join((*_SCALERS, *(each for each in _OTHERS if each not in _LIMITED)))
        raise InputError(f'has no counterpart in sparsenn; known before a perceptron: {known}; others through="onnx"')
    return _OTHERS[kind](signal, transformer)


def _centring(scaler: Any, divides: bool, centre: str | None) -> _Scaling:
    scale = fitted(scaler, "scale_") if divides else np.ones(fitted(scaler, "n_features_in_"))
    return _Scaling(1 / scale, np.zeros(len(scale)) if centre is None else -fitted(scaler, centre) / scale)


def _minimum_maximum(scaler: Any) -> _Scaling:
    least, most = map(float, scaler.feature_range)
    return _Scaling(fitted(scaler, "scale_"), scaler.min_, (least, most) if scaler.clip else None)


def _largest(scaler: Any) -> _Scaling:
    scale = fitted(scaler, "scale_")
    return _Scaling(1 / scale, np.zeros(len(scale)), (-1.0, 1.0) if getattr(scaler, "clip", False) else None)


_SCALERS: dict[str, Callable[[Any], _Scaling]] = {
    "StandardScaler": lambda scaler: _centring(scaler, scaler.with_std, "mean_" if scaler.with_mean else None),
    "MinMaxScaler": _minimum_maximum,
    "MaxAbsScaler": _largest,
    "RobustScaler": lambda scaler: _centring(scaler, scaler.with_scaling, "center_" if scaler.with_centering else None),
}
"""The scaling of each kind of scaler."""


def _projected(signal: Signal, pca: Any) -> Signal:
    components = fitted(pca, "components_")
    signal = signal.scaled(np.ones(components.shape[1]), -pca.mean_).product(components.T, components.shape[:1])
    if not pca.whiten:
        return signal
    spread = np.sqrt(pca.explained_variance_)
    return signal.times(1 / np.maximum(spread, np.finfo(spread.dtype).eps))


def _one_hot(signal: Signal, encoder: Any) -> Signal:
    """Return 1 for each category that is there, else 0: what two ReLUs make of distances of integers."""
    if encoder.min_frequency is not None or encoder.max_categories is not None:
        raise InputError("puts rare categories together, which has no counterpart in sparsenn")
    categories = fitted(encoder, "categories_")
    dropped = encoder.drop_idx_ if encoder.drop_idx_ is not None else [None] * len(categories)
    columns, values = [], []
    for column, (each, left_out) in enumerate(zip(categories, dropped, strict=True)):
        if each.dtype.kind not in "biuf" or np.any(each != np.rint(each)) or np.abs(each).max() > _LARGEST_CATEGORY:
            raise InputError(
                f"has categories that are no integers up to {_LARGEST_CATEGORY:,}, such as {each[0]!r}; encode them as "
                "integers before"
            )
        chosen = [float(value) for place, value in enumerate(each) if place != left_out]
        columns += [column] * len(chosen)
        values += chosen
    count = len(values)
    if not count:
        raise InputError("gives no column")
    pairs, signs = np.repeat(columns, 2), np.tile([1.0, -1.0], count)
    differences = csc_array((signs, (pairs, np.arange(2 * count))), shape=(len(categories), 2 * count))
    distances = signal.product(differences, (2 * count,)).plus(-signs * np.repeat(values, 2)).activated(ReLU())
    halves = csc_array((np.full(2 * count, -2.0), (np.arange(2 * count), np.repeat(np.arange(count), 2))))
    return distances.product(halves, (count,)).plus(1.0).activated(ReLU())


def _unchanged(signal: Signal, transformer: Any) -> Signal:
    if transformer.func is not None:
        raise InputError("calls a function, which has no counterpart in sparsenn; give a pipeline without it")
    return signal


def _imputed(signal: Signal, imputer: Any) -> Signal:
    raise InputError(
        "fills in missing numbers, which rows of a session cannot have: fill them in before, and give a pipeline "
        'without it; or from_sklearn(estimator, through="onnx")'
    )


def _by_columns(signal: Signal, transformer: Any) -> Signal:
    """Return what a `ColumnTransformer` makes of rows: one product, where all of it is affine.

    What scalers do first is done to whole rows, so that columns far from zero keep their digits.
    """
    width, names = fitted(transformer, "n_features_in_"), getattr(transformer, "feature_names_in_", None)
    signal = signal if signal.width else replace(signal, shape=(width,))
    weights = transformer.transformer_weights or {}
    parts = []
    for name, each, columns in fitted(transformer, "transformers_"):
        made = transformer.output_indices_[name]
        if made.stop > made.start:  # not so of dropped columns, and of one whose only category an encoder drops
            places = _places(columns, width, names)
            is_same = isinstance(each, str) and each == "passthrough"
            parts.append((name, [] if is_same else list(steps_of(name, each)), places))
    factor, addend, scaled = np.ones(width), np.zeros(width), np.zeros(width, bool)
    for _, steps, places in parts:
        scaling = _first_scaling(steps)
        if scaling is not None and not scaled[places].any() and np.unique(places).size == places.size:
            factor[places], addend[places], scaled[places] = scaling.factor, scaling.addend, True
    signal = signal.scaled(factor, addend).centred()
    results = []
    for name, steps, places in parts:
        scaling, columns = _first_scaling(steps), take(signal, 1, places)
        nothing = _Scaling(np.ones(places.size), np.zeros(places.size))
        result = (scaling or nothing).relative_to(factor[places], addend[places]).after(columns)
        for path, step in steps[scaling is not None :]:
            with prefix_errors(f"{path} ({type(step).__name__})"):
                result = transformed(result, step)
        results.append(result.times(float(weights.get(name, 1.0))))
    if not results:
        raise InputError("gives no column")
    return concatenated(results) if len(results) > 1 else results[0]


def _first_scaling(steps: Sequence[tuple[str, Any]]) -> _Scaling | None:
    """Return what the first of some steps does, if that is a scaler."""
    if not steps or type(steps[0][1]).__name__ not in _SCALERS:
        return None
    path, scaler = steps[0]
    with prefix_errors(f"{path} ({type(scaler).__name__})"):
        return _SCALERS[type(scaler).__name__](scaler)


def _places(columns: Any, width: int, names: Any) -> Array:
    """Return the places of columns, which are given by places, names, a slice of either, or truth values."""
    known = {} if names is None else {name: place for place, name in enumerate(names)}
    if isinstance(columns, slice):
        ends = (columns.start, columns.stop)
        if any(isinstance(end, str) for end in ends):  # as in pandas, the last one included
            first, last = (None if end is None else known[end] for end in ends)
            columns = slice(first, None if last is None else last + 1, columns.step)
        chosen: Array = np.arange(width)[columns]
        return chosen
    listed = np.atleast_1d(np.asarray(columns))
    if listed.dtype.kind in "OUT":
        return np.array([known[name] if isinstance(name, str) else int(name) for name in listed], np.int64)
    return np.flatnonzero(listed) if listed.dtype.kind == "b" else np.arange(width)[listed.astype(np.int64)]


_OTHERS: dict[str, Callable[[Signal, Any], Signal]] = {
    "PCA": _projected,
    "ColumnTransformer": _by_columns,
    "OneHotEncoder": _one_hot,
    "FunctionTransformer": _unchanged,
    "SimpleImputer": _imputed,
}
"""Functions that apply transformers other than scalers to a signal, by class name."""

_LIMITED = ("FunctionTransformer", "SimpleImputer")
"""Transformers that messages do not list as known."""
