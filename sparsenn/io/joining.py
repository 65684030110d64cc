"""Signals of a model that become one: sums and concatenations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sparsenn.errors import InputError
from sparsenn.formats import Array
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
        Their axes or their numbers lie in different orders.
    """
    settled = [signal.flushed() for signal in signals]
    if any(signal.lies for signal in settled):
        settled = [signal.images() if len(signal.shape) > 1 else signal.flat() for signal in settled]
    first = settled[0]
    if len({signal.image for signal in settled}) > 1:
        raise InputError("it joins images with rows of features made from the same inputs")
    shape = layer.combined_shape([signal.shape for signal in settled])
    for signal in settled:
        same = np.array_equal(_order(signal), _order(first)) if isinstance(layer, Add) else signal.order is None
        if signal.axis != first.axis or len(signal.lies or ()) != len(first.lies or ()) or not same:
            raise InputError(f"it joins {first} and {signal}, which hold their numbers in different orders")
    lies = None if first.lies is None else layer.combined_shape([signal.lies for signal in settled if signal.lies])
    node = Node(layer, tuple(signal.node for signal in settled))
    return replace(first, shape=shape, lies=lies, node=node)


def _order(signal: Signal) -> Array:
    """Return for each number of a tensor's row its place in a row as the layers have it."""
    return np.arange(signal.width) if signal.order is None else signal.order
