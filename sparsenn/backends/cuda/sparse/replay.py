"""Runs that are captured once and replayed: what they are given, and parts of their rows.

A chain of layers owns its buffers. Its launches are captured as a graph that reads the number of rows, and where the
inputs are, from a small record on the device; `sparse/begin_run.cu` sets that at the beginning of each run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.streams import event
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import CSR
from sparsenn.runtime.workers import chunks

__all__ = ["CALL_BYTES", "NOTHING", "PARTS", "Call", "Parts"]

CALL_BYTES = 32
"""Of a `Call` record in `sparse/resident.cuh`."""

NOTHING = np.uintp(0)
"""A null pointer, as an argument of a kernel."""

PARTS = 2
"""Of the rows of a chain, where layers have more than some rounds of work: the last round leaves multiprocessors idle.
Three parts are no faster."""

_BEGIN = program("sparse/begin_run.cu")


THREADS = 256
CACHE_LINE = 128

MOST_PREFETCHED = 16 << 20
"""Bytes of weights that are brought into the level 2 cache as a run begins; of more than that, none: they would drive
each other out."""


class Call:
    """The record of what a run is given.

    Parameters
    ----------
    weights : what is read by launches so short that they wait for it, one device array; None where there is no such.

    Attributes
    ----------
    record : device array that begins with it.
    stages : device array that begins with the first `Stage` record of a run that has stages; else a null pointer.
    """

    def __init__(self, weights: Any = None) -> None:
        self.record: Any = cupy().zeros(CALL_BYTES, np.uint8)
        self.stages: Any = NOTHING
        self._kernel = _BEGIN.kernel("begin_run")
        size = 0 if weights is None or weights.nbytes > MOST_PREFETCHED else int(weights.nbytes)
        self._prefetched = (weights if size else NOTHING, np.int64(size))
        self._grid, self._block = (max(1, -(-size // (CACHE_LINE * THREADS))),), (THREADS if size else 1,)

    def begin(self, rows: int, features: Any, weights: Any = None, faults: Any = None) -> None:
        """Queue what sets the record, on the current stream; wait for nothing.

        Parameters
        ----------
        rows : how many there are.
        features : CSR on the device whose entries all have one value; an array of rows; or None where neither is read.
        weights : (rows,) int32 on the device, inputs that each row stands for, for counting; None for one each.
        faults : uint64 on the device, what a check of the rows that is queued finds: if one is not 0, no row is taken;
            None where they have been checked.
        """
        entries: tuple[Any, ...] = (NOTHING, NOTHING, NOTHING)
        matrix: Any = NOTHING
        if isinstance(features, CSR):
            entries = features.indptr, features.indices, features.values if features.values.size else NOTHING
        elif features is not None:
            matrix = features
        stands_for = NOTHING if weights is None else weights
        found = (NOTHING, np.int32(0)) if faults is None else (faults, np.int32(faults.size))
        arguments = (self.record, self.stages, np.int32(rows), *entries, matrix, stands_for, *self._prefetched, *found)
        self._kernel(self._grid, self._block, arguments)


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
