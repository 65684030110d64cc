from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from strategies import coo_matrices

from sparsenn.errors import MatrixError
from sparsenn.formats import COO


def coo(**changes: Any) -> COO:
    """A valid 3 x 4 matrix in no order, with the given parts replaced."""
    parts: dict[str, Any] = {
        "shape": (3, 4),
        "rows": np.array([2, 0, 2], np.uint16),
        "columns": np.array([1, 3, 0], np.uint16),
        "values": np.array([1.0, -2.0, 3.0], np.float32),
    }
    return COO(**(parts | changes))


@given(coo_matrices())
def test_round_trip_through_scipy(matrix: COO) -> None:
    matrix.validate()
    there = matrix.to_scipy()
    assert there.shape == matrix.shape
    assert there.data.dtype == np.float32
    back = COO.from_scipy(there).validate()
    assert (back.iso, back.nnz) == (matrix.iso or matrix.nnz == 1, matrix.nnz)
    for part in ("rows", "columns", "values"):
        np.testing.assert_array_equal(getattr(back, part), getattr(matrix, part))
        assert getattr(back, part).dtype == getattr(matrix, part).dtype


def test_hand_made_case() -> None:
    dense = coo().validate().to_scipy().toarray()
    np.testing.assert_array_equal(dense, [[0, 0, 0, -2], [0, 0, 0, 0], [3, 1, 0, 0]])
    assert not coo().iso


def test_equal_values_are_stored_once_and_read_back_in_full() -> None:
    matrix = COO.from_arrays((3, 4), np.array([2, 0]), np.array([1, 3]), np.full(2, 0.0625, np.float32))
    assert matrix.iso
    assert matrix.values.shape == (1,)
    assert matrix.to_scipy().data.tolist() == [0.0625, 0.0625]


@pytest.mark.parametrize(("length", "dtype"), [(65_535, np.uint16), (65_536, np.uint16), (65_537, np.int32)])
def test_each_axis_has_its_own_index_type(length: int, dtype: type) -> None:
    tall = COO.from_arrays((length, 2), np.array([length - 1]), np.array([1]), np.ones(1, np.float32)).validate()
    assert (tall.rows.dtype, tall.columns.dtype) == (dtype, np.uint16)
    wide = COO.from_arrays((2, length), np.array([1]), np.array([length - 1]), np.ones(1, np.float32)).validate()
    assert (wide.rows.dtype, wide.columns.dtype) == (np.uint16, dtype)
    assert int(wide.columns[0]) == length - 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (3,)}, "is not two lengths"),
        ({"rows": np.array([2, 0], np.uint16), "values": np.ones(1, np.float32)}, "2,.* rows but .*3,.* columns"),
        ({"rows": np.array([2, 0, 2], np.int64)}, "row indices are int64; 3 rows take uint16"),
        ({"columns": np.array([1, 3, 0], np.int32)}, "column indices are int32; 4 columns take uint16"),
        ({"shape": (70_000, 4)}, "row indices are uint16; 70,000 rows take int32"),
        ({"values": np.ones(2, np.float32)}, "2 values for 3 entries"),
        ({"values": np.ones(3, np.int64)}, "not int64"),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        coo(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": np.array([2, 3, 2], np.uint16)}, r"entry 1: row 3 is outside 0\.\.2"),
        ({"columns": np.array([1, 3, 4], np.uint16)}, r"entry 2: column 4 is outside 0\.\.3"),
        ({"shape": (70_000, 4), "rows": np.array([0, -1, 2], np.int32)}, r"entry 1: row -1 is outside 0\.\.69999"),
        ({"columns": np.array([1, 3, 1], np.uint16)}, r"entry 2: \(2, 1\) occurs twice"),
        ({"values": np.array([1, np.nan, 3], np.float32)}, "entry 1: the value nan is not finite"),
        ({"values": np.array([1, 2, -np.inf], np.float32)}, "entry 2: the value -inf is not finite"),
        ({"values": np.array([np.inf], np.float32)}, "entry 0: the value inf is not finite"),
    ],
)
def test_validate_refuses_each_corruption(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        coo(**changes).validate()


def test_from_arrays_refuses_an_index_that_would_wrap() -> None:
    with pytest.raises(MatrixError, match="columns run from 65536 to 65536"):
        COO.from_arrays((1, 65_536), np.array([0]), np.array([65_536]), np.ones(1, np.float32))
