from __future__ import annotations

import numpy as np
import pytest
from file_comparisons import same_matrix
from hypothesis import given
from hypothesis import strategies as st
from strategies import coo_matrices

from sparsenn.errors import FileFormatError
from sparsenn.formats import COO, coo_to_csc, coo_to_csr
from sparsenn.io.challenge.triples import compress, gather


def chunks(matrix: COO, cuts: list[int]):
    rows, columns = matrix.rows.astype(np.int64), matrix.columns.astype(np.int64)
    values = np.broadcast_to(matrix.values, matrix.nnz).copy()
    yield from zip(*(np.split(part, sorted(cuts)) for part in (rows, columns, values)), strict=True)


@given(coo_matrices(), st.lists(st.integers(0, 40), max_size=4))
def test_chunks_are_joined(matrix: COO, cuts: list[int]) -> None:
    same_matrix(gather(chunks(matrix, cuts), matrix.shape), matrix)


@given(coo_matrices(), st.lists(st.integers(0, 40), max_size=4), st.integers(1, 45))
def test_rows_beyond_the_limit_are_left_out(matrix: COO, cuts: list[int], limit: int) -> None:
    found = gather(chunks(matrix, cuts), (limit, matrix.shape[1]), fixed_rows=False)
    kept = matrix.rows < limit
    height = min(limit, int(matrix.rows.max()) + 1 if matrix.nnz else 0)
    values = np.broadcast_to(matrix.values, matrix.nnz)[kept]
    expected = COO.from_arrays((height, matrix.shape[1]), matrix.rows[kept], matrix.columns[kept], values)
    same_matrix(found, expected)


@pytest.mark.parametrize("convert", [coo_to_csr, coo_to_csc])
@pytest.mark.parametrize(("rows", "columns"), [([2, 0, 2, 2], [2, 2, 0, 2]), ([2, 2, 2], [2, 2, 2])])
def test_a_position_that_occurs_twice_is_named(convert, rows: list[int], columns: list[int]) -> None:
    triples = COO.from_arrays((4, 4), np.array(rows), np.array(columns), np.ones(1, np.float32))
    with pytest.raises(FileFormatError, match="x: image 3, pixel 3 occurs twice"):
        compress(convert, triples, "x", ("image", "pixel"))
