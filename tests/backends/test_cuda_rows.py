"""Rows on a GPU: grouping and taking, for more rows than one block sees."""

import numpy as np
import pytest

from sparsenn import backends
from sparsenn.formats import CSR, from_dense

pytestmark = pytest.mark.gpu


@pytest.fixture
def backend():
    return backends.backend_for("cuda")


def forms(matrix):
    return matrix, from_dense(matrix)


@pytest.mark.parametrize("distinct", [1, 7, 5000])
def test_groups_are_those_of_the_cpu_in_every_run(backend, distinct, rng):
    kinds = rng.normal(size=(distinct, 130)).astype(np.float32) * (rng.random((distinct, 130)) < 0.3)
    for features in forms(kinds[rng.integers(0, distinct, 5000)]):
        expected = backends.backend_for("cpu").equal_rows(features)
        for _ in range(3):
            for found, right in zip(backend.equal_rows(backend.place(features)), expected, strict=True):
                assert found.dtype == np.int64
                assert np.array_equal(found, right)


def test_rows_that_differ_in_one_bit_are_not_equal(backend):
    rows = np.ones((4, 40), np.float32)
    rows[1, 39] = np.nextafter(np.float32(1), np.float32(2))
    rows[3, 0] = -1
    for features in forms(rows):
        representatives, group = backend.equal_rows(backend.place(features))
        assert representatives.tolist() == [0, 1, 3]
        assert group.tolist() == [0, 1, 0, 2]


def test_taking_rows_of_both_forms(backend, rng):
    full = rng.normal(size=(3000, 70)).astype(np.float32) * (rng.random((3000, 70)) < 0.2)
    selected = np.flatnonzero(rng.random(3000) < 0.4)
    for features in forms(full):
        taken = backend.fetch(backend.take_rows(backend.place(features), selected))
        found = taken.validate().to_scipy().toarray() if isinstance(taken, CSR) else taken
        assert np.array_equal(found, full[selected])


@pytest.mark.parametrize("shape", [(3, 70_001), (70_000, 3), (5, 2048), (4, 2049), (1, 1)])
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_sparse_rows_become_dense_ones(backend, shape, density, rng):
    matrix = np.round(rng.normal(size=shape), 2).astype(np.float32) * (rng.random(shape) < density)
    for rows in (from_dense(matrix), from_dense((matrix != 0).astype(np.float32))):
        dense = backend.fetch(backend.as_dense(backend.place(rows)))
        assert dense.dtype == np.float32
        assert np.array_equal(dense, rows.to_scipy().toarray())
