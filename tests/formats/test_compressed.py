from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from strategies import coo_matrices, csc_matrices, csr_matrices

from sparsenn.errors import MatrixError
from sparsenn.formats import COO, CSC, CSR
from sparsenn.formats.arrays import own

BOTH = pytest.mark.parametrize("kind", [CSR, CSC])


def four_groups(kind: type[CSR] | type[CSC], **changes: Any) -> Any:
    """Four groups over a width of 5: two entries, none, three, one. Parts can be replaced."""
    parts: dict[str, Any] = {
        "shape": (4, 5) if kind is CSR else (5, 4),
        "indptr": np.array([0, 2, 2, 5, 6], np.int64),
        "indices": np.array([1, 4, 0, 2, 3, 4], np.uint16),
        "values": np.arange(1, 7, dtype=np.float32),
    }
    return kind(**(parts | changes))


@given(csr_matrices() | csc_matrices())
def test_round_trip_through_scipy(matrix: CSR | CSC) -> None:
    there = matrix.validate().to_scipy()
    assert there.has_canonical_format
    assert there.shape == matrix.shape
    back = type(matrix).from_scipy(there).validate()
    for part in ("indptr", "indices", "values"):
        np.testing.assert_array_equal(getattr(back, part), getattr(matrix, part))
        assert getattr(back, part).dtype == getattr(matrix, part).dtype


@given(coo_matrices(), st.sampled_from(["csr", "csc", "coo", "lil", "dok", "bsr", "dia"]))
def test_any_scipy_format_is_taken(matrix: COO, name: str) -> None:
    source = matrix.to_scipy()
    if min(matrix.shape) == 0:
        name = "csr"
    for kind in (CSR, CSC):
        taken = kind.from_scipy(source.asformat(name)).validate()
        np.testing.assert_array_equal(taken.to_scipy().toarray(), source.toarray())


@BOTH
def test_hand_made_case(kind: Any) -> None:
    matrix = four_groups(kind).validate()
    dense = [[0, 1, 0, 0, 2], [0, 0, 0, 0, 0], [3, 0, 4, 5, 0], [0, 0, 0, 0, 6]]
    np.testing.assert_array_equal(matrix.to_scipy().toarray(), dense if kind is CSR else np.transpose(dense))
    assert (matrix.groups, matrix.width, matrix.nnz, matrix.iso) == (4, 5, 6, False)
    assert matrix.density == 6 / 20
    assert matrix.nbytes == 5 * 8 + 6 * 2 + 6 * 4


@BOTH
def test_iso_values_are_one_for_all(kind: Any) -> None:
    matrix = four_groups(kind, values=np.array([0.0625], np.float32)).validate()
    assert matrix.iso
    assert matrix.nbytes == 5 * 8 + 6 * 2 + 4
    assert matrix.expanded_values().tolist() == [0.0625] * 6
    assert matrix.to_scipy().data.tolist() == [0.0625] * 6


@BOTH
@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (4, 0), (3, 4), (1, 1)])
def test_no_entries(kind: Any, shape: tuple[int, int]) -> None:
    matrix = kind.from_scipy(sp.csr_array(shape, dtype=np.float32)).validate()
    assert (matrix.nnz, matrix.density, matrix.shape) == (0, 0.0, shape)
    assert matrix.expanded_values().size == 0
    assert matrix.to_scipy().shape == shape


@BOTH
@pytest.mark.parametrize(("width", "dtype"), [(65_535, np.uint16), (65_536, np.uint16), (65_537, np.int32)])
def test_index_type_follows_the_width(kind: Any, width: int, dtype: type) -> None:
    shape = (2, width) if kind is CSR else (width, 2)
    matrix = kind.from_arrays(shape, np.array([0, 1, 2]), np.array([width - 1, 0]), np.ones(2, np.float32)).validate()
    assert matrix.indices.dtype == dtype
    assert matrix.indices.tolist() == [width - 1, 0]
    dense_at = matrix.to_scipy().tocoo()
    assert int(dense_at.col.max() if kind is CSR else dense_at.row.max()) == width - 1
    wrong = np.int32 if dtype == np.uint16 else np.uint16
    with pytest.raises(MatrixError, match=f"takes a vector of {np.dtype(dtype)}"):
        kind(shape, matrix.indptr, matrix.indices.astype(wrong), matrix.values)


