"""Operators that move a signal's numbers, take some at constant places, or name its axes otherwise; none computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
from onnx import TensorProto

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.io.importers.axes import check_axis, take, transpose
from sparsenn.io.importers.onnx.call import Call, Value
from sparsenn.io.importers.onnx.folding import ROWS
from sparsenn.io.importers.onnx.tensors import dense
from sparsenn.io.importers.signal import Signal

_ENDLESS = 2**31 - 1
"""The end of a slice that takes all rows, however many there are."""


def _reshaped(signal: Signal, target: list[int]) -> Signal:
    """Return a signal in another shape, in which `ROWS` stands for the number of rows, and -1 for what is left."""
    filled = _filled(signal, target)
    before = prod(signal.shape[: signal.axis or 0])
    axes: list[int | None] = [axis for axis, size in enumerate(filled) if size == ROWS]
    if not axes and signal.axis is not None:
        few = (1,) if signal.rows is None else (signal.rows,)
        axes = [axis for axis, size in enumerate(filled) if size in few]
        axes += [None] if signal.rows == 1 else []
    if signal.axis is None:
        axes = [None]
    for axis in axes:
        shape = tuple(size for place, size in enumerate(filled) if place != axis)
        if prod(shape) == signal.width and (axis is None or prod(shape[:axis]) == before):
            return replace(signal, shape=shape, axis=axis)
    shown = ["rows" if size == ROWS else size for size in target]
    raise InputError(f"it takes {signal} and would make {shown} of it, which mixes rows, or does not fit")


def _filled(signal: Signal, target: list[int]) -> list[int]:
    """Return a shape without -1: what is left of a row, or the number of rows."""
    if target.count(-1) > 1 or target.count(ROWS) > 1 or any(size < 0 and size not in (-1, ROWS) for size in target):
        raise InputError(f"it takes {signal}, and the shape {target} is none")
    if -1 not in target:
        return target
    rest = prod(size for size in target if size not in (-1, ROWS))
    if ROWS not in target and signal.axis is not None:
        if rest == signal.width:
            return [ROWS if size == -1 else size for size in target]
        left = signal.width * (1 if signal.rows is None else signal.rows)
    else:
        left = signal.width
    if not rest or left % rest:
        raise InputError(f"it takes {signal}, and the shape {target} does not fit")
    return [left // rest if size == -1 else size for size in target]


def _reshape(call: Call) -> Signal:
    signal, shape = _only_signal(call), call.inputs[1]
    if isinstance(shape, Signal):
        raise InputError("its shape depends on the network's input; it must be a constant")
    target = [int(size) for size in dense(shape).reshape(-1)]
    if call.attribute("allowzero", 0) and 0 in target:
        raise InputError("it makes a tensor without numbers")
    full = signal.full(ROWS)
    if any(size == 0 and place >= len(full) for place, size in enumerate(target)):
        raise InputError(f"it takes {signal}, and the shape {target} copies an axis that is not there")
    return _reshaped(signal, [full[place] if size == 0 else size for place, size in enumerate(target)])


def _flatten(call: Call) -> Signal:
    signal, axis = _only_signal(call), int(call.attribute("axis", 1))
    full = signal.full(ROWS)
    axis += len(full) if axis < 0 else 0
    if not 0 <= axis <= len(full):
        raise InputError(f"it takes {signal}, which has no axis {axis}")
    return _reshaped(signal, [_merged_size(signal, full[:axis]), _merged_size(signal, full[axis:])])


def _merged_size(signal: Signal, sizes: tuple[int, ...]) -> int:
    """Return the size of several axes as one."""
    others = prod(size for size in sizes if size != ROWS)
    if ROWS not in sizes or signal.rows == 1:
        return others
    if others != 1:
        raise InputError(f"it takes {signal}, and mixes rows with other axes")
    return ROWS


def _squeeze(call: Call) -> Signal:
    signal, axes = _only_signal(call), call.axes()
    full = signal.full(ROWS)
    dropped = (
        {axis for axis, size in enumerate(full) if size == 1 or (size == ROWS and signal.rows == 1)}
        if axes is None
        else {axis + len(full) if axis < 0 else axis for axis in axes}
    )
    if any(not 0 <= axis < len(full) for axis in dropped):
        raise InputError(f"it takes {signal}, which has no axes {axes}")
    if any(full[axis] != 1 and not (full[axis] == ROWS and signal.rows == 1) for axis in dropped):
        raise InputError(f"it takes {signal}, and drops an axis that is longer than 1, or that of rows")
    return _reshaped(signal, [size for axis, size in enumerate(full) if axis not in dropped])


def _unsqueeze(call: Call) -> Signal:
    signal, axes = _only_signal(call), call.axes() or []
    rank = signal.rank + len(axes)
    added = {axis + rank if axis < 0 else axis for axis in axes}
    if len(added) != len(axes) or any(not 0 <= axis < rank for axis in added):
        raise InputError(f"it takes {signal}, and adds the axes {axes}")
    old = iter(signal.full(ROWS))
    return _reshaped(signal, [1 if axis in added else next(old) for axis in range(rank)])


def _transpose(call: Call) -> Signal:
    signal = _only_signal(call)
    return transpose(signal, [int(axis) for axis in call.attribute("perm", range(signal.rank - 1, -1, -1))])


def _dropout(call: Call) -> Value:
    if call.number(2, 0.0):
        raise InputError("it drops numbers at random, as in training; export the network for inference")
    return call.inputs[0]


def _cast(call: Call) -> Value:

    value = call.inputs[0]
    if call.attribute("to", 0) in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16):
        return replace(value, integers=False)
    if value.integers and call.attribute("to", 0) in (TensorProto.INT64, TensorProto.INT32):
        return value
    raise InputError("it converts what the network computes to numbers other than floating-point ones")


def _shape(call: Call) -> Array:
    signal: Signal = call.inputs[0]
    full = np.array(signal.full(ROWS), np.int64)
    return full[slice(call.attribute("start", 0), call.attribute("end", None))]


def _feature_extractor(call: Call) -> Signal:
    signal = _data(call)
    if signal.rank < 2:
        raise InputError(f"it takes {signal}; a tensor of two axes is needed")
    return take(signal, -1, call.required(1).reshape(-1))


def _slice(call: Call) -> Signal:
    signal = _data(call)
    if call.version < 10:
        starts, ends = ([int(size) for size in call.attribute(name, ())] for name in ("starts", "ends"))
    else:
        starts, ends = ([int(size) for size in call.required(number).reshape(-1)] for number in (1, 2))
    axes, steps = call.axes(3), call.constant(4)
    axes = list(range(len(starts))) if axes is None else axes
    strides = [1] * len(starts) if steps is None else [int(size) for size in steps.reshape(-1)]
    if not len(starts) == len(ends) == len(axes) == len(strides) or 0 in strides:
        raise InputError(f"it slices from {starts} to {ends} along the axes {axes} in steps of {strides}")
    for start, end, axis, stride in zip(starts, ends, axes, strides, strict=True):
        is_of_rows = signal.axis is not None and axis in (signal.axis, signal.axis - signal.rank)
        if is_of_rows and (start, stride) == (0, 1) and end >= (_ENDLESS if signal.rows is None else signal.rows):
            continue
        places = np.arange(signal.full(0)[check_axis(signal, axis)])[start:end:stride]
        signal = take(signal, axis, places)
    return signal


def _split(call: Call) -> list[Signal]:
    signal = _data(call)
    axis = check_axis(signal, int(call.attribute("axis", 0)))
    size, given = signal.full(0)[axis], call.constant(1)
    sizes = call.attribute("split", None) if given is None else given.reshape(-1)
    if sizes is None:
        most = -(-size // call.results)
        sizes = [min(most, size - first) for first in range(0, size, most)]
    ends = np.cumsum([int(each) for each in sizes]).tolist()
    if len(ends) != call.results or ends[-1] != size or min(sizes) < 1:
        raise InputError(f"it takes {signal}, and splits axis {axis} into {call.results} of sizes {list(sizes)}")
    return [take(signal, axis, np.arange(first, last)) for first, last in pairwise((0, *ends))]


def _data(call: Call) -> Signal:
    if not isinstance(call.inputs[0], Signal):
        raise InputError(
            "it picks elements of a constant by what the network computes; that is supported for labels of classes only"
        )
    return call.signal


def _only_signal(call: Call) -> Signal:
    signal: Signal = call.inputs[0]
    if not isinstance(signal, Signal):
        raise InputError("its first input is a constant; one that depends on the network's input is needed")
    return signal


MOVEMENTS: dict[str, Callable[[Call], Value]] = {
    "ArrayFeatureExtractor": _feature_extractor,
    "Cast": _cast,
    "Dropout": _dropout,
    "Flatten": _flatten,
    "Gather": lambda call: take(_data(call), int(call.attribute("axis", 0)), call.required(1)),
    "Identity": lambda call: call.inputs[0],
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""Those operators by name."""
