"""What operators make of a signal: products, sums, activations and classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from math import inf, prod
from typing import Any

import numpy as np
from scipy.sparse import csc_array, eye_array, issparse, kron

from sparsenn.errors import InputError
from sparsenn.formats import INDEX32_LIMIT
from sparsenn.io.importers.affine import Product
from sparsenn.io.importers.axes import transpose
from sparsenn.io.importers.combinations import combined, concatenated, product_per_position, products_of, with_product
from sparsenn.io.importers.normalising import normalise, normalise_by
from sparsenn.io.importers.onnx.call import Call, Classes, Value, aligned, check_floats, deeper, floats, weights_of
from sparsenn.io.importers.onnx.image_operators import IMAGE_OPERATORS
from sparsenn.io.importers.onnx.movements import MOVEMENTS
from sparsenn.io.importers.onnx.tensors import Constant
from sparsenn.io.importers.signal import Signal
from sparsenn.layers import Add, LogSoftmax, Multiply, Softmax
from sparsenn.layers.activation import HardSigmoid
from sparsenn.layers.activation_names import activation_elsewhere, names_elsewhere
from sparsenn.runtime.memory import check_memory

_FLOAT32_MOST = float(np.finfo(np.float32).max)

_NEAR = 64.0
"""Bounds that are shifted to zero and back are at most so large: what float32 then rounds is below 1e-5."""


def _matmul(call: Call) -> Signal:
    one, other = call.inputs
    if isinstance(one, Signal) and isinstance(other, Signal):
        raise InputError("both of its inputs depend on the network's input; one must be constant weights")
    signal: Signal = one if isinstance(one, Signal) else other
    if not isinstance(signal, Signal):
        raise InputError("neither of its factors depends on the network's input; one has to")
    check_floats(signal)
    return _times_weights(signal, other) if signal is one else _weights_times(one, signal)


def _times_weights(signal: Signal, constant: Constant) -> Signal:
    vector = constant.ndim == 1
    weights = weights_of(constant.reshape(-1, 1) if vector else constant)
    single = signal.rank == 1
    if not single:
        signal = deeper(signal, constant.ndim - signal.rank)
    if not signal.shape or signal.axis == signal.rank - 1:
        raise InputError(f"it takes {signal}, and sums over rows")
    if weights.shape[0] != signal.shape[-1]:
        raise InputError(f"it takes {signal}, and its weights take {weights.shape[0]} inputs along the last axis")
    batch = (1,) * (constant.ndim - 2) if single else signal.shape[:-1]
    if prod(batch) > 1 and signal.order is None and not vector:
        return product_per_position(signal, weights)
    alike = _alike(prod(signal.shape[:-1]), weights, 1)
    return signal.product(alike, batch + (() if vector else weights.shape[1:]))


def _weights_times(constant: Constant, signal: Signal) -> Signal:
    weights = weights_of(constant)
    if signal.rank > 1:
        signal = deeper(signal, constant.ndim - signal.rank)
    summed = max(signal.rank - 2, 0)
    if signal.axis == summed or not signal.shape:
        raise InputError(f"it takes {signal}, and sums over rows")
    place = summed - (signal.axis is not None and signal.axis < summed)
    if weights.shape[1] != signal.shape[place]:
        raise InputError(f"it takes {signal}, and its weights take {weights.shape[1]} inputs along axis {summed}")
    before, after = signal.shape[:place], signal.shape[place + 1 :]
    if signal.rank == 1:
        before = (1,) * (constant.ndim - 2)
    alike = _alike(prod(before), weights.T, prod(after))
    return signal.product(alike, (*before, weights.shape[0], *after))


def _alike(before: int, weights: Any, after: int) -> Any:
    """Return weights along one axis of rows of several as those of whole rows: sizes before and after it stay."""
    if before == after == 1:
        return weights
    count = before * after * int(weights.nnz if issparse(weights) else weights.size)
    if count > INDEX32_LIMIT:
        raise InputError(f"it multiplies along one of several axes, which would take {count:,} weights; too many")
    check_memory(16 * count, "weights along one of several axes")
    return csc_array(kron(eye_array(before), kron(weights, eye_array(after))))


def _gemm(call: Call) -> Signal:
    one, other = call.inputs[:2]
    ranks = [value.rank if isinstance(value, Signal) else value.ndim for value in (one, other)]
    if ranks != [2, 2]:
        raise InputError(f"it multiplies tensors of {ranks[0]} and {ranks[1]} axes; two are needed of both")
    swapped = [int(call.attribute(name, 0)) for name in ("transA", "transB")]
    sides = [_transposed(value) if swap else value for value, swap in zip((one, other), swapped, strict=True)]
    signal = _matmul(replace(call, inputs=sides))
    alpha, beta = float(call.attribute("alpha", 1.0)), float(call.attribute("beta", 1.0))
    if alpha != 1.0:
        signal = signal.times(_finite(alpha))
    if len(call.inputs) < 3 or call.inputs[2] is None or beta == 0.0:
        return signal
    addend = call.required(2)
    return _plus(signal, addend if beta == 1.0 else floats(addend) * _finite(beta))


def _transposed(value: Value) -> Value:
    return transpose(value, list(range(value.rank - 1, -1, -1))) if isinstance(value, Signal) else value.T


def _add(call: Call) -> Signal:
    one, other = call.inputs
    if isinstance(one, Signal) and isinstance(other, Signal):
        return _summed(check_floats(one), check_floats(other))
    return _plus(one, other) if isinstance(one, Signal) else _plus(other, one)


def _sub(call: Call) -> Signal:
    one, other = call.inputs
    if isinstance(other, Signal):
        negative = check_floats(other).times(-1.0)
        return _summed(check_floats(one), negative) if isinstance(one, Signal) else _plus(negative, one)
    return _plus(one, -floats(other))


def _mul(call: Call) -> Signal:
    one, other = call.inputs
    if isinstance(one, Signal) and isinstance(other, Signal):
        return combined([check_floats(one), check_floats(other)], Multiply())
    return _times(one, other) if isinstance(one, Signal) else _times(other, one)


def _div(call: Call) -> Signal:
    one, other = call.inputs
    if isinstance(other, Signal):
        raise InputError("it divides by something that depends on the network's input; no layer of sparsenn does")
    return _times(one, 1.0 / floats(other))


def _plus(signal: Signal, constant: Constant) -> Signal:
    signal, numbers = aligned(check_floats(signal), constant)
    return signal.plus(numbers)


def _times(signal: Signal, constant: Constant) -> Signal:
    signal, numbers = aligned(check_floats(signal), constant)
    return signal.times(numbers)


def _scaler(call: Call) -> Signal:
    signal = _plus(call.signal, -floats(np.array(call.attribute("offset", [0.0]), np.float32)))
    return _times(signal, np.array(call.attribute("scale", [1.0]), np.float32))


def _batch_normalization(call: Call) -> Signal:
    if not call.attribute("spatial", 1):
        raise InputError("it normalises pixel by pixel; only version 9 of the operator or newer is supported")
    if call.attribute("training_mode", 0) or (call.version < 14 and call.results > 1):
        raise InputError("it normalises by the batch, as in training; export the network for inference")
    scale, shift, mean, variance = (floats(call.required(number)) for number in range(1, 5))
    signal = call.signal
    if signal.axis != 0 or not signal.shape or scale.shape != signal.shape[:1]:
        raise InputError(f"it takes {signal}, and has numbers for {scale.size} channels")
    if not scale.shape == shift.shape == mean.shape == variance.shape:
        raise InputError(f"it has {scale.size}, {shift.size}, {mean.size} and {variance.size} numbers for channels")
    return normalise_by(signal, mean, variance, float(call.attribute("epsilon", 1e-5)), scale, shift)


def _elementwise(call: Call) -> Signal:
    activation = activation_elsewhere("onnx", call.operator, call.attribute)
    if activation is None:
        raise InputError("it has attributes that no activation of sparsenn has")
    return call.signal.activated(activation)


def _clip(call: Call) -> Signal:
    if call.version < 11:
        least, most = (float(call.attribute(name, bound)) for name, bound in (("min", -inf), ("max", inf)))
    else:
        least, most = call.number(1, -inf), call.number(2, inf)
    return _between(call.signal, least, most)


def _bounds(call: Call) -> list[float]:
    bounds = [floats(value) for value in call.inputs if not isinstance(value, Signal)]
    if any(bound.size != 1 for bound in bounds):
        raise InputError("it has a bound for each number; it must have one for all")
    return [float(bound.reshape(-1)[0]) for bound in bounds]


def _deepest(call: Call) -> Signal:
    """Return the only signal, with as many axes as any value has."""
    signal = _one_signal(call)
    return deeper(signal, max(np.ndim(value) for value in call.inputs if not isinstance(value, Signal)) - signal.rank)


def _one_signal(call: Call) -> Signal:
    signals = [value for value in call.inputs if isinstance(value, Signal)]
    if len(signals) != 1 or len(call.inputs) < 2:
        raise InputError(
            "it compares several tensors that depend on the network's input; only one may: the others must be constants"
        )
    return check_floats(signals[0])


def _between(signal: Signal, least: float, most: float) -> Signal:
    """Return a signal's numbers brought between bounds, by a ReLU that may be clipped and turned."""
    if np.isnan(least) or np.isnan(most) or least >= most:
        raise InputError(f"its bounds are {least} and {most}; the first must be smaller")
    bounds = (None if least <= -_FLOAT32_MOST else least), (None if most >= _FLOAT32_MOST else most)
    bound = next((bound for bound in bounds if bound is not None), 0.0)
    if abs(bound) > _NEAR:
        raise InputError(
            f"its bound of {bound:g} is so far from 0 that digits would be lost; sparsenn would need an activation "
            "with such a bound"
        )
    return signal.clipped(*bounds)