@BOTH
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (-1, 5)}, "is not two lengths"),
        ({"indptr": np.array([0, 2, 2, 5, 6], np.int32)}, r"indptr is int32 of shape \(5,\)"),
        ({"indptr": np.array([0, 2, 5, 6])}, r"indptr is int64 of shape \(4,\); 4 (row|column)s take"),
        ({"indices": np.zeros((2, 3), np.uint16)}, r"shape \(2, 3\); a width of 5 takes a vector of uint16"),
        ({"indices": np.zeros(6, np.int64)}, "indices are int64"),
        ({"values": np.ones(5, np.float32)}, "5 values for 6 entries"),
        ({"values": np.ones(6, np.float16)}, "not float16"),
    ],
)
def test_parts_that_do_not_fit_are_refused(kind: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        four_groups(kind, **changes)


@BOTH
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indptr": np.array([1, 2, 2, 5, 6])}, "must rise from 0 to 6"),
        ({"indptr": np.array([0, 2, 2, 5, 5])}, "must rise from 0 to 6"),
        ({"indptr": np.array([0, 2, 2, 5, 7])}, "must rise from 0 to 6"),
        ({"indptr": np.array([0, 5, 2, 5, 6])}, "never fall"),
        ({"indptr": np.array([0, 1 << 40, 2, 5, 6])}, "never fall"),
        ({"indptr": np.array([0, -1, 2, 5, 6])}, "never fall"),
        ({"indptr": np.array([0, 2**63 - 1, -2, 5, 6])}, "never fall"),  # differences wrap around
        ({"indices": np.array([1, 4, 0, 2, 5, 4], np.uint16)}, r"2, entry 4: index 5 is outside 0\.\.4"),
        ({"indices": np.array([4, 1, 0, 2, 3, 4], np.uint16)}, "0, entry 1: index 1 follows 4; .* must increase"),
        ({"indices": np.array([1, 4, 0, 3, 3, 4], np.uint16)}, "2, entry 4: index 3 occurs twice"),
        ({"values": np.array([1, 2, np.nan, 4, 5, 6], np.float32)}, "entry 2: the value nan is not finite"),
        ({"values": np.array([-np.inf], np.float32)}, "entry 0: the value -inf is not finite"),
    ],
)
def test_validate_refuses_each_corruption(kind: Any, changes: dict[str, Any], message: str) -> None:
    matrix = four_groups(kind, **changes)
    with pytest.raises(MatrixError, match=message) as raised:
        matrix.validate()
    if "entry" in message and "value" not in message:
        assert str(raised.value).startswith("row" if kind is CSR else "column")


@given(csr_matrices(), st.data())
def test_slices_are_rows(matrix: CSR, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, matrix.groups))
    stop = data.draw(st.integers(start, matrix.groups))
    part = matrix.slice_groups(start, stop).validate()
    np.testing.assert_array_equal(part.to_scipy().toarray(), matrix.to_scipy().toarray()[start:stop])
    assert part.nnz == 0 or np.shares_memory(part.indices, matrix.indices)
    assert matrix.checked().slice_groups(start, stop).is_checked
    assert not four_groups(CSR).slice_groups(0, 2).is_checked


@BOTH
def test_from_scipy_sums_duplicates_sorts_and_leaves_the_source_alone(kind: Any) -> None:
    source = sp.csr_array((np.array([1.0, 2.0, 4.0]), np.array([3, 1, 3]), np.array([0, 3])), shape=(1, 5))
    matrix = kind.from_scipy(source).validate()
    np.testing.assert_array_equal(matrix.to_scipy().toarray(), [[0, 2, 0, 5, 0]])
    assert source.indices.tolist() == [3, 1, 3]
    assert source.data.tolist() == [1.0, 2.0, 4.0]


@BOTH
def test_from_scipy_values_beyond_float32_are_found_by_validate(kind: Any) -> None:
    with pytest.raises(MatrixError, match="entry 0: the value inf is not finite"):
        kind.from_scipy(sp.csr_array([[1e300, 1.0]])).validate()


@BOTH
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.eye(2), "ndarray is not a SciPy sparse matrix"),
        ([[1.0]], "list is not a SciPy sparse matrix"),
        (sp.csr_array(np.eye(2) * 1j), "real numbers, not complex128"),
    ],
)
def test_from_scipy_refuses(kind: Any, source: Any, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        kind.from_scipy(source)


@BOTH
@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (np.array([0, 5]), r"indices run from 0 to 5, outside 0\.\.4"),
        (np.array([-1, 0]), "indices run from -1 to 0"),
        (np.array([0.0, 1.0]), "not float64"),
    ],
)
def test_from_arrays_refuses_indices(kind: Any, indices: np.ndarray, message: str) -> None:
    shape = (1, 5) if kind is CSR else (5, 1)
    with pytest.raises(MatrixError, match=message):
        kind.from_arrays(shape, np.array([0, 2]), indices, np.ones(2, np.float32))


@BOTH
def test_arrays_are_read_only_through_the_matrix_alone(kind: Any) -> None:
    values = np.arange(1, 7, dtype=np.float32)
    matrix = four_groups(kind, values=values)
    for array in matrix.arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    values[0] = 9
    assert matrix.values[0] == 9


