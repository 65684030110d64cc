"""The layer as a SciPy user would write it: a compiled row-by-row sparse product, then bias and activation."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.backends.cpu.rows import distinct_rows
from sparsenn.backends.cpu.stack import Stack
from sparsenn.backends.kernel_records import SparseKernel, StepInput, StepOutput
from sparsenn.formats import CSR, from_dense
from sparsenn.studies.spmspm.sparse_rows import as_csr, finish


def launch_scipy(step: StepInput) -> StepOutput:
    """Run one layer through `scipy.sparse`."""
    stack: Stack = step.stack
    layer = stack.layers[step.first]
    features = as_csr(step.features)
    weights = layer.weights.to_scipy().tocsr()
    edges = int(np.diff(weights.indptr)[features.indices].sum(dtype=np.int64))
    product: Any = features.to_scipy() @ weights
    if layer.keeps_zero_rows:  # act(b) = 0: only stored elements can become non-zero
        product.data = layer.activation(product.data + layer.bias_vector()[product.indices])
        product.eliminate_zeros()
        product.sort_indices()
        outputs = CSR.from_arrays(product.shape, product.indptr, product.indices, product.data)
    else:
        outputs = from_dense(layer.activation(product.toarray() + layer.bias_vector()))
    return finish(step, "scipy", outputs, edges)


SCIPY = SparseKernel(
    name="scipy",
    device="cpu",
    summary="SciPy's sparse product, then bias and activation",
    launch=launch_scipy,
    distinct_rows=distinct_rows,
)