def _hard_sigmoid(call: Call) -> Signal:
    """Return what it does with any beta, as an activation whose beta is 1/2 has it of shifted sums."""
    alpha, beta = _finite(float(call.attribute("alpha", 0.2))), _finite(float(call.attribute("beta", 0.5)))
    activation = HardSigmoid(alpha)
    return (call.signal if beta == 0.5 else call.signal.plus((beta - 0.5) / alpha)).activated(activation)


def _parametric_relu(call: Call) -> Signal:
    """Return it with what is below zero times a slope, or times one for each channel."""
    slopes, signal = floats(call.required(1)), call.signal
    sizes = slopes.shape[-len(signal.shape) :] if signal.shape else ()
    if slopes.size > 1 and (signal.axis != 0 or len(sizes) < len(signal.shape) or sizes[0] != slopes.size):
        raise InputError(f"it takes {signal}, and has slopes of shape {slopes.shape}; give one per channel")
    return signal.leaked(slopes.reshape(-1))


def _softmax(call: Call) -> Signal:
    signal = call.signal
    axis = int(call.attribute("axis", 1 if call.version < 13 else -1))
    _check_whole(signal, axis, together=call.version < 13)
    layer = LogSoftmax() if call.operator == "LogSoftmax" else Softmax()
    return replace(signal.flattened().softmax(layer), shape=signal.shape)


