"""The rungs of the conversion steps on a GPU: plain ones, and those that the engine's own conversion is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.cuda.sparse import conversion
from sparsenn.backends.cuda.sparse.conversion import INDEX_TYPES, blocks_for, index_type
from sparsenn.backends.kernel_records import Kernel
from sparsenn.formats import Array

THREADS = 256  # of a block
SCAN_THREADS = 1024  # of the one block that scans

_HISTOGRAM = program("studies/conversion/kernels/histogram_atomic.cu", KEY=INDEX_TYPES)
_SCAN = program("studies/conversion/kernels/scan_single_block.cu", THREADS=(SCAN_THREADS,))
_BINNING = program("studies/conversion/kernels/binning_atomic.cu", KEY=INDEX_TYPES, INDEX=INDEX_TYPES)
_SORT = program("studies/conversion/kernels/sort_exchange.cu", INDEX=INDEX_TYPES)


def histogram_atomic(keys: Array, groups: int) -> Array:
    """Count how often each group occurs among `keys`; returns (groups,) int64. A thread an entry."""
    counts: Array = cupy().zeros(groups, np.int64)
    if keys.size:
        kernel = _HISTOGRAM.kernel("histogram", KEY=index_type(keys))
        grid = (blocks_for(keys.size, THREADS),)
        launch("histogram", kernel, grid, (THREADS,), np.int64(keys.size), keys, counts)
    return counts


def scan_single_block(counts: Array) -> Array:
    """Exclusive prefix sum of (groups,) int64; returns (groups + 1,) offsets. One block adds up all."""
    offsets: Array = cupy().empty(counts.size + 1, np.int64)
    launch("scan", _SCAN.kernel("scan"), (1,), (SCAN_THREADS,), np.int64(counts.size), counts, offsets)
    return offsets


def binning_atomic(keys: Array, payload: Array, values: Array, offsets: Array) -> tuple[Array, Array]:
    """Move each (payload, value) into the range of its key, in any order. A thread an entry; see `binning`."""
    cp = cupy()
    iso = values.size == 1
    binned, moved = cp.empty_like(payload), values if iso else cp.empty_like(values)
    if keys.size:
        kernel = _BINNING.kernel("binning", KEY=index_type(keys), INDEX=index_type(payload))
        cursors = cp.zeros(offsets.size - 1, np.int64)
        arguments = (np.int64(keys.size), keys, payload, values, np.int32(iso), offsets, cursors, binned, moved)
        launch("binning", kernel, (blocks_for(keys.size, THREADS),), (THREADS,), *arguments)
    return binned, moved


def sort_exchange(offsets: Array, indices: Array, values: Array, width: int) -> tuple[Array, Array]:
    """Sort each group's entries by index; returns new (indices, values). A thread a group; indices may repeat.

    offsets : (groups + 1,) int64. indices : (nnz,), less than `width`. values : (nnz,) float32, or (1,).
    """
    iso = values.size == 1
    indices, values = indices.copy(), values if iso else values.copy()
    if indices.size:
        groups = offsets.size - 1
        kernel = _SORT.kernel("sort", INDEX=index_type(indices))
        grid = (-(-groups // THREADS),)
        launch("sort", kernel, grid, (THREADS,), np.int32(groups), offsets, indices, values, np.int32(iso))
    return indices, values


def _rung(operation: str, name: str, launch_rung: Callable[..., Any], summary: str, *needs: str) -> Kernel:
    return Kernel(
        operation=operation, name=name, device="cuda", summary=summary, launch=launch_rung, needs=(ANY_GPU, *needs)
    )


KERNELS = (
    _rung("histogram", "atomic", histogram_atomic, "one thread per entry, an atomic addition each"),
    _rung("histogram", "warp_match", conversion.histogram, "equal keys of a warp are counted together"),
    _rung("scan", "single_block", scan_single_block, "one block, tile after tile"),
    _rung("scan", "two_level", conversion.scan, "every block sums, then scans its tile"),
    _rung("binning", "atomic", binning_atomic, "one thread per entry, which claims its place by an atomic addition"),
    _rung("binning", "warp_match", conversion.binning, "equal keys of a warp take their places together"),
    _rung("sort", "exchange", sort_exchange, "one thread per row, exchanging neighbours"),
    _rung(
        "sort",
        "bitmap_rank",
        conversion.sort,
        "one block per row, ranks counted in a bitmap",
        "no index twice in a row",
    ),
)
"""Each step's, plain to fast."""
