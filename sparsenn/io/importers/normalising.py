"""Normalisations of signals of other programs' models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from sparsenn.errors import InputError, ShapeError
from sparsenn.io.importers.signal import Signal
from sparsenn.layers import LayerNorm


def normalise_by(signal: Signal, mean: Any, variance: Any, epsilon: float, scale: Any, shift: Any) -> Signal:
    """Return a signal whose channels, or features, are normalised by running means and variances.

    epsilon : what is added to variances.
    scale, shift : one for each channel; None for ones and zeros.
    """
    spread = np.asarray(variance, np.float64) + epsilon
    if not ((spread > 0) & np.isfinite(spread)).all():
        raise InputError("a running variance is not above zero, or not finite")
    factor = (1.0 if scale is None else scale) / np.sqrt(spread)
    return signal.scaled(factor, (0.0 if shift is None else shift) - np.asarray(mean, np.float64) * factor)


def normalise(signal: Signal, sizes: Sequence[int], scale: Any, shift: Any, epsilon: float) -> Signal:
    """Return a signal whose numbers along its last axes are normalised together.

    sizes : of these axes.
    scale, shift : of a shape that is broadcast to these axes; None for ones and zeros.
    epsilon : what is added to variances.
    """
    sizes = tuple(sizes)
    signal = signal if signal.width else replace(signal, shape=sizes)
    first = len(signal.shape) - len(sizes)
    if not sizes or signal.shape[max(0, first) :] != sizes or (signal.axis is not None and signal.axis > first):
        raise ShapeError(f"normalises the last axes, of sizes {sizes}; the input is {signal}")
    factors = _broadcast("scale", 1.0 if scale is None else scale, sizes)
    addends = _broadcast("shift", 0.0 if shift is None else shift, sizes)
    signal = signal.in_order().flushed()
    signal = signal.flat() if signal.lies is None else signal
    return signal.then(LayerNorm(factors, addends, epsilon, prod(signal.shape[:first])))


def _broadcast(what: str, numbers: Any, sizes: tuple[int, ...]) -> Any:
    try:
        return np.broadcast_to(numbers, sizes).reshape(-1)
    except ValueError as error:
        raise ShapeError(
            f"the {what} has shape {np.shape(numbers)}; one that is broadcast to {sizes} is needed"
        ) from error