def _layer_normalization(call: Call) -> Signal:
    if call.results > 1:
        raise InputError("it also gives means and deviations; no layer of sparsenn does")
    signal, axis = call.signal, int(call.attribute("axis", -1))
    axis += signal.rank if axis < 0 else 0
    scale, shift = floats(call.required(1)), call.constant(2)
    epsilon = float(call.attribute("epsilon", 1e-5))
    return normalise(signal, signal.full(0)[axis:], scale, None if shift is None else floats(shift), epsilon)


def _argmax(call: Call) -> Classes:
    signal = call.signal
    if call.attribute("select_last_index", 0):
        raise InputError("it takes the last of equal numbers; sparsenn takes the first")
    _check_whole(signal, int(call.attribute("axis", 0)))
    return Classes(signal)


def _check_whole(signal: Signal, axis: int, together: bool = False) -> None:
    """Refuse an axis that is not all of a row; or that begins what is not, where it and those after it are together."""
    axis += signal.rank if axis < 0 else 0
    place = axis - (signal.axis is not None and signal.axis < axis)
    sizes = signal.shape[place:] if together else signal.shape[place : place + 1]
    if axis == signal.axis or (together and signal.axis is not None and signal.axis > axis):
        raise InputError(f"it takes {signal}, and compares rows with each other")
    if not 0 <= axis < signal.rank or prod(sizes) != signal.width:
        raise InputError(
            f"it takes {signal}, and compares the numbers along axis {axis}; only the numbers of a row can be compared"
        )


def _concat(call: Call) -> Signal:
    signals = [value for value in call.inputs if isinstance(value, Signal)]
    if len(signals) != len(call.inputs):
        raise InputError("it concatenates constants with values of the network's input; no layer of sparsenn does")
    first = signals[0]
    if len(signals) == 1:
        return first
    return concatenated([check_floats(signal) for signal in signals], int(call.attribute("axis", 0)))


def _sum(call: Call) -> Value:
    ordered = sorted(call.inputs, key=lambda value: not isinstance(value, Signal))  # a constant has no sum of its own
    return reduce(lambda one, other: _add(replace(call, inputs=[one, other])), ordered)


def _summed(one: Signal, other: Signal) -> Signal:
    """Return a sum: one product of what is affine in the outputs of the same layers, or else two branches."""
    products = products_of([one, other])
    if products is None:
        return combined([one, other], Add())
    first, second = products
    if first.weights.shape != second.weights.shape:
        raise InputError("it adds tensors of two widths")
    return with_product(one, Product(csc_array(first.weights) + csc_array(second.weights), first.bias + second.bias))


def _finite(number: float) -> float:
    return float(floats(np.float64(number)))


OPERATORS: dict[str, Callable[[Call], Value]] = {
    **MOVEMENTS,
    **IMAGE_OPERATORS,
    **dict.fromkeys(names_elsewhere("onnx"), _elementwise),
    "Add": _add,
    "ArgMax": _argmax,
    "BatchNormalization": _batch_normalization,
    "Clip": _clip,
    "Concat": _concat,
    "Div": _div,
    "Gemm": _gemm,
    "HardSigmoid": _hard_sigmoid,
    "LayerNormalization": _layer_normalization,
    "LogSoftmax": _softmax,
    "MatMul": _matmul,
    "Max": lambda call: _between(_deepest(call), max(_bounds(call)), inf),
    "Min": lambda call: _between(_deepest(call), -inf, min(_bounds(call))),
    "Mul": _mul,
    "Neg": lambda call: call.signal.times(-1.0),
    "PRelu": _parametric_relu,
    "Scaler": _scaler,
    "Softmax": _softmax,
    "Sub": _sub,
    "Sum": _sum,
    "ZipMap": lambda call: call.signal,
}
"""What each operator makes of its values, one of which at least is a signal or classes."""
