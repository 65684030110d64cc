"""From COO in any order to sorted CSR on the device: histogram, scan, binning, sort, each with its rungs.

The functions do what their namesakes in `sparsenn.formats.conversion` do, over device arrays.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from sparsenn.backends.cuda.loader import Program, cupy, program
from sparsenn.backends.cuda.recorder import launch
from sparsenn.formats import COO, CSC, CSR, Array, index_dtype
from sparsenn.formats.compressed import Compressed

__all__ = [
    "INDEX_TYPES",
    "binning_atomic",
    "binning_warp_match",
    "blocks_for",
    "compress",
    "coo_to_csc",
    "coo_to_csr",
    "csc_to_csr",
    "histogram_atomic",
    "histogram_warp_match",
    "index_type",
    "scan_single_block",
    "scan_two_level",
    "sort_bitmap_rank",
    "sort_exchange",
]

Target = TypeVar("Target", bound=Compressed)

INDEX_TYPES = ("index16", "index32")
"""What `common.cuh` calls uint16 and int32."""

THREADS = 256
MOST_BLOCKS = 1 << 16
"""More than fill any device; kernels that go through their entries in strides need no more."""

SCAN_THREADS, SCAN_ITEMS = 256, 4
SCAN_ONE_THREADS = 1024
SORT_THREADS, SORT_WINDOW = 128, 1 << 15
"""A window of 32,768 indices takes 8 KiB of shared memory: rows that wide are sorted in one go, and shared memory is
not what limits the blocks of a multiprocessor."""

_HISTOGRAM_ATOMIC = program("conversion/histogram/01_atomic.cu", KEY=INDEX_TYPES)
_HISTOGRAM_MATCH = program("conversion/histogram/02_warp_match.cu", KEY=INDEX_TYPES)
_SCAN_ONE = program("conversion/scan/01_single_block.cu", THREADS=(SCAN_ONE_THREADS,))
_SCAN_TWO = program("conversion/scan/02_two_level.cu", THREADS=(SCAN_THREADS,), ITEMS=(SCAN_ITEMS,))
_BINNING_ATOMIC = program("conversion/binning/01_atomic.cu", KEY=INDEX_TYPES, INDEX=INDEX_TYPES)
_BINNING_MATCH = program("conversion/binning/02_warp_match.cu", KEY=INDEX_TYPES, INDEX=INDEX_TYPES)
_SORT_EXCHANGE = program("conversion/sort/01_exchange.cu", INDEX=INDEX_TYPES)
_SORT_RANK = program(
    "conversion/sort/02_bitmap_rank.cu", INDEX=INDEX_TYPES, THREADS=(SORT_THREADS,), WINDOW=(SORT_WINDOW,)
)


def index_type(indices: Array) -> str:
    """Return what `common.cuh` calls the type of an array of indices."""
    return INDEX_TYPES[0] if indices.dtype == np.uint16 else INDEX_TYPES[1]


def blocks_for(items: int, per_block: int) -> int:
    """Return how many blocks take `items`, `per_block` each, in strides if they are very many."""
    return min(MOST_BLOCKS, -(-items // per_block))


def histogram_atomic(keys: Array, groups: int) -> Array:
    """Count how often each group occurs among `keys`; returns (groups,) int64. A thread an entry."""
    return _histogram(_HISTOGRAM_ATOMIC, keys, groups)


def histogram_warp_match(keys: Array, groups: int) -> Array:
    """Count how often each group occurs among `keys`; returns (groups,) int64. Equal keys of a warp count together."""
    return _histogram(_HISTOGRAM_MATCH, keys, groups)


def _histogram(source: Program, keys: Array, groups: int) -> Array:
    counts: Array = cupy().zeros(groups, np.int64)
    if keys.size:
        kernel = source.kernel("histogram", KEY=index_type(keys))
        grid = (blocks_for(keys.size, THREADS),)
        launch("histogram", kernel, grid, (THREADS,), np.int64(keys.size), keys, counts)
    return counts


def scan_single_block(counts: Array) -> Array:
    """Exclusive prefix sum of (groups,) int64; returns (groups + 1,) offsets. One block adds up all."""
    offsets: Array = cupy().empty(counts.size + 1, np.int64)
    kernel = _SCAN_ONE.kernel("scan")
    launch("scan", kernel, (1,), (SCAN_ONE_THREADS,), np.int64(counts.size), counts, offsets)
    return offsets


def scan_two_level(counts: Array) -> Array:
    """Exclusive prefix sum of (groups,) int64; returns (groups + 1,) offsets. All blocks scan a tile each."""
    cp = cupy()
    groups, tiles = np.int64(counts.size), -(-counts.size // (SCAN_THREADS * SCAN_ITEMS))
    offsets: Array = cp.zeros(counts.size + 1, np.int64)
    sums = cp.empty(tiles, np.int64)
    block = (SCAN_THREADS,)
    launch("scan", _SCAN_TWO.kernel("sum_tiles"), (tiles,), block, groups, counts, sums)
    launch("scan", _SCAN_TWO.kernel("scan_sums"), (min(1, tiles),), block, np.int64(tiles), sums)
    launch("scan", _SCAN_TWO.kernel("apply"), (tiles,), block, groups, counts, sums, offsets)
    return offsets


def binning_atomic(keys: Array, payload: Array, values: Array, offsets: Array) -> tuple[Array, Array]:
    """Move each (payload, value) into the range of its key, in any order. A thread an entry.

    keys, payload : (nnz,). values : (nnz,) float32, or (1,) when one value serves all: it then stays one value.
    offsets : (groups + 1,) int64, from a scan.
    """
    return _binning(_BINNING_ATOMIC, keys, payload, values, offsets)


def binning_warp_match(keys: Array, payload: Array, values: Array, offsets: Array) -> tuple[Array, Array]:
    """Move each (payload, value) into the range of its key, in any order; see `binning_atomic`.

    Lanes of a warp with equal keys take their places together.
    """
    return _binning(_BINNING_MATCH, keys, payload, values, offsets)


def _binning(source: Program, keys: Array, payload: Array, values: Array, offsets: Array) -> tuple[Array, Array]:
    cp = cupy()
    iso = values.size == 1
    binned = cp.empty_like(payload)
    moved = values if iso else cp.empty_like(values)
    if keys.size:
        kernel = source.kernel("binning", KEY=index_type(keys), INDEX=index_type(payload))
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
        kernel = _SORT_EXCHANGE.kernel("sort", INDEX=index_type(indices))
        grid = (-(-groups // THREADS),)
        launch("sort", kernel, grid, (THREADS,), np.int32(groups), offsets, indices, values, np.int32(iso))
    return indices, values


def sort_bitmap_rank(offsets: Array, indices: Array, values: Array, width: int) -> tuple[Array, Array]:
    """Sort each group's entries, whose indices must differ; see `sort_exchange`. A block a group, by a bitmap."""
    cp = cupy()
    iso = values.size == 1
    ordered, moved = cp.empty_like(indices), values if iso else cp.empty_like(values)
    if indices.size:
        groups = offsets.size - 1
        kernel = _SORT_RANK.kernel("sort", INDEX=index_type(indices))
        sizes = np.int32(groups), np.int32(width)
        arguments = (*sizes, offsets, indices, values, np.int32(iso), ordered, moved)
        launch("sort", kernel, (min(MOST_BLOCKS, groups),), (SORT_THREADS,), *arguments)
    return ordered, moved


