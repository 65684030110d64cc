"""The operators of `torch.export` that layers compute, with each argument that is understood.

An argument that an operator's entry does not name must have its default, so that what PyTorch adds is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any, TypeAlias

import numpy as np
import torch

from sparsenn.errors import InputError
from sparsenn.io.importers.combinations import combined, concatenated, multiplied
from sparsenn.io.importers.host_arrays import host_array, host_matrix
from sparsenn.io.importers.signal import Signal
from sparsenn.io.importers.torch import movements, operators
from sparsenn.layers import Add, LogSoftmax, Softmax
from sparsenn.layers.activation_names import attributes_elsewhere, names_elsewhere

_FIRST = ("self", "input", "tensors")  # names of operators' first arguments

ROWS_COUNT = object()
"""The number of rows, or what is computed from it, as an argument."""

Made: TypeAlias = Signal | list[Signal]
"""The result of an operator, or all results of one that has several."""


@dataclass(frozen=True)
class Operator:
    """What layers compute of an operator.

    compute : takes the operator's first argument, and others by name; `made` is the shape of the result.
    reads : the names of these others, whose values `compute` refuses where they are not supported.
    signals : names of arguments that may depend on the input: the first one, and others.
    ignores : arguments of which each value gives the same numbers, or which follow from the shape of the result.
    only : arguments of which these values alone are supported.
    """

    compute: Callable[..., Made]
    reads: tuple[str, ...]
    signals: tuple[str, ...]
    ignores: tuple[str, ...]
    only: Mapping[str, tuple[Any, ...]]


def apply_operator(schema: Any, arguments: Mapping[str, Any], made: tuple[int, ...]) -> Made:
    """Return what layers make of an operator's arguments: a signal, or a list of several.

    schema : of the operator.
    arguments : all of them, by the names of the schema; those that depend on the input are signals.
    made : the shape of the result.
    """
    operator = OPERATORS.get(schema.name.removeprefix("aten::"))
    if operator is None:
        raise InputError("has no counterpart in sparsenn; give a module without it")
    for argument in schema.arguments:
        _check(operator, argument, arguments[argument.name])
    known = {**arguments, "made": made}
    return operator.compute(known[schema.arguments[0].name], **{name: known.get(name) for name in operator.reads})


def _check(operator: Operator, argument: Any, value: Any) -> None:
    name, single = argument.name, list(_flat(value))
    if name in operator.ignores or (name in operator.signals and ROWS_COUNT not in single):
        return
    if any(isinstance(each, Signal) for each in single):
        raise InputError(f"is given {name} by a layer; a constant is needed")
    if any(each is ROWS_COUNT for each in single):
        raise InputError(f"is given {name} computed from the number of rows; a constant is needed")
    if name in (*operator.reads, *_FIRST):
        return
    supported = operator.only.get(name, (argument.default_value,) if argument.has_default_value() else ())
    if isinstance(value, torch.Tensor) or not any(value == each for each in supported):
        known = f"; only {' or '.join(map(repr, supported))} is supported" if supported else ""
        raise InputError(f"has the argument {name}={value!r}{known or ', which is not supported'}")


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def _mean(signal: Signal, dim: Any, keepdim: bool) -> Signal:
    axes = sorted(axis % signal.rank for axis in dim or ())
    if axes != list(range(2, signal.rank)) or signal.rank < 3:
        raise InputError(f"it takes the mean over dimensions {dim}; only a mean over all pixels is supported")
    means = operators.adaptive_pool(signal.rank - 2, signal, 1)
    return means if keepdim else means.flattened()


def _matrix_product(signal: Signal, mat2: Any) -> Signal:
    if signal.rank != 2:
        raise InputError("multiplies images by a matrix; only rows times a matrix is supported")
    return signal.connected(host_matrix("matrix", mat2))


def _added_product(bias: Any, mat1: Signal, mat2: Any) -> Signal:
    return mat1.connected(host_matrix("matrix", mat2), host_array("bias", bias))


def _combined(left: Any, left_factor: float, right: Any, right_factor: float) -> Signal:
    if isinstance(left, Signal) and isinstance(right, Signal):
        return combined([left.times(left_factor), right.times(right_factor)], Add())
    if isinstance(right, Signal):
        left, left_factor, right, right_factor = right, right_factor, left, left_factor
    signal: Signal = left
    with np.errstate(all="ignore"):  # infinite addends are refused
        return signal.scaled(left_factor, _by_channel(right, signal) * right_factor)


def _multiple(first: Any, other: Any) -> Signal:
    if isinstance(first, Signal) and isinstance(other, Signal):
        return multiplied([first, other])
    signal, constant = (first, other) if isinstance(first, Signal) else (other, first)
    return signal.scaled(_by_channel(constant, signal), 0.0)


def _quotient(signal: Signal, other: Any) -> Signal:
    with np.errstate(all="ignore"):  # infinite factors are refused
        return signal.scaled(1 / _by_channel(other, signal), 0.0)


def _by_channel(constant: Any, signal: Signal) -> Any:
    """Return a constant that is one number, or one for each channel, as such."""
    array = host_array("constant", constant).astype(np.float64)
    shape = (1,) * (signal.rank - array.ndim) + array.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1) or len(shape) != signal.rank:
        raise InputError(f"a constant of shape {array.shape}; one number, or one per channel, is supported")
    return array.reshape(-1)[0] if array.size == 1 else array.reshape(-1)


def _number(name: str, value: Any) -> float:
    array = host_array(name, value)
    if array.size != 1:
        raise InputError(f"the {name} holds {array.size} numbers; one is supported")
    return float(array.reshape(-1)[0])


def _clamp(signal: Signal, min: Any, max: Any) -> Signal:  # noqa: A002 (PyTorch's names)
    least, most = (None if each is None else _number(name, each) for name, each in (("min", min), ("max", max)))
    return signal.clipped(least, most)


def _concatenation(tensors: list[Signal], dim: int) -> Signal:
    if not all(isinstance(each, Signal) for each in tensors):
        raise InputError("concatenates a layer's output and constants; only layers' outputs are supported")
    return concatenated(tensors, dim) if len(tensors) > 1 else tensors[0]


def _operator(
    compute: Callable[..., Made], ignores: str = "", signals: tuple[str, ...] = _FIRST, **only: Any
) -> Operator:
    """Return an operator whose arguments are read by the names of the function's parameters."""
    _, *reads = signature(compute).parameters
    return Operator(compute, tuple(reads), signals, tuple(ignores.split()), only)


