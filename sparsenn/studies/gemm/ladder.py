"""The ladder of `gemm`: a product of two random dense matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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
from sparsenn.studies.ladder import Ladder, Settled, Work
from sparsenn.studies.sampling import ALLOWED, allowed_distance, largest_distance, sampled_rows
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


class ProductStage:
    """The whole product. Rows of it, all where it is small, are compared with those of a float64 product.

    Parameters
    ----------
    backend : where the launches run.
    a, b : (rows, depth) and (depth, columns) float32, on the host.
    """

    def __init__(self, backend: Backend, a: Array, b: Array) -> None:
        check_factors(a.shape, b.shape)
        self._backend = backend
        self._given = (backend.place(a), backend.place(b)) if isinstance(backend, CUDABackend) else (a, b)
        self._shape = a.shape[0], b.shape[1]
        few = max(LEAST_ROWS, MULTIPLY_ADDS // b.size)
        self._rows = sampled_rows(a.shape[0], max(ALL_ROWS, few) if a.shape[0] <= ALL_ROWS else few)
        self._expected = _product(a[self._rows], b)
        self._scale = float(np.abs(self._expected).max(initial=0.0)) or 1.0
        largest = _longest(a[self._rows]) * _longest(b.T)
        self._allowed = allowed_distance(a.shape[1], largest) / self._scale
        self.work = Work(
            bytes=4 * (a.size + b.size + a.shape[0] * b.shape[1]), multiply_adds=a.shape[0] * a.shape[1] * b.shape[1]
        )

    def arguments(self, carried: Any) -> tuple[Any, ...]:
        """Return both matrices, on the device."""
        return self._given

    def settle(self, output: Any) -> Settled:
        """Compare the chosen rows; nothing is carried on, and NaN is infinitely far away."""
        distance = largest_distance(
            self._backend, output, self._rows, self._shape, lambda places: self._expected[places]
        )
        error = distance / self._scale
        return Settled(None, error, error <= self._allowed, ALLOWED)


def _product(a: Array, b: Array) -> Array:
    exact = np.empty((a.shape[0], b.shape[1]))
    left = a.astype(np.float64)
    for first, last in chunks(b.shape[1], max(1, PIECE // b.shape[0])):
        np.matmul(left, b[:, first:last].astype(np.float64), out=exact[:, first:last])
    return exact


def _longest(rows: Array) -> float:
    """Return the largest Euclidean length of a row; the products of two rows add up to no more than that of theirs."""
    return float(np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64).max(initial=0.0)))


def _stages(backend: Backend, a: Array, b: Array) -> Iterator[ProductStage]:
    yield ProductStage(backend, a, b)


def _modelled(a: Array, b: Array) -> tuple[Geometry, int, int]:
    (rows, depth), columns = a.shape, b.shape[1]
    return product_geometry(rows, depth, columns), 1, b.itemsize


LADDER = Ladder(
    "gemm",
    "product",
    _stages,
    rungs={
        "reference": (REFERENCE,),
        "cpu": (SEQUENTIAL, BLAS),
        "emulated": own.KERNELS,
        "cuda": (*plain.KERNELS, *tensor.KERNELS, plain.LIBRARY),  # the last is no rung, but what they are held against
    },
    problem=random_problem,
    sizes=(1024, 1024, 1024),
    emulated_sizes=(100, 70, 90),
    form="m,k,n",
    row_count=lambda a, b: int(a.shape[0]),
    modelled=_modelled,
    scaled=True,
)
