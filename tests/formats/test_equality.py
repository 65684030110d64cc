"""Grouping by equality: right whatever the hash does."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import csr_matrices

from sparsenn.formats import CSR, csr_to_csc, equal_groups, equal_rows
from sparsenn.formats.equality import _group_equal


def check(representatives, group, keys):
    """Each key's group is numbered by first occurrence, and its representative is that occurrence."""
    first = {}
    for at, key in enumerate(keys):
        first.setdefault(key, at)
    assert representatives.tolist() == list(first.values())
    assert [int(representatives[number]) for number in group] == [first[key] for key in keys]


@given(st.integers(0, 30), st.integers(0, 6), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_equal_rows_of_a_dense_matrix(rows, width, values, seed):
    matrix = np.random.default_rng(seed).integers(0, values, (rows, width)).astype(np.float32)
    check(*equal_rows(matrix), [row.tobytes() for row in matrix])


@given(csr_matrices())
def test_equal_rows_and_columns_of_a_sparse_matrix(matrix):
    values = matrix.expanded_values()
    for compressed in (matrix, csr_to_csc(matrix)):
        values, ends = compressed.expanded_values(), compressed.indptr
        keys = [(compressed.indices[a:b].tobytes(), values[a:b].tobytes()) for a, b in itertools.pairwise(ends)]
        check(*equal_groups(compressed), keys)


def test_zeros_of_either_sign_are_different_bits():
    representatives, _ = equal_rows(np.float32([[0.0], [-0.0], [0.0]]))
    assert representatives.tolist() == [0, 1]


@pytest.mark.parametrize("hashes", [np.zeros(6), np.arange(6), np.arange(6) % 2], ids=["all equal", "distinct", "two"])
def test_colliding_hashes_do_not_join_different_rows(hashes):
    """The hash may only keep apart: rows 0, 2 and 4 are equal, and so are 1 and 5."""
    words = np.uint32([7, 8, 7, 9, 7, 8])
    offsets = np.arange(7)
    _, group = _group_equal(hashes.astype(np.uint64), words, offsets, words[:0], offsets)
    same = group[:, None] == group
    equal_words = words[:, None] == words
    equal_hashes = hashes[:, None] == hashes
    assert np.array_equal(same, equal_words & equal_hashes)


def test_iso_rows_differ_by_their_indices_alone():
    matrix = CSR((3, 4), np.array([0, 1, 2, 3]), np.uint16([2, 2, 3]), np.float32([0.5]))
    assert equal_groups(matrix)[1].tolist() == [0, 0, 1]
