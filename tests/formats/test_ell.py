from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsenn.errors import MatrixError
from sparsenn.formats import ELL


def ell(**changes: Any) -> ELL:
    """A valid 3 x 4 matrix with two slots: rows of two, no and one entries. Parts can be replaced."""
    parts: dict[str, Any] = {
        "shape": (3, 4),
        "lengths": np.array([2, 0, 1], np.int32),
        "indices": np.array([[1, 3], [0, 0], [2, 0]], np.uint16),
        "values": np.array([5, 6, 0, 0, 7, 0], np.float32),
    }
    return ELL(**(parts | changes))


def test_hand_made_case() -> None:
    matrix = ell().validate()
    assert (matrix.slots, matrix.nnz, matrix.iso) == (2, 3, False)


def test_iso() -> None:
    matrix = ell(values=np.array([0.5], np.float32)).validate()
    assert (matrix.nnz, matrix.iso) == (3, True)


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (3, 0), (3, 4)])
def test_no_entries(shape: tuple[int, int]) -> None:
    matrix = ELL(
        shape, np.zeros(shape[0], np.int32), np.zeros((shape[0], 0), np.uint16), np.zeros(0, np.float32)
    ).validate()
    assert (matrix.slots, matrix.nnz) == (0, 0)


def test_padding_alone() -> None:
    assert (
        ell(lengths=np.zeros(3, np.int32), indices=np.zeros((3, 2), np.uint16), values=np.zeros(6)).validate().nnz == 0
    )


@pytest.mark.parametrize(("width", "dtype"), [(65_536, np.uint16), (65_537, np.int32)])
def test_index_type_follows_the_width(width: int, dtype: type) -> None:
    indices = np.array([[0, width - 1]])
    parts = ((1, width), np.array([2], np.int32))
    assert ELL(*parts, indices.astype(dtype), np.ones(1, np.float32)).validate().indices.dtype == dtype
    with pytest.raises(MatrixError, match=f"columns take {np.dtype(dtype)}"):
        ELL(*parts, indices.astype(np.int64), np.ones(1, np.float32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (3, -4)}, "is not two lengths"),
        ({"lengths": np.array([2, 0, 1], np.int64)}, "lengths are int64"),
        ({"lengths": np.array([2, 0], np.int32)}, r"want int32 \(3,\)"),
        ({"indices": np.zeros((2, 2), np.uint16)}, r"shape \(2, 2\); want \(3, slots\)"),
        ({"indices": np.zeros(6, np.uint16)}, r"want \(3, slots\)"),
        ({"indices": np.zeros((3, 2), np.int32)}, "indices are int32; 4 columns take uint16"),
        ({"values": np.ones(3, np.float32)}, "3 values for 6 entries"),
        ({"values": np.ones((3, 2), np.float32)}, r"shape \(3, 2\)"),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        ell(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": np.array([2, 0, 3], np.int32)}, r"row 2: a length of 3 is outside 0\.\.2"),
        ({"lengths": np.array([2, -1, 1], np.int32)}, r"row 1: a length of -1"),
        ({"lengths": np.array([1, -2, 1], np.int32)}, r"row 1: a length of -2"),  # the sum is 0, as of an empty matrix
        ({"indices": np.array([[1, 4], [0, 0], [2, 0]], np.uint16)}, "row 0, slot 1: index 4 is out of range"),
        ({"indices": np.array([[3, 1], [0, 0], [2, 0]], np.uint16)}, "row 0, slot 1: index 1 .* out of order"),
        ({"indices": np.array([[3, 3], [0, 0], [2, 0]], np.uint16)}, "row 0, slot 1: index 3 .* out of order"),
        ({"indices": np.array([[1, 3], [0, 1], [2, 0]], np.uint16)}, "padding must be zero"),
        ({"values": np.array([5, 6, 0, 1, 7, 0], np.float32)}, "padding must be zero"),
        ({"values": np.array([5, 6, 0, np.nan, 7, 0], np.float32)}, "padding must be zero"),
        ({"values": np.array([5, np.nan, 0, 0, 7, 0], np.float32)}, "not finite"),
        ({"values": np.array([np.inf], np.float32)}, "not finite"),
    ],
)
def test_validate_refuses_each_corruption(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        ell(**changes).validate()
