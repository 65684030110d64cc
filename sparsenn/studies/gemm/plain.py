"""The rungs of gemm in ordinary float32 multiply-adds, and a library's product beside them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.cuda.dense.cublas_lt import MOST_ALIGNED, LtProduct
from sparsenn.backends.cuda.runtime.device import cupy, current_machine
from sparsenn.backends.cuda.runtime.loader import Program, program
from sparsenn.backends.cuda.runtime.recorder import launch, section
from sparsenn.formats import Array
from sparsenn.studies.gemm.kernel import product_kernel
from sparsenn.studies.gemm.tiling import MODEL, TILINGS, cut_for
from sparsenn.studies.traffic import block_tiled, coalesced, naive, shared_tiled, tiled

THREADS = 256
"""Of a block that computes an output a thread, or adds up parts."""

# Tiled rungs.
SIDE = 16  # threads along a side of a tile
EACH = 4  # outputs of a thread along a side of a tile
TERMS = 16  # terms in shared memory at a time

ALIGNMENT = 16  # bytes that four numbers are moved in

_PRODUCTS: dict[tuple[Any, ...], LtProduct] = {}  # by device, precision, sizes and alignments

_NAIVE = program("studies/gemm/kernels/01_naive.cu", THREADS=(THREADS,))
_COALESCED = program("studies/gemm/kernels/02_coalesced.cu", THREADS=(THREADS,))
_BLOCK_TILED = program("studies/gemm/kernels/03_block_tiled.cu", SIDE=(SIDE,), EACH=(EACH,))
_SHARED_TILED = program("studies/gemm/kernels/04_shared_tiled.cu", SIDE=(SIDE,), EACH=(EACH,), TERMS=(TERMS,))
_VECTORIZED = {
    tiling: program(
        "studies/gemm/kernels/05_vectorized.cu",
        QUADS=(1, 0),
        WARPS_DOWN=tiling.warps[:1],
        WARPS_ACROSS=tiling.warps[1:],
        LANES_DOWN=tiling.lanes[:1],
        LANES_ACROSS=tiling.lanes[1:],
    )
    for tiling in TILINGS
}


def launch_vectorized(a: Array, b: Array) -> Array:
    """Compute 8 x 8 outputs a thread, tiles of the factors copied ahead."""
    cp = cupy()
    (rows, depth), columns = a.shape, b.shape[1]
    if not a.size or not b.size:
        return _zeros(rows, columns)
    cut = cut_for(rows, columns, depth, current_machine().multiprocessors)
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


def _launch_library(precision: str, a: Array, b: Array) -> Array:
    """Multiply by cuBLAS; in half precision, matrices are rounded first, and sums are float32."""
    (rows, depth), columns = a.shape, b.shape[1]
    if not a.size or not b.size:
        return _zeros(rows, columns)
    with section("gemm"):
        if precision == "float16":
            a, b = a.astype(np.float16), b.astype(np.float16)
        product: Array = cupy().empty((rows, columns), np.float32)
        factors: tuple[Any, Any] = a, b
        aligned = tuple(min(MOST_ALIGNED, each.data.ptr & -each.data.ptr) for each in factors)
        key = factors[1].device.id, precision, rows, depth, columns, aligned
        if key not in _PRODUCTS:
            _PRODUCTS[key] = LtProduct(key[0], precision, rows, b, np.float32, None, relu=False, aligned=aligned[0])
        _PRODUCTS[key](a, b, product)
    return product


def launch_tiled(source: Program, a: Array, b: Array, tile: int, threads: int, **defines: int) -> Array:
    """Launch a rung whose blocks compute a tile each; a tile of 1 stands for a thread per output."""
    (rows, depth), columns = a.shape, b.shape[1]
    product: Array = cupy().empty((rows, columns), np.float32)
    blocks = blocks_of(rows, columns, tile, threads)
    sizes = np.int32(rows), np.int32(columns), np.int32(depth)
    launch("gemm", source.kernel("gemm", **defines), (blocks,), (threads,), *sizes, a, b, product)
    return product


def blocks_of(rows: int, columns: int, tile: int, threads: int) -> int:
    """Return the blocks that `launch_tiled` launches."""
    tiles = -(-rows // tile) * -(-columns // tile)
    return tiles if tile > 1 else -(-tiles // threads)


def _zeros(rows: int, columns: int) -> Array:
    return cupy().zeros((rows, columns), np.float32)


KERNELS = (
    product_kernel(
        "naive",
        partial(launch_tiled, _NAIVE, tile=1, threads=THREADS),
        "one thread per output, neighbours in different rows",
        traffic=naive,
    ),
    product_kernel(
        "coalesced",
        partial(launch_tiled, _COALESCED, tile=1, threads=THREADS),
        "one thread per output, neighbours side by side",
        traffic=coalesced,
    ),
    product_kernel(
        "block_tiled",
        partial(launch_tiled, _BLOCK_TILED, tile=SIDE * EACH, threads=SIDE * SIDE),
        "squares of outputs in a thread's registers, factors in global memory",
        traffic=tiled(block_tiled, SIDE * EACH),
    ),
    product_kernel(
        "shared_tiled",
        partial(launch_tiled, _SHARED_TILED, tile=SIDE * EACH, threads=SIDE * SIDE),
        "squares of outputs in registers, tiles of the factors in shared memory",
        traffic=tiled(shared_tiled, SIDE * EACH, thread_tile=(EACH, EACH)),
    ),
    product_kernel(
        "vectorized",
        launch_vectorized,
        "four numbers per read, 8 x 8 outputs per thread, tiles copied ahead",
        traffic=MODEL,
    ),
)
"""In the ladder's order."""

LIBRARIES = tuple(
    product_kernel(name, partial(_launch_library, precision), summary, precision=precision)
    for name, precision, summary in (
        ("library", "float32", "cuBLAS's product"),
        ("library_tf32", "tf32", "cuBLAS's product in TF32"),
        ("library_float16", "float16", "cuBLAS's product in half precision, after float32 matrices are rounded"),
    )
)
"""What a library does, for comparison."""
