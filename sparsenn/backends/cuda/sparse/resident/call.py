"""The `Call` record of a resident run: on the device, read by the graph of its launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.sparse.resident.stages import CACHE_BYTES
from sparsenn.backends.cuda.sparse.row_slices import NOTHING
from sparsenn.formats import CSR

CALL_BYTES = 32  # size of a `Call` record in `sparse/resident.cuh`, in bytes

THREADS = 256
CACHE_LINE = 128  # bytes

_BEGIN = program("sparse/begin_run.cu")


class Call:
    """The `Call` record of a run, on the device; set `stages`, the first `Stage` record, before a run.

    `weights` share a block, in that order: launches are so short that they would wait for them. A run zeroes `tallies`.
    """

    stages: Any

    def __init__(self, weights: Sequence[Any], tallies: Any) -> None:
        self.record: Any = cupy().zeros(CALL_BYTES, np.uint8)
        self._kernel = _BEGIN.kernel("begin_run")
        every = int(weights[-1].data.ptr + weights[-1].nbytes - weights[0].data.ptr)
        size = every if every <= CACHE_BYTES else 0  # which a run begins by bringing into the L2 cache
        self._always = weights[0], np.int64(size), tallies, np.int32(tallies.size)
        self._grid = (max(1, -(-size // (CACHE_LINE * THREADS))),)

    def begin(self, rows: int, features: Any, weights: Any = None, faults: Any = None) -> None:
        """Queue what sets the record, on the current stream; wait for nothing.

        `weights`, int32, are inputs per row, for counting. If one of `faults`, uint64, is not 0, no row is taken.
        """
        entries: tuple[Any, ...] = (NOTHING, NOTHING, NOTHING)
        matrix: Any = NOTHING
        if isinstance(features, CSR):
            entries = features.indptr, features.indices, features.values if features.values.size else NOTHING
        elif features is not None:
            matrix = features
        stands_for = NOTHING if weights is None else weights
        found = (NOTHING, np.int32(0)) if faults is None else (faults, np.int32(faults.size))
        arguments = (self.record, self.stages, np.int32(rows), *entries, matrix, stands_for, *self._always, *found)
        self._kernel(self._grid, (THREADS,), arguments)
