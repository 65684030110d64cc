"""Signals of PyTorch's operators that only move numbers, or take some of them at constant places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from sparsenn.errors import InputError
from sparsenn.io.importers.axes import check_axis, take, transpose
from sparsenn.io.importers.host_arrays import host_array
from sparsenn.io.importers.signal import Signal

ROWS = -1  # the number of rows in a shape

_ENDLESS = 2**63 - 1
"""The end of a slice that takes all rows, however many there are."""


def reshape(signal: Signal, made: tuple[int, ...]) -> Signal:
    """Return a signal in the shape of the operator's result; the network's input may become images."""
    if signal.width != prod(made[1:]):
        raise InputError(f"makes {made} of {signal.full(ROWS)}; samples must not be mixed")
    if signal.full(ROWS) == made:
        return signal
    if len(made) == 2:
        return signal.flattened()
    return signal.become(made[1:]) if signal.lies is None else replace(signal, shape=made[1:])


def slice_axis(signal: Signal, dim: int, start: int | None, end: int | None, step: int) -> Signal:
    """Return the numbers between two positions, in steps."""
    bounds = slice(start, end, step)
    if dim % signal.rank == 0 and bounds.indices(_ENDLESS) == (0, _ENDLESS, 1):
        return signal
    return _positions(signal, dim, bounds)


def narrow(signal: Signal, dim: int, start: int, length: int) -> Signal:
    """Return some numbers from a position on, which is counted from the end where it is below 0."""
    axis = check_axis(signal, dim)
    return take(signal, axis, np.arange(signal.shape[axis - 1])[start:][:length])


def _positions(signal: Signal, axis: int, bounds: slice) -> Signal:
    axis = check_axis(signal, axis)
    return take(signal, axis, np.arange(signal.shape[axis - 1])[bounds])


def select(signal: Signal, dim: int, index: Any) -> Signal:
    """Return the numbers at one position, or at several."""
    return take(signal, dim, np.asarray(index) if isinstance(index, int) else host_array("index", index))


def index(signal: Signal, indices: Sequence[Any]) -> Signal:
    """Return the numbers at some positions along one axis."""
    places = [place for place, each in enumerate(indices) if each is not None]
    if len(places) != 1:
        raise InputError(f"takes numbers along {len(places)} axes together; one is supported")
    return take(signal, places[0], host_array("index", indices[places[0]]))


def split(
    signal: Signal, dim: int, split_size: Any = None, split_sizes: Any = None, chunks: Any = None
) -> list[Signal]:
    """Return pieces of a size, of sizes of their own, or a number of pieces."""
    axis = check_axis(signal, dim)
    width = signal.shape[axis - 1]
    sizes = -(-width // chunks) if chunks is not None else split_size if split_sizes is None else split_sizes
    if isinstance(sizes, int):
        sizes = [min(sizes, width - first) for first in range(0, width, sizes)]
    return [_positions(signal, axis, slice(first, last)) for first, last in pairwise(np.cumsum([0, *sizes]).tolist())]


def permute(signal: Signal, dims: Sequence[int]) -> Signal:
    """Return a signal with its axes in another order."""
    axes = [axis % signal.rank for axis in dims]
    if axes[0] != 0:
        raise InputError(f"puts the rows of {signal} along another axis; samples must not be mixed")
    return transpose(signal, axes)


def transposed(signal: Signal, dim0: int, dim1: int) -> Signal:
    """Return a signal with two axes in each other's place."""
    axes = list(range(signal.rank))
    axes[dim0], axes[dim1] = axes[dim1], axes[dim0]
    return permute(signal, axes)


def shuffle(signal: Signal, groups: int) -> Signal:
    """Return images with the first channel of each group, then the second of each, and so on."""
    channels, *_ = signal.picture
    return take(signal, 1, np.arange(channels).reshape(groups, -1).T.ravel())
