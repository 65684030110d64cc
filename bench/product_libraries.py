"""One sparse layer's product by NVIDIA's libraries: cuSPARSE in every way that it offers, and dense cuBLAS."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cupy as cp
import cupyx.scipy.sparse
import numpy as np
from cupy_backends.cuda.libs import cusparse as library
from cupyx import cusparse
from event_timing import Timing, timed

from sparsenn.formats import CSC

TRIAL_ROWS = 2048
"""Rows on which cuSPARSE's ways are compared; the fastest is timed on all."""

FLOAT32 = 0
"""CUDA_R_32F"""


class CuSparse:
    """Y · W by cusparseSpMM as Wᵀ · Yᵀ, in every way that the layouts of Y and of W allow."""

    WAYS = ("rows", "transposed", "neurons", "neurons, CSR_ALG2", "W by row")

    def __init__(self, sparse: CSC, features: Any) -> None:
        width = sparse.shape[0]
        arrays = (sparse.values, sparse.indices.astype(np.int32), sparse.indptr.astype(np.int32))
        self.transposed = cupyx.scipy.sparse.csr_matrix(arrays, shape=(width, width))
        self.by_row = None
        self.features = features  # (rows, inputs), row-major
        self.neurons = cp.ascontiguousarray(features.T)  # (inputs, rows), row-major
        self.out = cp.empty((features.shape[0], width), np.float32)
        self.out_neurons = cp.empty((width, features.shape[0]), np.float32)

    def call(self, way: str) -> Callable[[], Any]:
        """Return a call that computes the product, as (rows, outputs)."""
        if way == "rows":
            return lambda: cusparse.spmm(self.transposed, self.features.T, c=self.out.T).T
        if way == "transposed":
            return lambda: cusparse.spmm(self.transposed, self.neurons.T, c=self.out.T, transb=True).T
        if way == "W by row":
            if self.by_row is None:
                self.by_row = self.transposed.T.tocsr()
            return lambda: cusparse.spmm(self.by_row, self.features.T, c=self.out.T, transa=True).T
        return self._row_order(0 if way == "neurons" else 6)  # CUSPARSE_SPMM_ALG_DEFAULT, CUSPARSE_SPMM_CSR_ALG2

    def _row_order(self, algorithm: int) -> Callable[[], Any]:
        """Both dense matrices neuron-major, which CuPy's own function does not offer."""
        weights = cusparse.SpMatDescriptor.create(self.transposed)
        given, product = _row_major(self.neurons), _row_major(self.out_neurons)
        one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
        handle = cp.cuda.device.get_cusparse_handle()
        scales = one.ctypes.data, zero.ctypes.data
        common = (0, 0, scales[0], weights.desc, given.desc, scales[1], product.desc, FLOAT32, algorithm)
        buffer = cp.empty(max(1, library.spMM_bufferSize(handle, *common)), np.int8)

        def run(kept: object = (weights, given, product, one, zero)) -> Any:
            library.spMM(handle, *common, buffer.data.ptr)
            return self.out_neurons.T

        return run


def _row_major(matrix: Any) -> Any:
    rows, columns = matrix.shape
    order = library.CUSPARSE_ORDER_ROW
    descriptor = library.createDnMat(rows, columns, columns, matrix.data.ptr, FLOAT32, order)
    return cusparse.DnMatDescriptor(descriptor, library.dnMatGet, library.destroyDnMat)


def usable_ways(sparse: CSC, dense: Any, features: Any) -> list[str]:
    """Return cuSPARSE's ways, the fastest on a part of the rows first; those that fail or are wrong are left out."""
    rows = features[:TRIAL_ROWS]
    right = rows @ dense
    peer = CuSparse(sparse, rows)
    found = []
    for way in CuSparse.WAYS:
        try:
            call = peer.call(way)
            if not bool(cp.allclose(call(), right, rtol=1e-3, atol=1e-2)):
                raise ArithmeticError("wrong product")
            found.append((timed(call, 5).median, way))
        except Exception as error:
            print(f"cuSPARSE, {way}: left out: {error}", file=sys.stderr)
    return [way for _, way in sorted(found)]


def time_cusparse(sparse: CSC, dense: Any, features: Any, runs: int) -> tuple[Timing, str]:
    """Return the time of the fastest way, and which it is."""
    way = usable_ways(sparse, dense, features)[0]
    return timed(CuSparse(sparse, features).call(way), runs), way


def time_cublas(dense: Any, features: Any, runs: int) -> Timing:
    """Time the dense float32 product; CuPy leaves TF32 off unless the environment asks for it."""
    out = cp.empty((features.shape[0], dense.shape[1]), np.float32)
    return timed(lambda: cp.matmul(features, dense, out=out), runs)
