"""Operators that take some numbers of a row, at places that a constant says: columns, channels, pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
from scipy.sparse import csc_array

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.io.affine import Product
from sparsenn.io.importers.onnx.call import Call, Classes, Value
from sparsenn.io.signal import Signal
from sparsenn.layers import Slice

__all__ = ["SELECTIONS"]


def _gather(call: Call) -> Value:
    if any(isinstance(value, Classes) for value in call.inputs):
        return _labels(call)
    return _taken(_data(call), int(call.attribute("axis", 0)), call.required(1))


def _feature_extractor(call: Call) -> Value:
    if any(isinstance(value, Classes) for value in call.inputs):
        return _labels(call)
    signal = _data(call)
    if signal.rank < 2:
        raise InputError(f"it takes {signal}; a tensor of two axes is needed")
    return _taken(signal, -1, call.required(1).reshape(-1))


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
        axis = _axis(signal, axis)
        if (
            axis == signal.axis
            and (start, stride) == (0, 1)
            and end >= (_ENDLESS if signal.rows is None else signal.rows)
        ):
            continue
        places = np.arange(signal.full(0)[axis])[start:end:stride]
        signal = _taken(signal, axis, places)
    return signal


def _split(call: Call) -> list[Signal]:
    signal = _data(call)
    axis = _row_axis(signal, int(call.attribute("axis", 0)))
    size, given = signal.full(0)[axis], call.constant(1)
    sizes = call.attribute("split", None) if given is None else given.reshape(-1)
    if sizes is None:
        most = -(-size // call.results)
        sizes = [min(most, size - first) for first in range(0, size, most)]
    ends = np.cumsum([int(each) for each in sizes]).tolist()
    if len(ends) != call.results or ends[-1] != size or min(sizes) < 1:
        raise InputError(f"it takes {signal}, and splits axis {axis} into {call.results} of sizes {list(sizes)}")
    return [_taken(signal, axis, np.arange(first, last)) for first, last in pairwise((0, *ends))]


_ENDLESS = 2**31 - 1
"""The end of a slice that takes all rows, however many there are."""


def _data(call: Call) -> Signal:
    """Return the first input, from which a constant picks."""
    if not isinstance(call.inputs[0], Signal):
        raise InputError(
            "it picks elements of a constant by what the network computes; that is supported for labels of classes only"
        )
    return call.signal


def _taken(signal: Signal, axis: int, positions: Array) -> Signal:
    """Return the numbers at positions along an axis, which makes as many axes as the positions have."""
    axis = _row_axis(signal, axis)
    size = signal.full(0)[axis]
    if positions.dtype.kind not in "iu" or not positions.size or ((positions < -size) | (positions >= size)).any():
        raise InputError(f"it takes {signal}, and picks positions along axis {axis} that are not there, or none")
    positions = positions % size
    if np.array_equal(positions, np.arange(size)):
        return signal
    before = signal.axis is not None and signal.axis < axis
    places = np.arange(signal.width).reshape(signal.shape).take(positions, axis=axis - before)
    if signal.axis is not None and not before:
        signal = replace(signal, axis=signal.axis + positions.ndim - 1)
    taken = places.reshape(-1)
    if isinstance(signal.pending, Product):
        return _columns(signal, taken, places.shape)
    if _is_picture(signal) and axis == 1 and positions.ndim == 1 and np.all(np.diff(positions) == 1):
        images = signal.images().flushed()
        if len(images.lies or ()) == 3:
            first, last = int(positions[0]), int(positions[-1]) + 1
            return images.then(Slice(first, last)).as_image((last - first, *images.pixels[1:]))
    ones = np.ones(taken.size, np.float32)
    selection = csc_array((ones, (taken, np.arange(taken.size))), shape=(signal.width, taken.size))
    return signal.product(selection, places.shape)


def _is_picture(signal: Signal) -> bool:
    """Whether a signal is images for its layers, or a network's input that looks like images."""
    return signal.is_image and (len(signal.shape) == 3 or signal.lies is not None)


def _columns(signal: Signal, taken: Array, shape: tuple[int, ...]) -> Signal:
    """Return what is left of a product that is pending."""
    assert isinstance(signal.pending, Product), "which the caller sees to"
    product, columns = signal.pending, taken if signal.order is None else signal.order[taken]
    bias = np.broadcast_to(np.asarray(product.bias), (product.weights.shape[1],))[columns]
    pending = Product(product.weights[:, columns], bias)
    return replace(signal, shape=shape, pending=pending, lies=(taken.size,), order=None)


def _axis(signal: Signal, axis: int) -> int:
    """Return an axis counted from the first one."""
    if not -signal.rank <= axis < signal.rank:
        raise InputError(f"it takes {signal}, which has no axis {axis}")
    return axis % signal.rank


def _row_axis(signal: Signal, axis: int) -> int:
    """Return an axis counted from the first one, or refuse that of rows."""
    axis = _axis(signal, axis)
    if axis == signal.axis:
        raise InputError(
            f"it takes {signal}, and picks rows of it; a network computes all rows alike: leave the selection out, and "
            "make it of the network's inputs or outputs"
        )
    return axis


def _labels(call: Call) -> Classes:
    """Return classes whose labels are picked from a constant."""
    found = [value for value in call.inputs if isinstance(value, Classes)]
    if len(found) != 1 or any(isinstance(value, Signal) for value in call.inputs):
        raise InputError("it picks by classes, from no constant; only labels of classes can be picked so")
    return found[0]


SELECTIONS: dict[str, Callable[[Call], Value]] = {
    "ArrayFeatureExtractor": _feature_extractor,
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
}
"""Those operators by name."""
