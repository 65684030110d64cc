"""From COO in any order to sorted CSR on the device, as `sparsenn.formats.conversion` does on the host."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.formats import COO, CSR, Array
from sparsenn.formats.compressed import Compressed

Target = TypeVar("Target", bound=Compressed)

INDEX_TYPES = ("index16", "index32")  # what `common.cuh` calls uint16 and int32

THREADS = 256
MOST_BLOCKS = 1 << 16  # more than fill any device; kernels that go through their entries in strides need no more

SCAN_THREADS = 256  # of a block
SCAN_ITEMS = 4  # of a thread
# Rows up to the width of the window are sorted in one go.
SORT_THREADS = 128  # of a block
SORT_WINDOW = 1 << 15  # indices, in 8 KiB of shared memory: it does not limit the blocks of a multiprocessor

_HISTOGRAM = program("conversion/histogram.cu", KEY=INDEX_TYPES)
_SCAN = program("conversion/scan.cu", THREADS=(SCAN_THREADS,), ITEMS=(SCAN_ITEMS,))
_BINNING = program("conversion/binning.cu", KEY=INDEX_TYPES, INDEX=INDEX_TYPES)
_SORT = program("conversion/sort.cu", INDEX=INDEX_TYPES, THREADS=(SORT_THREADS,), WINDOW=(SORT_WINDOW,))


def index_type(indices: Array) -> str:
    """Return what `common.cuh` calls the type of an array of indices."""
    return INDEX_TYPES[0] if indices.dtype == np.uint16 else INDEX_TYPES[1]


def blocks_for(items: int, per_block: int) -> int:
    """Return how many blocks take `items`, `per_block` each, in strides if they are very many."""
    return min(MOST_BLOCKS, -(-items // per_block))


def histogram(keys: Array, groups: int) -> Array:
    """Count how often each group occurs among `keys`; returns (groups,) int64."""
    counts: Array = cupy().zeros(groups, np.int64)
    if keys.size:
        kernel = _HISTOGRAM.kernel("histogram", KEY=index_type(keys))
        grid = (blocks_for(keys.size, THREADS),)
        launch("histogram", kernel, grid, (THREADS,), np.int64(keys.size), keys, counts)
    return counts


def scan(counts: Array) -> Array:
    """Exclusive prefix sum of (groups,) int64; returns (groups + 1,) offsets."""
    cp = cupy()
    groups, tiles = np.int64(counts.size), -(-counts.size // (SCAN_THREADS * SCAN_ITEMS))
    offsets: Array = cp.zeros(counts.size + 1, np.int64)
    sums = cp.empty(tiles, np.int64)
    block = (SCAN_THREADS,)
    launch("scan", _SCAN.kernel("sum_tiles"), (tiles,), block, groups, counts, sums)
    launch("scan", _SCAN.kernel("scan_sums"), (min(1, tiles),), block, np.int64(tiles), sums)
    launch("scan", _SCAN.kernel("apply"), (tiles,), block, groups, counts, sums, offsets)
    return offsets


def binning(keys: Array, payload: Array, values: Array, offsets: Array) -> tuple[Array, Array]:
    """Move each (payload, value) into the range of its key, in any order; a single value serves all, and stays one."""
    cp = cupy()
    iso = values.size == 1
    binned = cp.empty_like(payload)
    moved = values if iso else cp.empty_like(values)
    if keys.size:
        kernel = _BINNING.kernel("binning", KEY=index_type(keys), INDEX=index_type(payload))
        cursors = cp.zeros(offsets.size - 1, np.int64)
        arguments = (np.int64(keys.size), keys, payload, values, np.int32(iso), offsets, cursors, binned, moved)
        launch("binning", kernel, (blocks_for(keys.size, THREADS),), (THREADS,), *arguments)
    return binned, moved


def sort(offsets: Array, indices: Array, values: Array, width: int) -> tuple[Array, Array]:
    """Sort the entries of each group by index, as new arrays; indices are less than `width`, and differ within a group.

    Where they do not differ, entries are lost, and zeros stand at the group's end.
    """
    cp = cupy()
    iso = values.size == 1
    ordered, moved = cp.zeros_like(indices), values if iso else cp.zeros_like(values)
    if indices.size:
        groups = offsets.size - 1
        kernel = _SORT.kernel("sort", INDEX=index_type(indices))
        sizes = np.int32(groups), np.int32(width)
        arguments = (*sizes, offsets, indices, values, np.int32(iso), ordered, moved)
        launch("sort", kernel, (min(MOST_BLOCKS, groups),), (SORT_THREADS,), *arguments)
    return ordered, moved


def compress(target: type[Target], shape: tuple[int, int], major: Array, minor: Array, values: Array) -> Target:
    """Group entries by `major`, sorted by `minor`. No position may be given twice."""
    offsets = scan(histogram(major, shape[target.major_axis]))
    indices, moved = binning(major, minor, values, offsets)
    return target(shape, offsets, *sort(offsets, indices, moved, shape[1 - target.major_axis]))


def coo_to_csr(matrix: COO) -> CSR:
    """Convert to CSR with sorted rows. Indices must be in range and no position given twice."""
    return compress(CSR, matrix.shape, matrix.rows, matrix.columns, matrix.values)
