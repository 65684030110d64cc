"""Slices of a run's rows, computed side by side on separate streams."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.streams import event
from sparsenn.backends.sizes import parts_of
from sparsenn.runtime.workers import chunks

NOTHING = np.uintp(0)  # a null pointer, as an argument of a kernel

SLICES = 2  # of a chain's rows: the last round of a layer leaves multiprocessors idle; three are no faster


class RowSlices:
    """Slices of a run's rows, each of which goes through the layers on a stream of its own.

    Multiprocessors that have finished a layer of one slice continue with another slice, so that they wait for each
    other once for all layers, not after each. A row must have the same place in a buffer for all layers that write it.
    There are at most `count` slices, each of a multiple of `side` rows.
    """

    def __init__(self, rows: int, side: int, count: int) -> None:
        cuda = cupy().cuda
        self._first, *others = chunks(rows, max(1, parts_of(rows, count * side)) * side) or [(0, 0)]
        self._others = [(bounds, cuda.Stream(non_blocking=True), event()) for bounds in others]

    def enqueue(self, rows: int, enqueue_slice: Callable[[int, int], None]) -> None:
        """Queue `enqueue_slice(first, last)` for all slices; the current stream waits for them, and they for it."""
        others = [(first, min(last, rows), *own) for (first, last), *own in self._others if first < rows]
        if others:
            current, begun = cupy().cuda.get_current_stream(), event()
            begun.record(current)
        for first, last, stream, ended in others:
            with stream:
                stream.wait_event(begun)
                enqueue_slice(first, last)
                ended.record(stream)
        first, last = self._first
        if first < rows:
            enqueue_slice(first, min(last, rows))
        for *_, ended in others:
            current.wait_event(ended)