def compress(target: type[Target], shape: tuple[int, int], major: Array, minor: Array, values: Array) -> Target:
    """Group entries by `major`, sorted by `minor`, with the fastest rung of each step."""
    offsets = scan_two_level(histogram_warp_match(major, shape[target.major_axis]))
    indices, moved = binning_warp_match(major, minor, values, offsets)
    return target(shape, offsets, *sort_bitmap_rank(offsets, indices, moved, shape[1 - target.major_axis]))


def coo_to_csr(matrix: COO) -> CSR:
    """Convert to CSR with sorted rows. Indices must be in range and no position given twice."""
    return compress(CSR, matrix.shape, matrix.rows, matrix.columns, matrix.values)


def coo_to_csc(matrix: COO) -> CSC:
    """Convert to CSC with sorted columns. Indices must be in range and no position given twice."""
    return compress(CSC, matrix.shape, matrix.columns, matrix.rows, matrix.values)


def csc_to_csr(matrix: CSC) -> CSR:
    """Convert to CSR with sorted rows."""
    cp = cupy()
    entries = cp.arange(matrix.nnz, dtype=np.int64)
    columns = (cp.searchsorted(matrix.indptr, entries, side="right") - 1).astype(index_dtype(matrix.shape[1]))
    return compress(CSR, matrix.shape, matrix.indices, columns, matrix.values)
