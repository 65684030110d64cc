"""The plainest form of the computation: each CSR row against each CSC column, by merge-intersection.

Two sorted lists of indices are walked together, and where they agree the values are multiplied. Every other way to
compute a sparse layer is a cleverer order of these same multiply-adds.
"""

from __future__ import annotations

import numpy as np

from sparsenn.backends.cpu.rows import distinct_rows
from sparsenn.backends.cpu.stack import Stack
from sparsenn.backends.kernel_records import SparseKernel, StepInput, StepOutput
from sparsenn.formats import Array, from_dense
from sparsenn.runtime.jit import compiled
from sparsenn.runtime.workers import chunks, map_threads
from sparsenn.studies.spmspm.sparse_rows import as_csr, finish

_CHUNK_ROWS = 256  # rows a thread takes at a time


@compiled
def intersect(
    indptr: Array, indices: Array, values: Array, columns: Array, rows: Array, weights: Array, first: int, out: Array
) -> int:
    """Write Y·W for rows `first` and following of CSR features into `out`; returns the multiply-adds done.

    indptr, indices, values : CSR features. columns, rows, weights : CSC weights. out : (rows, outputs) float32.
    """
    iso, iso_weights = values.size == 1, weights.size == 1
    edges = 0
    for row in range(out.shape[0]):
        for column in range(out.shape[1]):
            left, left_end = indptr[first + row], indptr[first + row + 1]
            right, right_end = columns[column], columns[column + 1]
            total = np.float32(0)
            while left < left_end and right < right_end:
                if indices[left] == rows[right]:
                    total += values[0 if iso else left] * weights[0 if iso_weights else right]
                    edges += 1
                    left += 1
                    right += 1
                elif indices[left] < rows[right]:
                    left += 1
                else:
                    right += 1
            out[row, column] = total
    return edges


def launch_sequential(step: StepInput) -> StepOutput:
    """Run one layer, every row against every column."""
    stack: Stack = step.stack
    layer = stack.layers[step.first]
    features, weights = as_csr(step.features), layer.weights
    scores = np.empty((features.shape[0], layer.outputs), np.float32)

    def run(bounds: tuple[int, int]) -> int:
        return intersect(
            features.indptr, features.indices, features.values,
            weights.indptr, weights.indices, weights.values, bounds[0], scores[bounds[0] : bounds[1]],
        )  # fmt: skip

    edges = sum(map_threads(run, chunks(features.shape[0], _CHUNK_ROWS)))
    return finish(step, "sequential", from_dense(layer.activation(scores + layer.bias_vector())), edges)


SEQUENTIAL = SparseKernel(
    name="sequential",
    device="cpu",
    summary="each CSR row against each CSC column, by merge-intersection",
    launch=launch_sequential,
    distinct_rows=distinct_rows,
)