def _activation(name: str) -> Operator:
    def compute(signal: Signal, **attributes: Any) -> Signal:
        return operators.elementwise(signal, "aten", name, lambda key, _: attributes[key])

    return replace(_operator(compute), reads=tuple(attributes_elsewhere("aten", name)))


_CONVOLUTION = _operator(operators.convolution)
_RESHAPE = _operator(movements.reshape, "size shape sizes dim start_dim end_dim")
_NOTHING = _operator(lambda signal: signal, "memory_format")
_DROPOUT = _operator(lambda signal: signal, "p", train=(False,))

_DTYPES = (None, torch.float32, torch.float64)
"""Types of a result that layers give at least as exactly."""

OPERATORS: dict[str, Operator] = {
    "linear": _operator(operators.linear),
    "matmul": _operator(lambda signal, other: _matrix_product(signal, other)),
    "mm": _operator(_matrix_product),
    "addmm": _operator(_added_product, signals=("mat1",), beta=(1,), alpha=(1,)),
    "conv1d": _CONVOLUTION,
    "conv2d": _CONVOLUTION,
    "batch_norm": _operator(operators.batch_norm, "momentum cudnn_enabled", training=(False,)),
    "_native_batch_norm_legit_no_training": _operator(operators.batch_norm, "momentum"),
    "layer_norm": _operator(operators.layer_norm, "cudnn_enable"),
    "native_layer_norm": _operator(operators.layer_norm),
    **{f"max_pool{number}d": _operator(partial(operators.max_pool, number)) for number in (1, 2)},
    **{f"avg_pool{number}d": _operator(partial(operators.average_pool, number)) for number in (1, 2)},
    **{f"adaptive_avg_pool{number}d": _operator(partial(operators.adaptive_pool, number)) for number in (1, 2)},
    "mean": _operator(_mean, dtype=_DTYPES),
    "pad": _operator(operators.pad),
    "constant_pad_nd": _operator(operators.pad),
    **{name: _activation(name) for name in names_elsewhere("aten")},
    "relu6": _operator(lambda signal: signal.clipped(0.0, 6.0)),
    "hardtanh": _operator(lambda signal, min_val, max_val: _clamp(signal, min_val, max_val)),
    "clamp": _operator(_clamp),
    "clamp_min": _operator(lambda signal, min: _clamp(signal, min, None)),  # noqa: A006 (PyTorch's name, as the next)
    "clamp_max": _operator(lambda signal, max: _clamp(signal, None, max)),  # noqa: A006
    "prelu": _operator(operators.parametric_relu),
    "softmax": _operator(partial(operators.softmax, Softmax()), dtype=_DTYPES),
    "log_softmax": _operator(partial(operators.softmax, LogSoftmax()), dtype=_DTYPES),
    "mul": _operator(_multiple, signals=("self", "other")),
    "div": _operator(_quotient, rounding_mode=(None,)),
    "add": _operator(
        lambda first, other, alpha: _combined(first, 1.0, other, _number("alpha", alpha)), signals=("self", "other")
    ),
    "sub": _operator(
        lambda first, other, alpha: _combined(first, 1.0, other, -_number("alpha", alpha)), signals=("self", "other")
    ),
    "rsub": _operator(
        lambda first, other, alpha: _combined(first, -_number("alpha", alpha), other, 1.0), signals=("self", "other")
    ),
    "neg": _operator(lambda signal: signal.scaled(-1.0, 0.0)),
    **dict.fromkeys(("flatten", "view", "reshape", "_unsafe_view", "unflatten", "squeeze", "unsqueeze"), _RESHAPE),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), _DROPOUT),
    **dict.fromkeys(("contiguous", "clone", "alias", "detach"), _NOTHING),
    "slice": _operator(movements.slice_axis),
    "narrow": _operator(movements.narrow),
    **dict.fromkeys(("select", "index_select"), _operator(movements.select)),
    "index": _operator(movements.index),
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _operator(movements.split)),
    "permute": _operator(movements.permute),
    "transpose": _operator(movements.transposed),
    **dict.fromkeys(("channel_shuffle", "native_channel_shuffle"), _operator(movements.shuffle)),
    "cat": _operator(_concatenation),
}
"""What layers compute of each operator, by its name without `aten` and overload."""
