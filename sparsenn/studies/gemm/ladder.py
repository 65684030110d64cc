"""The ladder of `gemm`: a product of two random dense matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsenn.backends.contract import Backend
from sparsenn.backends.cuda import CUDABackend
from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.errors import ResourceError, UsageError
from sparsenn.formats import Array
from sparsenn.runtime.workers import chunks
from sparsenn.studies.gemm import own, plain, tensor
from sparsenn.studies.gemm.host import BLAS, REFERENCE, SEQUENTIAL
from sparsenn.studies.gemm.kernel import check_factors
from sparsenn.studies.ladder import Ladder, Work
from sparsenn.studies.sampling import SampledStage, allowed_distance, sampled_rows
from sparsenn.studies.traffic import product_geometry

ALL_ROWS = 2048  # rows up to which all are compared
LEAST_ROWS = 64  # rows that are compared at least

MULTIPLY_ADDS = 1 << 30
"""For which rows are compared, if they are more than `ALL_ROWS` and that leaves `LEAST_ROWS`."""

PIECE = 1 << 23
"""Numbers of b that are multiplied in float64 at a time."""


def random_problem(rows: int, sizes: Sequence[int], seed: int) -> tuple[Array, Array]:
    """Return two float32 matrices of normally distributed numbers."""
    if len(sizes) != 3 or min(sizes) < 1 or seed < 0:
        raise UsageError(
            f"sizes {','.join(map(str, sizes))} and seed {seed} make no product; that takes m,k,n of at least 1 each, "
            "and a seed of at least 0"
        )
    random = np.random.default_rng(seed)
    down, depth, across = sizes
    try:
        a = random.standard_normal((down, depth), np.float32)
        return a, random.standard_normal((depth, across), np.float32)
    except (MemoryError, ValueError) as error:  # NumPy raises the latter for sizes beyond its largest
        raise ResourceError(
            f"matrices of {down:,} x {depth:,} and {depth:,} x {across:,} numbers do not fit into memory; take smaller "
            "--sizes"
        ) from error


class ProductStage(SampledStage):
    """The whole product. Rows of it, all where it is small, are compared with those of a float64 product.

    `a` is (rows, depth) and `b` (depth, columns) float32, on the host.
    """

    def __init__(self, backend: Backend, a: Array, b: Array) -> None:
        check_factors(a.shape, b.shape)
        given = (backend.place(a), backend.place(b)) if isinstance(backend, CUDABackend) else (a, b)
        (down, depth), across = a.shape, b.shape[1]
        few = max(LEAST_ROWS, MULTIPLY_ADDS // b.size)
        rows = sampled_rows(down, max(ALL_ROWS, few) if down <= ALL_ROWS else few)
        allowed = allowed_distance(depth, _longest(a[rows]) * _longest(b.T))
        work = Work(bytes=4 * (a.size + b.size + down * across), multiply_adds=down * depth * across)
        super().__init__(backend, given, rows, (down, across), _product(a[rows], b), allowed, work)


def _product(a: Array, b: Array) -> Array:
    exact = np.empty((a.shape[0], b.shape[1]))
    left = a.astype(np.float64)
    for first, last in chunks(b.shape[1], max(1, PIECE // b.shape[0])):
        np.matmul(left, b[:, first:last].astype(np.float64), out=exact[:, first:last])
    return exact


def _longest(rows: Array) -> float:
    """Return the largest Euclidean length of a row; the products of two rows add up to no more than that of theirs."""
    return float(np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64).max(initial=0.0)))


def _modelled(a: Array, b: Array) -> tuple[Geometry, int, int]:
    (rows, depth), columns = a.shape, b.shape[1]
    return product_geometry(rows, depth, columns), 1, b.itemsize


LADDER = Ladder(
    "gemm",
    "product",
    lambda *problem: (ProductStage(*problem),),
    rungs={
        "reference": (REFERENCE,),
        "cpu": (SEQUENTIAL, BLAS),
        "emulated": own.KERNELS,
        "cuda": (*plain.KERNELS, *tensor.KERNELS, *plain.LIBRARIES),  # rungs are held against the libraries
    },
    problem=random_problem,
    sizes=(1024, 1024, 1024),
    emulated_sizes=(100, 70, 90),
    form="m,k,n",
    row_count=lambda a, b: int(a.shape[0]),
    modelled=_modelled,
    scaled=True,
)
