"""What Keras's operations make of signals and constants: `x - 0.5`, `keras.ops.relu(x)` and the like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparsenn.errors import InputError
from sparsenn.io.importers.combinations import combined, multiplied
from sparsenn.io.importers.keras.layers import applied, clipped, concatenated, leaked, relu, reshaped, softmax
from sparsenn.io.importers.keras.reading import OPERATION, Layer, Reading, constant, shown
from sparsenn.io.importers.signal import Signal
from sparsenn.layers import Activation, Add, ReLU, Sigmoid, Tanh

_TWO = ("x1", "x2")
"""Parameters of operations on two operands, of which one may be a constant."""

_SEVERAL = ("xs",)  # the parameter of those on a list of signals


def operated(layer: Layer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signal:
    """Return what an operation makes of its arguments."""
    reading = OPERATIONS.get(layer.kind.removeprefix(OPERATION))
    if reading is None:
        return layer.read(None)
    arguments: dict[Any, Any] = dict(enumerate(args)) | {
        key: value for key, value in kwargs.items() if value is not None
    }
    places = [next((key for key in (at, name) if key in arguments), None) for at, name in enumerate(reading.parameters)]
    others = [f"{key}={shown(arguments[key])}" for key in arguments if key not in places]
    if None in places or others:
        raise InputError(f"takes {', '.join(reading.parameters)}, and is given {', '.join(others) or 'less'}")
    values = [arguments[place] for place in places]
    if reading.parameters == _SEVERAL:
        sound = isinstance(values[0], list) and values[0] and all(isinstance(value, Signal) for value in values[0])
    else:
        sound = any(isinstance(value, Signal) for value in values)
    if not sound:
        raise InputError(f"takes {', '.join(reading.parameters)}, and is given {shown(values)}")
    return layer.read(reading, *values)


def _sum(first: Any, second: Any, layer: Layer) -> Signal:
    if isinstance(first, Signal) and isinstance(second, Signal):
        return combined([first, second], Add())
    signal, number = _signal_first(first, second)
    return signal.plus(constant(signal, number, layer.channels_last))


def _difference(first: Any, second: Any, layer: Layer) -> Signal:
    if isinstance(second, Signal):
        return _sum(first, second.times(-1.0), layer)
    signal: Signal = first
    return signal.plus(-constant(signal, second, layer.channels_last))


def _product(first: Any, second: Any, layer: Layer) -> Signal:
    if isinstance(first, Signal) and isinstance(second, Signal):
        return multiplied([first, second])
    signal, number = _signal_first(first, second)
    return signal.times(constant(signal, number, layer.channels_last))


def _quotient(first: Any, second: Any, layer: Layer) -> Signal:
    if isinstance(second, Signal):
        raise InputError("divides by numbers that depend on the input, which no layer of sparsenn does")
    signal: Signal = first
    with np.errstate(divide="ignore"):
        return signal.times(1 / constant(signal, second, layer.channels_last))


def _bounded(first: Any, second: Any, is_largest: bool) -> Signal:
    signal, number = _signal_first(first, second)
    return clipped(signal, number, None) if is_largest else clipped(signal, None, number)


def _signal_first(first: Any, second: Any) -> tuple[Signal, Any]:
    """Return the one of two operands that is a signal, and the other, a constant."""
    signal, number = (first, second) if isinstance(first, Signal) else (second, first)
    if isinstance(number, Signal):
        raise InputError("combines two results of layers; sparsenn's layers add, multiply or concatenate such")
    return signal, number


def _reshape(signal: Signal, layer: Layer) -> Signal:
    rows, *shape = layer.config["newshape"]
    if rows not in (-1, None):
        raise InputError(f"makes {rows} rows; -1 is needed, for any number")
    if -1 in shape and rows is not None:
        raise InputError(f"makes {[rows, *shape]}, which leaves more than one size open")
    return reshaped(signal, shape, layer.channels_last)


def _apply(activation: Activation) -> Reading:
    return Reading(lambda signal, layer: applied(signal, activation))


OPERATIONS: dict[str, Reading] = {
    "Add": Reading(_sum, parameters=_TWO),
    "Subtract": Reading(_difference, parameters=_TWO),
    "Multiply": Reading(_product, parameters=_TWO),
    "Divide": Reading(_quotient, parameters=_TWO),
    "TrueDivide": Reading(_quotient, parameters=_TWO),
    "Negative": Reading(lambda signal, layer: signal.times(-1.0)),
    "Maximum": Reading(lambda first, second, layer: _bounded(first, second, True), parameters=_TWO),
    "Minimum": Reading(lambda first, second, layer: _bounded(first, second, False), parameters=_TWO),
    "Clip": Reading(lambda signal, layer: clipped(signal, layer.config["x_min"], layer.config["x_max"]), "x_min x_max"),
    "Concatenate": Reading(concatenated, "axis", _SEVERAL),
    "Reshape": Reading(_reshape, "newshape"),
    "Relu": _apply(ReLU()),
    "Relu6": _apply(ReLU(6.0)),
    "Sigmoid": _apply(Sigmoid()),
    "Tanh": _apply(Tanh()),
    "ReLU": Reading(relu, "negative_slope max_value threshold"),
    "LeakyRelu": Reading(lambda signal, layer: leaked(signal, layer.config["negative_slope"]), "negative_slope"),
    "Softmax": Reading(softmax, "axis"),
}
"""How each operation is read, by the name of its class."""