@BOTH
def test_validate_marks_what_nobody_else_writes_to(kind: Any) -> None:
    matrix = four_groups(kind)
    assert matrix.validate() is matrix
    assert not matrix.is_checked  # the arrays that it was made of can still be written to
    parts = {name: own(getattr(matrix, name)) for name in ("indptr", "indices", "values")}
    matrix = four_groups(kind, **parts)
    assert not matrix.is_checked
    assert matrix.validate().is_checked


@BOTH
def test_checked_is_a_copy_where_others_could_write(kind: Any) -> None:
    values = np.arange(1, 7, dtype=np.float32)
    matrix = four_groups(kind, values=values)
    checked = matrix.checked()
    values[0] = np.nan
    assert checked.is_checked
    assert checked.values[0] == 1
    assert checked.checked() is checked
    with pytest.raises(MatrixError, match="entry 0: the value nan"):
        matrix.checked()


@given(csr_matrices(), st.data())
def test_the_fast_check_finds_what_the_slow_one_explains(matrix: CSR, data: st.DataObject) -> None:
    assert matrix._sound()
    indptr, indices = matrix.indptr.copy(), matrix.indices.copy()
    for array in (indptr, indices):
        if array.size and data.draw(st.booleans()):
            array[data.draw(st.integers(0, array.size - 1))] = data.draw(st.integers(0, 45))
    changed = CSR(matrix.shape, indptr, indices, matrix.values)
    rows = pairwise(indptr.tolist())
    offsets = indptr[0] == 0 and indptr[-1] == indices.size and all(first <= last for first, last in rows)
    inside = bool((indices < matrix.width).all())
    rising = offsets and all((np.diff(indices[a:b].astype(int)) > 0).all() for a, b in pairwise(indptr.tolist()))
    assert changed._sound() == (offsets and inside and rising)
    if not changed._sound():
        with pytest.raises(MatrixError):
            changed.validate()


@BOTH
@pytest.mark.parametrize("name", ["csr", "csc", "bsr", "coo"])
def test_indices_of_scipy_that_lie_outside(kind: Any, name: str) -> None:
    matrix = sp.coo_array(np.eye(4)).asformat(name)
    (matrix.coords[0] if name == "coo" else matrix.indices)[-1] = 1000
    with pytest.raises(MatrixError, match=r"run from 0 to 1000, outside 0\.\.3"):
        kind.from_scipy(matrix)


@pytest.mark.parametrize("kind", [CSR, CSC, COO])
@pytest.mark.parametrize("name", ["csr", "csc", "bsr"])
def test_room_behind_the_entries_of_scipy_is_left_out(kind: Any, name: str) -> None:
    matrix = sp.eye_array(4, format=name)
    matrix.indices = np.concatenate([matrix.indices, matrix.indices])
    matrix.data = np.concatenate([matrix.data, 7 * matrix.data])
    assert np.array_equal(kind.from_scipy(matrix).to_scipy().toarray(), np.eye(4))
    assert matrix.data.size == 8, "the caller's matrix stays as it is"


class Foreign:
    """Like COO of the package sparse, which says its format, and has other attributes."""

    format, shape, data = "coo", (4, 4), np.ones(4)
    tocsr, tocsc, tocoo = (lambda self, form=form, **_: sp.eye_array(4, format=form) for form in ("csr", "csc", "coo"))


class OnGpu:
    """What CuPy's matrices offer, over arrays that tell where on a GPU they are."""

    format, shape, data = "csr", (4, 4), SimpleNamespace(__cuda_array_interface__={})
    tocsr = tocsc = tocoo = None

    def get(self) -> Any:
        return sp.eye_array(4, format="csr")


@pytest.mark.parametrize("kind", [CSR, CSC, COO])
@pytest.mark.parametrize("matrix", [Foreign(), OnGpu()])
def test_matrices_of_other_libraries_are_converted_by_these(kind: Any, matrix: Any) -> None:
    assert np.array_equal(kind.from_scipy(matrix).to_scipy().toarray(), np.eye(4))


@BOTH
@pytest.mark.parametrize("name", ["csr", "csc", "bsr"])
@pytest.mark.parametrize(("at", "offset"), [(-1, 9), (0, 1), (2, 4), (2, -7)])
def test_offsets_of_scipy_that_are_wild(kind: Any, name: str, at: int, offset: int) -> None:
    matrix = sp.coo_array(np.eye(4)).asformat(name)
    matrix.indptr[at] = offset
    with pytest.raises(MatrixError, match=r"indptr .* 5 offsets"):
        kind.from_scipy(matrix)


@BOTH
@pytest.mark.parametrize("dimensions", [1, 3])
def test_sparse_arrays_of_other_dimensions(kind: Any, dimensions: int) -> None:
    with pytest.raises(MatrixError, match=f"has {dimensions} dimensions?; a matrix has two"):
        kind.from_scipy(sp.coo_array(np.ones((2,) * dimensions)))
