"""Operators that take some numbers of a row, at places that a constant says: columns, channels, pixels."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from sparsenn.errors import InputError
from sparsenn.io.importers.axes import check_axis, take
from sparsenn.io.importers.onnx.call import Call, Value
from sparsenn.io.importers.signal import Signal


def _gather(call: Call) -> Signal:
    return take(_data(call), int(call.attribute("axis", 0)), call.required(1))


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


_ENDLESS = 2**31 - 1
"""The end of a slice that takes all rows, however many there are."""


def _data(call: Call) -> Signal:
    if not isinstance(call.inputs[0], Signal):
        raise InputError(
            "it picks elements of a constant by what the network computes; that is supported for labels of classes only"
        )
    return call.signal


SELECTIONS: dict[str, Callable[[Call], Value]] = {
    "ArrayFeatureExtractor": _feature_extractor,
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
}
"""Those operators by name."""
