from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from strategies import coo_matrices, csc_matrices, csr_matrices

from sparsenn.errors import MatrixError
from sparsenn.formats import COO, CSC, CSR, coo_to_csc, coo_to_csr, csc_to_csr, csr_to_coo, csr_to_csc, from_dense


def assert_same(left: Any, right: Any) -> None:
    """Both hold the same arrays of the same types: the canonical form is one."""
    assert type(left) is type(right)
    assert left.shape == right.shape
    for part in ("indptr", "indices", "values"):
        assert getattr(left, part).dtype == getattr(right, part).dtype
        np.testing.assert_array_equal(getattr(left, part), getattr(right, part))


@given(coo_matrices())
def test_coo_to_compressed_equals_scipy(matrix: COO) -> None:
    assert_same(coo_to_csr(matrix).validate(), with_values_of(matrix, CSR.from_scipy(matrix.to_scipy())))
    assert_same(coo_to_csc(matrix).validate(), with_values_of(matrix, CSC.from_scipy(matrix.to_scipy())))


def with_values_of(matrix: COO, expected: Any) -> Any:
    """A matrix without entries may hold one value or none; take over what the source holds."""
    return expected if matrix.nnz else type(expected)(expected.shape, expected.indptr, expected.indices, matrix.values)


@given(csc_matrices())
def test_csc_to_csr_and_back(matrix: CSC) -> None:
    rows = csc_to_csr(matrix).validate()
    np.testing.assert_array_equal(rows.to_scipy().toarray(), matrix.to_scipy().toarray())
    assert_same(csr_to_csc(rows), matrix)


@given(csr_matrices())
def test_csr_to_coo_and_back(matrix: CSR) -> None:
    triples = csr_to_coo(matrix).validate()
    assert triples.nnz == matrix.nnz
    keys = triples.rows.astype(np.int64) * max(matrix.shape[1], 1) + triples.columns
    assert bool((np.diff(keys) > 0).all())
    assert_same(coo_to_csr(triples), matrix)


def test_stored_zeros_survive_every_format() -> None:
    source = CSR((2, 3), np.array([0, 2, 3]), np.array([0, 2, 1], np.uint16), np.array([0, 4, 0], np.float32))
    assert_same(csc_to_csr(csr_to_csc(source)), source)
    assert_same(coo_to_csr(csr_to_coo(source)), source)


@pytest.mark.parametrize("width", [65_535, 65_536, 65_537])
def test_index_types_across_the_sixteen_bit_limit(width: int) -> None:
    rows, columns = np.array([1, 0, 1]), np.array([width - 1, width - 2, 0])
    matrix = COO.from_arrays((2, width), rows, columns, np.array([1, 2, 3], np.float32))
    narrow, wide = coo_to_csr(matrix).validate(), coo_to_csc(matrix).validate()
    assert narrow.indices.tolist() == [width - 2, 0, width - 1]
    assert (narrow.indices.dtype, wide.indices.dtype) == (np.int32 if width > 65_536 else np.uint16, np.uint16)
    assert_same(csc_to_csr(wide), narrow)
    assert_same(csr_to_csc(narrow), wide)
    assert csr_to_coo(csc_to_csr(wide)).columns.dtype == narrow.indices.dtype


@given(csr_matrices())
def test_from_dense_equals_scipy(matrix: CSR) -> None:
    dense = matrix.to_scipy().toarray()
    ours, theirs = from_dense(dense).validate(), CSR.from_scipy(sp.csr_array(dense))
    assert_same(ours, theirs)


@pytest.mark.parametrize(
    ("dense", "message"),
    [
        (np.zeros(3), "two dimensions, not 1"),
        (np.zeros((2, 2, 2)), "two dimensions, not 3"),
        (1.0, "two dimensions, not 0"),
        (np.eye(2) * 1j, "the matrix holds complex numbers; real ones"),
        (np.array([["a"]]), "no array of numbers"),
        ([[1.0], [1.0, 2.0]], "no array of numbers"),
        (np.ma.masked_array(np.eye(2), np.eye(2)), "masked numbers"),
    ],
)
def test_from_dense_refuses(dense: Any, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        from_dense(dense)
