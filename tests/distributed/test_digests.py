"""Digests: what differs has another one, and what is the same has the same."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import random_array

from sparsenn.distributed.digests import rows_digest
from sparsenn.formats import CSR, Array


@pytest.mark.parametrize("shape", [(2, 3), (300, 7), (64, 1024), (4096, 33)])
def test_rows_that_differ_in_a_number_or_in_order_have_other_digests(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    rows: Array = rng.random(shape, np.float32)
    others = [rows[::-1], rows[:-1], rows[:, ::-1], rows.astype(np.float64), rows.reshape(shape[0], 1, shape[1])]
    for place in rng.permutation(rows.size)[:20]:
        changed = rows.copy()
        changed.flat[place] += 1
        others.append(changed)
    assert len({rows_digest(found) for found in (rows, *others)}) == 1 + len(others)
    assert rows_digest(rows.copy(order="F")) == rows_digest(rows)


def test_each_array_of_sparse_rows_counts() -> None:
    matrix = CSR.from_scipy(random_array((500, 80), density=0.1, format="csr", rng=np.random.default_rng(1)))
    indices, values = matrix.indices.copy(), matrix.values.copy()
    values[7] += 1
    row = slice(*matrix.indptr[:2])
    indices[row] = np.arange(matrix.indptr[1])
    others = [
        CSR(matrix.shape, matrix.indptr, matrix.indices, values),
        CSR(matrix.shape, matrix.indptr, indices, matrix.values),
    ]
    assert len({rows_digest(found) for found in (matrix, *others)}) == 3
