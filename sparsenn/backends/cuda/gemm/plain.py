"""The rungs of gemm in ordinary float32 multiply-adds, and a library's product beside them.

A launch takes matrices a and b, CuPy arrays (rows, depth) and (depth, columns) of float32 in row-major order, and
returns their product, a new CuPy array (rows, columns) of float32. It queues its work on the current stream and does
not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsenn.backends.cuda.gemm.tiling import TILINGS, cut_for
from sparsenn.backends.cuda.loader import Program, cupy, program
from sparsenn.backends.cuda.recorder import launch, part
from sparsenn.backends.cuda.sparse.tiling import device_limits
from sparsenn.formats import Array

__all__ = [
    "LIBRARY",
    "RUNGS",
    "Rung",
    "launch_block_tiled",
    "launch_coalesced",
    "launch_library",
    "launch_naive",
    "launch_shared_tiled",
    "launch_vectorized",
]

THREADS = 256
"""Of a block that computes an output a thread, or adds up parts."""

SIDE, EACH, TERMS = 16, 4, 16
"""Tiled rungs: threads along a side of a tile, outputs of a thread likewise, and terms in shared memory at a time."""

ALIGNMENT = 16
"""Bytes that four numbers are moved in."""

_NAIVE = program("gemm/01_naive.cu", THREADS=(THREADS,))
_COALESCED = program("gemm/02_coalesced.cu", THREADS=(THREADS,))
_BLOCK_TILED = program("gemm/03_block_tiled.cu", SIDE=(SIDE,), EACH=(EACH,))
_SHARED_TILED = program("gemm/04_shared_tiled.cu", SIDE=(SIDE,), EACH=(EACH,), TERMS=(TERMS,))
_VECTORIZED = {
    tiling: program(
        "gemm/05_vectorized.cu", QUADS=(1, 0), **{name: (value,) for name, value in tiling.defines().items()}
    )
    for tiling in TILINGS
}

Rung = tuple[str, Callable[[Array, Array], Array], str]


def launch_naive(a: Array, b: Array) -> Array:
    """Compute an output a thread, rows along the lanes."""
    return _launch(_NAIVE, a, b, 1, THREADS)


def launch_coalesced(a: Array, b: Array) -> Array:
    """Compute an output a thread, columns along the lanes."""
    return _launch(_COALESCED, a, b, 1, THREADS)


def launch_block_tiled(a: Array, b: Array) -> Array:
    """Compute several outputs a thread, read from global memory."""
    return _launch(_BLOCK_TILED, a, b, SIDE * EACH, SIDE * SIDE)


def launch_shared_tiled(a: Array, b: Array) -> Array:
    """Compute several outputs a thread, read from shared memory."""
    return _launch(_SHARED_TILED, a, b, SIDE * EACH, SIDE * SIDE)


def launch_vectorized(a: Array, b: Array) -> Array:
    """Compute 8 x 8 outputs a thread, tiles of the factors copied ahead."""
    cp = cupy()
    (rows, depth), columns = a.shape, b.shape[1]
    if not a.size or not b.size:
        return _zeros(rows, columns)
    cut = cut_for(rows, columns, depth, device_limits(cp.cuda.runtime.getDevice()).multiprocessors)
    pointer: Any = b.data
    quads = int(columns % 4 == 0 and pointer.ptr % ALIGNMENT == 0)
    source = _VECTORIZED[cut.tiling]
    product: Array = cp.empty((rows, columns), np.float32)
    sums = product if cut.parts == 1 else cp.empty((cut.parts, rows, columns), np.float32)
    grid = cut.tiling.tiles(rows, columns), cut.parts
    sizes = np.int32(rows), np.int32(columns), np.int32(depth), np.int32(cut.deep)
    launch("gemm", source.kernel("gemm", QUADS=quads), grid, (cut.tiling.threads,), *sizes, a, b, sums)
    if cut.parts > 1:
        given = np.int64(product.size), np.int32(cut.parts), sums, product
        launch("gemm", source.kernel("add_parts", QUADS=quads), (-(-product.size // THREADS),), (THREADS,), *given)
    return product


def launch_library(a: Array, b: Array) -> Array:
    """Compute the product by cuBLAS."""
    if not a.size or not b.size:
        return _zeros(a.shape[0], b.shape[1])
    with part("gemm"):
        product: Array = cupy().matmul(a, b)
    return product


def _launch(source: Program, a: Array, b: Array, tile: int, threads: int) -> Array:
    """Launch a rung with a block for each tile, or, if those are single outputs, for each `threads` outputs."""
    (rows, depth), columns = a.shape, b.shape[1]
    product: Array = cupy().empty((rows, columns), np.float32)
    tiles = -(-rows // tile) * -(-columns // tile)
    blocks = tiles if tile > 1 else -(-tiles // threads)
    sizes = np.int32(rows), np.int32(columns), np.int32(depth)
    launch("gemm", source.kernel("gemm"), (blocks,), (threads,), *sizes, a, b, product)
    return product


def _zeros(rows: int, columns: int) -> Array:
    zeros: Array = cupy().zeros((rows, columns), np.float32)
    return zeros


RUNGS: tuple[Rung, ...] = (
    ("naive", launch_naive, "a thread an output, neighbours in different rows"),
    ("coalesced", launch_coalesced, "a thread an output, neighbours side by side"),
    ("block_tiled", launch_block_tiled, "squares of outputs in a thread's registers, factors in global memory"),
    ("shared_tiled", launch_shared_tiled, "squares of outputs in registers, tiles of the factors in shared memory"),
    ("vectorized", launch_vectorized, "four numbers a read, 8 x 8 outputs a thread, tiles copied ahead"),
)
"""Name, launch and summary, in the ladder's order."""

LIBRARY: Rung = ("library", launch_library, "cuBLAS's product")
"""What a library does, for comparison."""
