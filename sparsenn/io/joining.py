"""Signals of a model that become one: sums and concatenations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.io.affine import Scaling
from sparsenn.io.branches import Node
from sparsenn.io.signal import Signal
from sparsenn.layers import Add, CombiningLayer

__all__ = ["joined"]


def joined(signals: Sequence[Signal], layer: CombiningLayer) -> Signal:
    """Return what a layer makes of several signals.

    Parameters
    ----------
    signals : as many as the layer joins, in order.

    Raises
    ------
    ShapeError
        The layer does not join their shapes.
    InputError
        Their rows lie along other axes, or it adds numbers that lie in different orders.
    """
    first = signals[0]
    for signal in signals:
        if signal.axis != first.axis:
            raise InputError(f"it joins {first} and {signal}, whose rows lie along other axes")
    shape = layer.combined_shape([signal.shape for signal in signals])
    settled = [signal.flushed() for signal in signals]
    are_images = [signal.image is not None or len(signal.lies or ()) == 3 for signal in settled]
    if any(are_images) or all(signal.lies is None and signal.is_image for signal in settled):
        settled = [signal.images() if signal.lies is None and signal.is_image else signal for signal in settled]
    if not all(signal.is_image for signal in settled):
        settled = [signal.flat() for signal in settled]
        if all(signal.node is None for signal in settled):
            settled[0] = settled[0].settled()  # by which a network knows the width of its rows
    first = settled[0]
    if len({signal.image for signal in settled}) > 1:
        raise InputError("it joins images with rows of features made from the same inputs")
    orders = [_order(signal) for signal in settled]
    if isinstance(layer, Add):
        order = orders[0]
        if not all(np.array_equal(each, order) for each in orders):
            raise InputError(f"it adds several of {first}, which hold their numbers in different orders")
    else:
        starts = np.cumsum([0, *(each.size for each in orders[:-1])])
        order = np.concatenate([each + start for each, start in zip(orders, starts, strict=True)])
    lies = layer.combined_shape([signal.lies for signal in settled if signal.lies])
    node = Node(layer, tuple(signal.node for signal in settled))
    same = np.array_equal(order, np.arange(order.size))
    return replace(first, shape=shape, lies=lies, node=node, pending=Scaling(), order=None if same else order)


def _order(signal: Signal) -> Array:
    """Return for each number of a tensor's row its place in a row as the layers have it."""
    return np.arange(signal.width) if signal.order is None else signal.order
