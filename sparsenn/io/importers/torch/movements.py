"""Signals of PyTorch's operators that only move numbers, or take some of them at constant places."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

import numpy as np

from sparsenn.errors import InputError
from sparsenn.io.importers.axes import check_axis, take, transpose
from sparsenn.io.importers.host_arrays import host_array
from sparsenn.io.importers.signal import Signal

__all__ = [
    "ROWS",
    "Arguments",
    "Made",
    "index",
    "narrow",
    "permute",
    "reshape",
    "select",
    "shuffle",
    "slice_axis",
    "split",
]

ROWS = -1
"""The number of rows in a shape."""

Arguments: TypeAlias = dict[str, Any]
"""An operator's arguments by the names of its schema; what depends on the input is a `Signal`."""

Made: TypeAlias = Signal | list[Signal]
"""The result of an operator, or all results of one that has several."""


def reshape(at: Arguments) -> Signal:
    """Return a signal in another shape; the network's input may become images."""
    signal: Signal = at["self"]
    made = at["made"]
    if signal.width != prod(made[1:]):
        raise InputError(f"makes {made} of {signal.full(ROWS)}; samples must not be mixed")
    if signal.full(ROWS) == made:
        return signal
    if len(made) == 2:
        return signal.flattened()
    return signal.become(made[1:]) if signal.lies is None else replace(signal, shape=made[1:])


def slice_axis(at: Arguments) -> Signal:
    """Return what lies between two positions, in steps."""
    signal, axis, bounds = at["self"], at["dim"], slice(at["start"], at["end"], at["step"])
    if axis % signal.rank == 0 and bounds.indices(_ENDLESS) == (0, _ENDLESS, 1):
        whole: Signal = signal
        return whole
    return _positions(signal, axis, bounds)


_ENDLESS = 2**63 - 1
"""The end of a slice that takes all rows, however many there are."""


def narrow(at: Arguments) -> Signal:
    """Return what `torch.narrow` does."""
    return _positions(at["self"], at["dim"], slice(at["start"], at["start"] + at["length"]))


def _positions(signal: Signal, axis: int, bounds: slice) -> Signal:
    axis = check_axis(signal, axis)
    return take(signal, axis, np.arange(signal.shape[axis - 1])[bounds])


def select(at: Arguments) -> Signal:
    """Return the numbers at one position, or at several."""
    index = at["index"]
    return take(at["self"], at["dim"], np.asarray(index) if isinstance(index, int) else host_array("index", index))


def index(at: Arguments) -> Signal:
    """Return the numbers at some positions along one axis."""
    places = [place for place, each in enumerate(at["indices"]) if each is not None]
    if len(places) != 1:
        raise InputError(f"takes numbers along {len(places)} axes together; one is supported")
    return take(at["self"], places[0], host_array("index", at["indices"][places[0]]))


def split(at: Arguments) -> list[Signal]:
    """Return pieces of a size, of sizes of their own, or a number of pieces."""
    signal, axis = at["self"], check_axis(at["self"], at["dim"])
    width = signal.shape[axis - 1]
    sizes: Any = -(-width // at["chunks"]) if "chunks" in at else at.get("split_sizes", at.get("split_size"))
    if isinstance(sizes, int):
        sizes = [min(sizes, width - first) for first in range(0, width, sizes)]
    return [_positions(signal, axis, slice(first, last)) for first, last in pairwise(np.cumsum([0, *sizes]).tolist())]


def permute(at: Arguments) -> Signal:
    """Return a signal with its axes in another order."""
    signal: Signal = at["self"]
    axes = list(range(signal.rank))
    if "dims" in at:
        axes = [axis % signal.rank for axis in at["dims"]]
    else:
        one, other = at["dim0"] % signal.rank, at["dim1"] % signal.rank
        axes[one], axes[other] = other, one
    if axes[0] != 0:
        raise InputError(f"puts the rows of {signal} along another axis; samples must not be mixed")
    return transpose(signal, axes)


def shuffle(at: Arguments) -> Signal:
    """Return images with the first channel of each group, then the second of each, and so on."""
    signal, groups = at["self"], at["groups"]
    channels, *_ = signal.picture
    return take(signal, 1, np.arange(channels).reshape(groups, -1).T.ravel())
