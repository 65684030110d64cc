"""Other forms of rows and weights on a GPU."""

import numpy as np
import pytest
from hypothesis import given
from strategies import csc_matrices, csr_matrices

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.formats import CSC, CSR, from_dense
from sparsenn.studies.spmspm.cuda import as_csr, csc_to_csr

pytestmark = pytest.mark.gpu


def same(found, expected):
    cp = cupy()
    arrays = (cp.asnumpy(array) for array in (found.indptr, found.indices, found.values))
    found = CSR(found.shape, *arrays).validate()
    assert np.array_equal(found.indptr, expected.indptr)
    assert np.array_equal(found.indices, expected.indices)
    assert np.array_equal(found.expanded_values(), expected.expanded_values())


@given(matrix=csc_matrices())
def test_columns_become_rows(matrix):
    arrays = (cupy().asarray(array) for array in (matrix.indptr, matrix.indices, matrix.values))
    same(csc_to_csr(CSC(matrix.shape, *arrays)), CSR.from_scipy(matrix.to_scipy()))


@given(matrix=csr_matrices())
def test_dense_rows_become_sparse_ones(matrix):
    dense = matrix.to_scipy().toarray().astype(np.float32)
    same(as_csr(cupy().asarray(dense)), from_dense(dense))
