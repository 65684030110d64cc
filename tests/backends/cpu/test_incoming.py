"""Sparse rows as callers have them: checked, converted, or refused with what is wrong."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import csr_matrices

from sparsenn.backends.chains import SparseRows
from sparsenn.backends.cpu import incoming
from sparsenn.backends.cpu.incoming import check_rows, dense_to_sparse, sparse_to_dense
from sparsenn.errors import MatrixError, UnsortedError
from sparsenn.formats import from_dense

INDICES = [np.uint8, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
VALUES = [np.float16, np.float32, np.float64, np.int8]


def rows_of(indptr, indices, values, width=5, index_type=np.int64):
    indptr = np.array(indptr)
    return SparseRows((indptr.size - 1, width), indptr, np.array(indices, index_type), np.array(values))


@given(
    matrix=csr_matrices(),
    indices=st.sampled_from(INDICES),
    offsets=st.sampled_from([np.int32, np.int64, np.uint32]),
    values=st.sampled_from(VALUES),
    base=st.integers(0, 5),
    slack=st.integers(0, 3),
    threads=st.booleans(),
)
def test_any_types_become_the_projects(matrix, indices, offsets, values, base, slack, threads):
    numbers = np.round(matrix.expanded_values() * 4).astype(values)
    given_rows = SparseRows(
        matrix.shape,
        (matrix.indptr + base).astype(offsets),
        np.append(matrix.indices, np.zeros(slack)).astype(indices),
        np.append(numbers, np.zeros(slack)).astype(values),
    )
    with pytest.MonkeyPatch.context() as patch:
        if threads:
            patch.setattr(incoming, "NUMBERS", 1)
        found = check_rows(given_rows).validate()
    assert np.array_equal(found.indptr, matrix.indptr)
    assert np.array_equal(found.indices, matrix.indices)
    assert found.values.dtype == np.float32
    assert np.array_equal(found.expanded_values(), numbers.astype(np.float32))
    if matrix.nnz:
        assert found.iso == (np.unique(numbers.astype(np.float32).view(np.int32)).size == 1)  # -0 is not 0


def test_arrays_of_the_right_types_are_not_copied():
    given_rows = SparseRows(
        (2, 9), np.array([0, 2, 3]), np.array([1, 8, 0], np.uint16), np.array([1, 2, 3], np.float32)
    )
    found = check_rows(given_rows)
    for mine, theirs in zip(found.arrays, (given_rows.indptr, given_rows.indices, given_rows.values), strict=True):
        assert np.shares_memory(mine, theirs)


def test_one_value_serves_all_entries():
    found = check_rows(rows_of([0, 2, 3], [1, 4, 0], [2.5]))
    assert found.iso
    assert found.values.tolist() == [2.5]
    assert check_rows(rows_of([0, 2], [1, 4], [0.0, -0.0])).values.size == 2


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (rows_of([0, 3, 2, 4], [0, 1, 2, 3], [1.0] * 4), "row 1: indptr goes from 3 to 2"),
        (rows_of([0, 9, 2], [0, 1, 2, 3], [1.0] * 4), "row 0: indptr goes from 0 to 9"),
        (rows_of([0, 2, 9], [0, 1, 2, 3], [1.0] * 4), "up to no more than 4"),
        (rows_of([0, -2, 2], [0, 1], [1.0] * 2), "row 0: indptr goes from 0 to -2"),
        (rows_of([0, 1, 2], [0, 5], [1.0] * 2), r"row 1, entry 1: index 5 is outside 0\.\.4"),
        (rows_of([0, 2], [-1, 2], [1.0] * 2), "row 0, entry 0: index -1 is outside"),
        (rows_of([0, 2, 3], [2, 1, 7], [1.0] * 3), "row 1, entry 2: index 7 is outside"),
        (rows_of([0, 2], [2, 1], [1.0, np.nan]), "entry 1: the value nan"),
        (rows_of([0, 2], [1, 2], [1.0, np.inf]), "entry 1: the value inf"),
        (rows_of([0, 2], [1, 2], [1e300, 2.0]), "not finite in float32"),
        (rows_of([0, 2], [1, 2], [1, 1j]), "values must be a vector of real numbers"),
        (rows_of([0, 2], [1, 2], [1, 1], index_type=np.float32), "indices must be a vector of integers"),
        (rows_of([0.0, 2.0], [1, 2], [1, 1]), "indptr must be a vector of integers"),
        (rows_of([0, 3], [1, 2, 3], [1.0, 2.0]), "2 values for 3 entries"),
        (SparseRows((3, 5), np.array([0, 1]), np.array([1]), np.ones(1)), "3 rows take 4"),
        (SparseRows((-1, 5), np.array([0]), np.array([1]), np.ones(1)), "shape"),
    ],
)
def test_what_is_wrong_is_said(rows, words, threads, monkeypatch):
    if threads:
        monkeypatch.setattr(incoming, "NUMBERS", 1)
    with pytest.raises(MatrixError, match=words) as caught:
        check_rows(rows)
    assert not isinstance(caught.value, UnsortedError)


@pytest.mark.parametrize(
    ("indices", "words"), [([0, 3, 3], "index 3 occurs twice"), ([0, 3, 1], "index 1 follows 3; a row's indices must")]
)
def test_what_sorting_mends_is_told_apart(indices, words):
    with pytest.raises(UnsortedError, match=f"row 1, entry 2: {words}"):
        check_rows(rows_of([0, 1, 3], indices, [1.0, 2.0, 3.0]))


@given(matrix=csr_matrices(), threads=st.booleans())
def test_dense_and_sparse_become_each_other(matrix, threads):
    with pytest.MonkeyPatch.context() as patch:
        if threads:
            patch.setattr(incoming, "NUMBERS", 1)
        dense = sparse_to_dense(matrix)
        found = dense_to_sparse(dense).validate()
    expected = matrix.to_scipy().toarray()
    assert dense.dtype == np.float32
    assert np.array_equal(dense, expected)
    wanted = from_dense(expected)
    for mine, theirs in zip(found.arrays, wanted.arrays, strict=True):
        assert mine.dtype == theirs.dtype
        assert np.array_equal(mine, theirs)


def test_dense_rows_of_other_types_and_orders_become_sparse(rng):
    dense = rng.integers(0, 2, (40, 30))
    for matrix in (dense, dense.astype(np.float64), np.asfortranarray(dense.astype(np.float32)), dense[::2, ::3]):
        assert np.array_equal(dense_to_sparse(matrix).to_scipy().toarray(), matrix)
