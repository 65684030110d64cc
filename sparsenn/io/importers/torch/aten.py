"""The operators of `torch.export` that layers compute, with each argument that is understood.

An argument that an operator's entry does not name must have its default, so that what PyTorch adds is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sparsenn.errors import InputError
from sparsenn.io.importers.combinations import combined, concatenated, multiplied
from sparsenn.io.importers.host_arrays import host_array, host_matrix
from sparsenn.io.importers.signal import Signal
from sparsenn.io.importers.torch import movements, operators
from sparsenn.io.importers.torch.movements import Arguments, Made
from sparsenn.layers import Add, AvgPool2d, LogSoftmax
from sparsenn.layers.activation_names import attributes_elsewhere, names_elsewhere

__all__ = ["OPERATORS", "ROWS_COUNT", "Operator", "apply_operator"]

ROWS_COUNT = object()
"""The number of rows, or what is computed from it, as an argument."""


@dataclass(frozen=True)
class Operator:
    """What layers compute of an operator.

    Parameters
    ----------
    compute : what it makes of its arguments, among them `made`, the shape of its result.
    signals : arguments that may depend on the input.
    reads : arguments that `compute` reads, and refuses where their values are not supported.
    ignores : arguments of which each value gives the same numbers, or which follow from the shape of the result.
    only : arguments of which these values alone are supported.
    """

    compute: Callable[[Arguments], Made]
    signals: tuple[str, ...]
    reads: tuple[str, ...]
    ignores: tuple[str, ...]
    only: Mapping[str, tuple[Any, ...]]


def apply_operator(schema: Any, arguments: Arguments, made: tuple[int, ...]) -> Made:
    """Return what layers make of an operator's arguments: a signal, or a list of several.

    Parameters
    ----------
    schema : of the operator.
    arguments : all of them.
    made : the shape of the result.
    """
    operator = OPERATORS.get(schema.name.removeprefix("aten::"))
    if operator is None:
        raise InputError("has no counterpart in sparsenn; give a module without it")
    for argument in schema.arguments:
        _check(operator, argument, arguments[argument.name])
    return operator.compute({**dict.fromkeys(operator.reads), **arguments, "made": made})


def _check(operator: Operator, argument: Any, value: Any) -> None:
    name, single = argument.name, list(_flat(value))
    if name in operator.ignores or (name in operator.signals and ROWS_COUNT not in single):
        return
    if any(isinstance(each, Signal) for each in single):
        raise InputError(f"is given {name} by a layer; a constant is needed")
    if any(each is ROWS_COUNT for each in single):
        raise InputError(f"is given {name} computed from the number of rows; a constant is needed")
    if name in operator.reads:
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


def _convolution(at: Arguments) -> Signal:
    return operators.convolution(
        at["input"], at["weight"], at["bias"], at["stride"], at["padding"], at["dilation"], at["groups"]
    )


def _batch_norm(at: Arguments) -> Signal:
    return operators.batch_norm(at["input"], at["weight"], at["bias"], at["running_mean"], at["running_var"], at["eps"])


def _layer_norm(at: Arguments) -> Signal:
    return operators.layer_norm(at["input"], at["normalized_shape"], at["weight"], at["bias"], at["eps"])


def _max_pool(dimensions: int) -> Operator:
    return _operator(
        lambda at: operators.max_pool(
            at["self"], dimensions, at["kernel_size"], at["stride"], at["padding"], at["dilation"], at["ceil_mode"]
        ),
        "self",
        "kernel_size stride padding dilation ceil_mode",
    )


def _average_pool(dimensions: int) -> Operator:
    def compute(at: Arguments) -> Signal:
        return operators.average_pool(
            at["self"],
            dimensions,
            at["kernel_size"],
            at["stride"],
            at["padding"],
            at["ceil_mode"],
            at["count_include_pad"],
            at["divisor_override"],
        )

    return _operator(compute, "self", "kernel_size stride padding ceil_mode count_include_pad divisor_override")


def _adaptive_pool(dimensions: int) -> Operator:
    return _operator(
        lambda at: operators.adaptive_pool(at["self"], dimensions, AvgPool2d, at["output_size"]), "self", "output_size"
    )


def _mean(at: Arguments) -> Signal:
    signal: Signal = at["self"]
    axes = sorted(axis % signal.rank for axis in at["dim"] or ())
    if axes != list(range(2, signal.rank)) or signal.rank < 3:
        raise InputError(f"it takes the mean over dimensions {at['dim']}; only a mean over all pixels is supported")
    means = operators.adaptive_pool(signal, signal.rank - 2, AvgPool2d, 1)
    return means if at["keepdim"] else means.flattened()


def _product(second: str) -> Operator:
    """Return what multiplies rows and a matrix, which has this name."""

    def compute(at: Arguments) -> Signal:
        signal: Signal = at["self"]
        if signal.rank != 2:
            raise InputError("multiplies images by a matrix; only rows times a matrix is supported")
        return signal.connected(host_matrix("matrix", at[second]))

    return _operator(compute, "self", second)


def _added_product(at: Arguments) -> Signal:
    signal: Signal = at["mat1"]
    return signal.connected(host_matrix("matrix", at["mat2"]), host_array("bias", at["self"]))


def _sum(sign: float) -> Operator:
    """Return what adds its second argument times `alpha`, with this sign, to its first."""

    def compute(at: Arguments) -> Signal:
        return _combined(at["self"], 1.0, at["other"], sign * _number("alpha", at["alpha"]))

    return _operator(compute, "self other", "alpha")


def _reversed_difference(at: Arguments) -> Signal:
    return _combined(at["self"], -_number("alpha", at["alpha"]), at["other"], 1.0)


def _combined(left: Any, left_factor: float, right: Any, right_factor: float) -> Signal:
    if isinstance(left, Signal) and isinstance(right, Signal):
        return combined([left.times(left_factor), right.times(right_factor)], Add())
    if isinstance(right, Signal):
        left, left_factor, right, right_factor = right, right_factor, left, left_factor
    signal: Signal = left
    return signal.scaled(left_factor, _by_channel(right, signal) * right_factor)


def _multiple(at: Arguments) -> Signal:
    swapped = not isinstance(at["self"], Signal)
    signal: Signal = at["other" if swapped else "self"]
    constant = at["self" if swapped else "other"]
    if isinstance(constant, Signal):
        return multiplied([at["self"], at["other"]])
    return signal.scaled(_by_channel(constant, signal), 0.0)


def _quotient(at: Arguments) -> Signal:
    signal: Signal = at["self"]
    with np.errstate(all="ignore"):  # infinite factors are refused
        return signal.scaled(1 / _by_channel(at["other"], signal), 0.0)


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


def _clipped(lower: str | None, upper: str | None) -> Operator:
    """Return what keeps numbers between two arguments, of these names."""

    def compute(at: Arguments) -> Signal:
        bounds = (None if name is None or at[name] is None else _number(name, at[name]) for name in (lower, upper))
        signal: Signal = at["self"].clipped(*bounds)
        return signal

    return _operator(compute, "self", " ".join(name for name in (lower, upper) if name))


def _concatenation(at: Arguments) -> Signal:
    tensors: list[Signal] = at["tensors"]
    first, axis = tensors[0], at["dim"]
    if not all(isinstance(each, Signal) for each in tensors):
        raise InputError("concatenates a layer's output and constants; only layers' outputs are supported")
    return concatenated(tensors, axis) if len(tensors) > 1 else first


def _operator(
    compute: Callable[[Arguments], Made], signals: str = "self", reads: str = "", ignores: str = "", **only: Any
) -> Operator:
    return Operator(compute, tuple(signals.split()), tuple(reads.split()), tuple(ignores.split()), only)


def _activation(name: str) -> Operator:
    return _operator(
        lambda at: operators.elementwise(at["self"], "aten", name, lambda key, _: at[key]),
        reads=" ".join(attributes_elsewhere("aten", name)),
    )


_CONVOLUTION = _operator(_convolution, "input", "weight bias stride padding dilation groups")
_NORM = "weight bias running_mean running_var eps"
_RESHAPE = _operator(movements.reshape, ignores="size shape sizes dim start_dim end_dim")
_NOTHING = _operator(lambda at: at["self"], ignores="memory_format")
_DROPOUT = _operator(lambda at: at["input"], "input", ignores="p", train=(False,))

_DTYPES = (None, torch.float32, torch.float64)
"""Types of a result that layers give at least as exactly."""

OPERATORS: dict[str, Operator] = {
    "linear": _operator(lambda at: operators.linear(at["input"], at["weight"], at["bias"]), "input", "weight bias"),
    "matmul": _product("other"),
    "mm": _product("mat2"),
    "addmm": _operator(_added_product, "mat1", "self mat2", beta=(1,), alpha=(1,)),
    "conv1d": _CONVOLUTION,
    "conv2d": _CONVOLUTION,
    "batch_norm": _operator(_batch_norm, "input", _NORM, "momentum cudnn_enabled", training=(False,)),
    "_native_batch_norm_legit_no_training": _operator(_batch_norm, "input", _NORM, "momentum"),
    "layer_norm": _operator(_layer_norm, "input", "normalized_shape weight bias eps", "cudnn_enable"),
    "native_layer_norm": _operator(_layer_norm, "input", "normalized_shape weight bias eps"),
    "max_pool1d": _max_pool(1),
    "max_pool2d": _max_pool(2),
    "avg_pool1d": _average_pool(1),
    "avg_pool2d": _average_pool(2),
    "adaptive_avg_pool1d": _adaptive_pool(1),
    "adaptive_avg_pool2d": _adaptive_pool(2),
    "mean": _operator(_mean, reads="dim keepdim", dtype=_DTYPES),
    "pad": _operator(lambda at: operators.pad(at["self"], at["pad"], at["mode"], at["value"]), reads="pad mode value"),
    "constant_pad_nd": _operator(lambda at: operators.pad(at["self"], at["pad"], value=at["value"]), reads="pad value"),
    **{name: _activation(name) for name in names_elsewhere("aten")},
    "relu6": _operator(lambda at: at["self"].clipped(0.0, 6.0)),
    "hardtanh": _clipped("min_val", "max_val"),
    "clamp": _clipped("min", "max"),
    "clamp_min": _clipped("min", None),
    "clamp_max": _clipped(None, "max"),
    "prelu": _operator(lambda at: operators.parametric_relu(at["self"], at["weight"]), reads="weight"),
    "softmax": _operator(lambda at: operators.softmax(at["self"], at["dim"]), reads="dim", dtype=_DTYPES),
    "log_softmax": _operator(
        lambda at: operators.softmax(at["self"], at["dim"], LogSoftmax()), reads="dim", dtype=_DTYPES
    ),
    "mul": _operator(_multiple, "self other"),
    "div": _operator(_quotient, reads="other", rounding_mode=(None,)),
    "add": _sum(1.0),
    "sub": _sum(-1.0),
    "rsub": _operator(_reversed_difference, "self other", "alpha"),
    "neg": _operator(lambda at: at["self"].scaled(-1.0, 0.0)),
    **dict.fromkeys(("flatten", "view", "reshape", "_unsafe_view", "unflatten", "squeeze", "unsqueeze"), _RESHAPE),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), _DROPOUT),
    **dict.fromkeys(("contiguous", "clone", "alias", "detach"), _NOTHING),
    "slice": _operator(movements.slice_axis, reads="dim start end step"),
    "narrow": _operator(movements.narrow, reads="dim start length"),
    "select": _operator(movements.select, reads="dim index"),
    "index_select": _operator(movements.select, reads="dim index"),
    "index": _operator(movements.index, reads="indices"),
    "split": _operator(movements.split, reads="split_size dim"),
    "split_with_sizes": _operator(movements.split, reads="split_sizes dim"),
    "chunk": _operator(movements.split, reads="chunks dim"),
    "permute": _operator(movements.permute, reads="dims"),
    "transpose": _operator(movements.permute, reads="dim0 dim1"),
    **dict.fromkeys(("channel_shuffle", "native_channel_shuffle"), _operator(movements.shuffle, reads="groups")),
    "cat": _operator(_concatenation, "tensors", "dim"),
}
"""What layers compute of each operator, by its name without `aten` and overload."""
