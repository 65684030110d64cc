"""Taps of convolutions: which filters walk them together, how input channels are cut, and their lists.

A *tap* is a weight of a filter that is not zero. Filters go in pairs, each along its own taps; four that have most taps
in common walk them together, so that a pixel that is loaded serves all four.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparsenn.backends.cpu.filter_tiles import MOST_VECTORS, SHARING
from sparsenn.backends.cpu.tiles import VECTOR
from sparsenn.backends.sizes import FLOAT_BYTES
from sparsenn.formats import Array
from sparsenn.layers import Conv2d

CUT_TAPS = 12
"""Taps of a filter, on average, in a cut of the input channels: storing and loading sums then take little beside."""

CUT_BYTES = 48 << 10
"""Bytes that a tile of lanes reads of the channels of a cut, at most: about those of a first-level cache."""

WINDOW, CUT_WINDOW = 8, 128
"""Filters that are paired among themselves, and that a thread takes together; the second where input channels are cut.

Filters of a pair have about as many taps. In the cuts of many filters, pairs have about as many as those before them: a
processor predicts where such loops end.
"""

SHARED = 0.5
"""Filters walk together where that many of their weights at common taps, as a share, are not zero."""


def shared_taps(weights: Array, per_group: int) -> Iterator[tuple[int, Array, Array]]:
    """Cut filters, (filters, weights of a filter) float32, into blocks of one group, whose taps are walked together.

    Yielded are a block's first filter, its taps, (taps,) int64, numbers within a filter, and its weights, (filters,
    taps).
    """
    for group in range(0, weights.shape[0], per_group):
        for first in range(group, group + per_group, SHARING):
            some = weights[first : min(first + SHARING, group + per_group)]
            taps = np.flatnonzero(some.any(axis=0))
            if some.shape[0] == SHARING and np.count_nonzero(some) >= SHARED * SHARING * taps.size:
                yield first, taps, some[:, taps]
                continue
            for number, alone in enumerate(some, start=first):
                taps = np.flatnonzero(alone)
                yield number, taps, alone[None, taps]


def work_of(layer: Conv2d) -> int:
    """Return the multiply-adds of a pixel of all outputs."""
    blocks = shared_taps(layer.weights.reshape(layer.filters, -1), layer.filters // layer.groups)
    return sum(weights.size for _, _, weights in blocks)


def channels_of_cut(channels: int, taps: float, phases: int, reach: int, lanes: int) -> int:
    """Return how many input channels of a convolution go together.

    taps : of a filter, on average. phases : of a channel. reach : numbers from the first to the last line that an
    output meets. lanes : of all images.
    """
    read = FLOAT_BYTES * phases * min(lanes, MOST_VECTORS * VECTOR + reach)
    size = 1
    while size < channels and (taps * size < CUT_TAPS * channels or 2 * size * read <= CUT_BYTES):
        size *= 2
    return min(size, channels)


class Taps:
    """Lists of taps, one behind the other."""

    def __init__(self) -> None:
        self._shifts: list[Array] = []
        self._weights: list[Array] = []
        self._size = 0

    def add(self, shifts: Array, weights: Array) -> tuple[int, int]:
        """Add some taps, weights (filters, taps); return the first and the last."""
        first, self._size = self._size, self._size + shifts.size
        self._shifts.append(shifts.astype(np.int32))
        self._weights.append(weights.T.reshape(-1))
        return first, self._size

    def arrays(self) -> tuple[Array, Array]:
        """Return all shifts, int32, and all weights, float32."""
        return (
            np.concatenate([np.zeros(0, np.int32), *self._shifts]),
            np.concatenate([np.zeros(0, np.float32), *self._weights]),
        )
