"""The oracle for sparse layers: SciPy's product in float64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from sparsenn.backends.chains import Features, LayerCounts, RowMap
from sparsenn.backends.kernel_records import SparseKernel, StepInput, StepOutput
from sparsenn.backends.registry import register
from sparsenn.formats import CSR, Array, from_dense
from sparsenn.layers import SparseLinear


def forward_sparse(layer: SparseLinear, features: Any) -> Any:
    """Compute a layer in float64 on SciPy CSR features of shape (rows, inputs); returns SciPy CSR."""
    from scipy.sparse import csr_array

    product = csr_array(features @ layer.weights.to_scipy().astype(np.float64).tocsr())
    bias = layer.bias_vector().astype(np.float64)
    if layer.keeps_zero_rows:  # act(b) = 0: only stored elements can become non-zero
        product.data = layer.activation(product.data + bias[product.indices])
    else:
        product = csr_array(layer.activation(product.toarray() + bias))
    product.eliminate_zeros()
    return product


def as_csr(features: CSR | Array) -> CSR:
    """Return features in float64, where they are dense, as CSR."""
    return features if isinstance(features, CSR) else from_dense(features, np.float64)


def _launch(step: StepInput) -> StepOutput:
    features = as_csr(step.features).to_scipy().astype(np.float64)
    survivors = np.arange(features.shape[0])
    counts = []
    for number in range(step.first, step.last):
        layer, copies = step.stack[number]
        degrees = np.diff(layer.weights.to_scipy().tocsr().indptr)
        edges = int(degrees[features.indices].sum())
        rows = features.shape[0]
        features = forward_sparse(layer, features)
        alive = np.diff(features.indptr) > 0
        row_of_entry = np.repeat(np.arange(rows), np.diff(features.indptr))
        counts.append(
            LayerCounts(
                kernel="reference",
                rows=rows,
                active_inputs=int(step.multiplicity[survivors][alive].sum()),
                nonzeros=int((copies[features.indices] * step.multiplicity[survivors][row_of_entry]).sum()),
                performed_edges=edges,
            )
        )
        if number >= step.droppable_from:
            features, survivors = features[alive], survivors[alive]
    row_map = RowMap.of_survivors(survivors, step.features.shape[0])
    return StepOutput(CSR.from_scipy(features, np.float64), row_map, tuple(counts))


def _distinct_rows(features: Features) -> tuple[Features, RowMap]:
    """Find equal rows by comparing each one whole, as bytes."""
    rows = as_csr(features)
    values = rows.expanded_values()
    keys = [(rows.indices[a:b].tobytes(), values[a:b].tobytes()) for a, b in pairwise(rows.indptr)]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    group = np.array([numbers[key] for key in keys], np.int64)
    _, first = np.unique(group, return_index=True)
    return RowMap(first).gather(rows), RowMap(group)


REFERENCE = register(
    SparseKernel(
        name="reference",
        device="reference",
        summary="SciPy's product in float64, one layer at a time: the oracle",
        launch=_launch,
        auto=True,
        fuses=True,
        distinct_rows=_distinct_rows,
    )
)
