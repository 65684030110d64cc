"""Parts of a run's rows, side by side on streams of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.streams import event
from sparsenn.backends.sizes import parts_of
from sparsenn.runtime.workers import chunks

__all__ = ["NOTHING", "PARTS", "Parts"]

NOTHING = np.uintp(0)
"""A null pointer, as an argument of a kernel."""

PARTS = 2
"""Of the rows of a chain, where layers have more than some rounds of work: the last round leaves multiprocessors idle.
Three parts are no faster."""


class Parts:
    """Parts of a run's rows, each of which goes through the layers for itself, beside the others.

    Multiprocessors that have finished a layer of one part go on with another part, so that they wait for each other
    once for all layers, not after each. A row must have the same place in a buffer for all layers that write it.

    Parameters
    ----------
    rows : of a run, at most.
    side : rows that are laid out together; a part has a multiple of that.
    count : of parts, at most.
    """

    def __init__(self, rows: int, side: int, count: int) -> None:
        cuda = cupy().cuda
        self._first, *others = chunks(rows, max(1, parts_of(rows, count * side)) * side) or [(0, 0)]
        self._others = [(part, cuda.Stream(non_blocking=True), event()) for part in others]

    def enqueue(self, rows: int, enqueue_part: Callable[[int, int], None]) -> None:
        """Queue all parts on streams that leave the current one and come back to it.

        Parameters
        ----------
        rows : of the run.
        enqueue_part : queues a part's layers on the current stream, given its first row and the row behind its last.
        """
        others = [(first, min(last, rows), *own) for (first, last), *own in self._others if first < rows]
        if others:
            current, begun = cupy().cuda.get_current_stream(), event()
            begun.record(current)
        for first, last, stream, ended in others:
            with stream:
                stream.wait_event(begun)
                enqueue_part(first, last)
                ended.record(stream)
        first, last = self._first
        if first < rows:
            enqueue_part(first, min(last, rows))
        for *_, ended in others:
            current.wait_event(ended)
