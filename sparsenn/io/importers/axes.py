"""Axes of a signal in another order, and some numbers of each row: columns, channels, and lines of pixels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.sparse import csc_array

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.io.importers.affine import Convolution, Product, Scaling
from sparsenn.io.importers.signal import Signal
from sparsenn.layers import MaxPool2d, Slice

_CHANNELS_FIRST = [0, 3, 1, 2]
"""The axes of images whose channels come last, with channels first."""


def check_axis(signal: Signal, axis: int) -> int:
    """Return an axis of a tensor, counted from the first one."""
    if not -signal.rank <= axis < signal.rank:
        raise InputError(f"it takes {signal}, which has no axis {axis}")
    if axis % signal.rank == signal.axis:
        raise InputError(
            f"it takes {signal}, and picks rows of it; a network computes all rows alike: leave the selection out, and "
            "make it of the network's inputs or outputs"
        )
    return axis % signal.rank


def take(signal: Signal, axis: int, positions: Array) -> Signal:
    """Return the numbers at positions along an axis, which makes as many axes as the positions have.

    axis : of the tensor, counted from the first one or from the last.
    positions : integers; those below 0 are counted from the end.
    """
    axis = check_axis(signal, axis)
    place = axis - (signal.axis is not None and signal.axis < axis)
    size = signal.shape[place]
    if (signal.axis, len(signal.shape), positions.ndim) == (0, 3, 1) and signal.order is not None:
        first = transpose(signal, _CHANNELS_FIRST)
        if first.lies is not None and not first.is_scattered:  # images whose channels come last
            chosen = take(first, _CHANNELS_FIRST.index(axis), positions)
            return transpose(chosen, [_CHANNELS_FIRST.index(each) for each in range(4)])
    if positions.dtype.kind not in "iu" or not positions.size or ((positions < -size) | (positions >= size)).any():
        raise InputError(f"it takes {signal}, and picks positions along axis {axis} that are not there, or none")
    positions = positions % size
    if np.array_equal(positions, np.arange(size)):
        return signal
    taken = np.arange(signal.width).reshape(signal.shape).take(positions, axis=place)
    if signal.axis is not None and signal.axis > axis:
        signal = replace(signal, axis=signal.axis + positions.ndim - 1)
    if isinstance(signal.pending, Product):
        return _columns(signal, taken.reshape(-1), taken.shape)
    if positions.ndim == 1:
        images = _channels(signal, positions) if place == 0 else _lines(signal, place, positions)
        if images is not None:
            return images
    ones = np.ones(taken.size, np.float32)
    selection = csc_array((ones, (taken.reshape(-1), np.arange(taken.size))), shape=(signal.width, taken.size))
    return signal.product(selection, taken.shape)


def transpose(signal: Signal, axes: list[int]) -> Signal:
    """Return a signal with its axes in another order."""
    if sorted(axes) != list(range(signal.rank)):
        raise InputError(f"it takes {signal}, and puts axes in the order {axes}")
    old = [axis for axis in range(signal.rank) if axis != signal.axis]
    mine = [old.index(axis) for axis in axes if axis != signal.axis]
    places = np.arange(signal.width) if signal.order is None else signal.order
    order = places.reshape(signal.shape).transpose(mine).reshape(-1)
    return replace(
        signal,
        shape=tuple(signal.shape[axis] for axis in mine),
        axis=None if signal.axis is None else axes.index(signal.axis),
        order=None if (order == np.arange(order.size)).all() else order,
    )


def _columns(signal: Signal, taken: Array, shape: tuple[int, ...]) -> Signal:
    """Return what is left of a product that is pending."""
    assert isinstance(signal.pending, Product), "which the caller sees to"
    product, columns = signal.pending, taken if signal.order is None else signal.order[taken]
    bias = np.broadcast_to(np.asarray(product.bias), (product.weights.shape[1],))[columns]
    pending = Product(product.weights[:, columns], bias)
    return replace(signal, shape=shape, pending=pending, lies=(taken.size,), order=None)


def _is_picture(signal: Signal) -> bool:
    """Whether a signal is images for its layers, or a network's input that has the shape of images."""
    if signal.lies is None:
        return signal.is_image and len(signal.shape) == 3
    return signal.axis == 0 and len(signal.shape) in (2, 3) and signal.lies == signal.picture


def _channels(signal: Signal, positions: Array) -> Signal | None:
    """Return some channels of images: neighbours as they are, others by a convolution of single pixels."""
    sources = signal.channels if _is_picture(signal) else None
    if sources is None:
        return None
    images = replace(signal, order=None).images().flushed()
    if images.is_scattered:  # pixels of a channel were scaled by several numbers, which made rows of them
        return None
    chosen, (channels, *pixels) = sources[positions], images.pixels
    if np.all(np.diff(chosen) == 1):
        images = images.then(Slice(int(chosen[0]), int(chosen[-1]) + 1))
    else:
        images = replace(images, pending=Convolution.of_channels(chosen, channels))
    return images.as_image((chosen.size, *pixels))


def _lines(signal: Signal, place: int, positions: Array) -> Signal | None:
    """Return evenly spaced lines or columns of pixels."""
    step = int(positions[1] - positions[0]) if positions.size > 1 else 1
    if step < 1 or np.any(np.diff(positions) != step) or not _is_picture(signal) or signal.channels is None:
        return None
    images, axis = signal.images(), place + 3 - len(signal.shape)
    first, last = int(positions[0]), int(positions[-1]) + 1
    cut = (*images.pixels[:axis], last - first, *images.pixels[axis + 1 :])
    if cut != images.pixels:
        later = images.pending.pooled(images.pixels, cut) if isinstance(images.pending, Scaling) else None
        images = images.flushed() if later is None else images
        if images.is_scattered:  # as in `_channels`
            return None
        images = replace(images.then(Slice(first, last, axis=axis)), pending=later or Scaling()).as_image(cut)
    return images if step == 1 else images.pooled(MaxPool2d(1, (step, 1) if axis == 1 else (1, step)))
