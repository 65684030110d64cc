"""Rungs of gemm from a file of CUDA C++: launched on a GPU, and emulated on the host."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.loader import Program, source_text
from sparsenn.formats import Array
from sparsenn.studies.emulation import emulated_kernel
from sparsenn.studies.gemm import plain
from sparsenn.studies.gemm.kernel import ProductKernel, check_factors, product_kernel


def own_products(
    name: str, summary: str, source: str | Path, *, threads: int, tile: int = 1, **defines: Any
) -> tuple[ProductKernel, ProductKernel]:
    """Describe two rungs from one source: of a GPU, and emulated.

    Parameters
    ----------
    name, summary : the kernel's idea in a word or two, and in a line.
    source : path of the file, in or from the current folder. Its one kernel is called gemm, and takes rows, columns and
        depth as int, then row-major a (rows, depth), b (depth, columns) and c (rows, columns), pointers to float, the
        last of which it writes.
    threads : of a block.
    tile : rows and columns of c that a block computes; 1 where each thread computes one number.
    defines : what the source is compiled with, besides.
    """
    source = str(Path(source).absolute())
    launch = partial(plain.launch_tiled, Program(source, None), tile=tile, threads=threads, **defines)
    return product_kernel(name, launch, summary), emulated_product(
        name, summary, source, threads=threads, tile=tile, **defines
    )


def emulated_product(
    name: str, summary: str, source: str | Path, *, threads: int, tile: int = 1, **defines: Any
) -> ProductKernel:
    """Describe an emulated rung, with the parameters of `own_products`."""
    launch = partial(_launch, str(source), tile, threads, tuple(sorted(defines.items())))
    return ProductKernel(name=name, device="emulated", summary=summary, launch=launch, needs=("g++",))


def _launch(
    source: str, tile: int, threads: int, defines: tuple[tuple[str, int | str], ...], a: Array, b: Array
) -> Array:
    check_factors(a.shape, b.shape)
    (rows, depth), columns = a.shape, b.shape[1]
    product = np.full((rows, columns), np.nan, np.float32)
    sizes = np.int32(rows), np.int32(columns), np.int32(depth)
    kernel = emulated_kernel(source_text(source), defines, "gemm")
    kernel.launch_apart(plain.blocks_of(rows, columns, tile, threads), threads, product, *sizes, a, b)
    return product


_SUMMARIES = {kernel.name: kernel.summary for kernel in plain.KERNELS}


def _emulated(file: str, **options: int) -> ProductKernel:
    name = file.removesuffix(".cu").partition("_")[2]
    return emulated_product(name, _SUMMARIES[name], f"studies/gemm/kernels/{file}", **options)


_TILED = {"threads": plain.SIDE**2, "tile": plain.SIDE * plain.EACH, "SIDE": plain.SIDE, "EACH": plain.EACH}

KERNELS = (
    _emulated("01_naive.cu", threads=plain.THREADS, THREADS=plain.THREADS),
    _emulated("02_coalesced.cu", threads=plain.THREADS, THREADS=plain.THREADS),
    _emulated("03_block_tiled.cu", **_TILED),
    _emulated("04_shared_tiled.cu", **_TILED, TERMS=plain.TERMS),
)
"""The first rungs of the GPU, in the ladder's order."""
