from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsenn.errors import MatrixError, UsageError
from sparsenn.formats import INDEX16_LIMIT, INDEX32_LIMIT, index_dtype
from sparsenn.formats.arrays import (
    as_floats,
    as_indices,
    check_shape,
    check_values,
    collapse_iso,
    frozen,
    is_own,
    own,
    read_only,
    size,
)


@pytest.mark.parametrize(
    ("width", "dtype"),
    [
        (0, np.uint16),
        (1, np.uint16),
        (65_535, np.uint16),
        (65_536, np.uint16),
        (65_537, np.int32),
        (INDEX32_LIMIT, np.int32),
    ],
)
def test_index_type_is_the_narrowest_that_holds_every_index(width: int, dtype: type) -> None:
    assert index_dtype(width) == dtype
    assert max(width - 1, 0) <= np.iinfo(dtype).max


@pytest.mark.parametrize("width", [-1, INDEX32_LIMIT + 1, 1 << 40])
def test_width_outside_int32_is_refused(width: int) -> None:
    with pytest.raises(MatrixError, match=r"outside 0\.\.2,147,483,647"):
        index_dtype(width)


def test_limits_are_those_of_the_types() -> None:
    assert np.iinfo(np.uint16).max + 1 == INDEX16_LIMIT
    assert np.iinfo(np.int32).max == INDEX32_LIMIT


@pytest.mark.parametrize("shape", [(0, 0), (1, 5), (INDEX32_LIMIT, INDEX32_LIMIT), (np.int64(3), np.int32(2))])
def test_shapes_accepted(shape: tuple[int, int]) -> None:
    check_shape(shape)


@pytest.mark.parametrize("shape", [(), (3,), (3, 4, 5), (-1, 2), (2, -1), (INDEX32_LIMIT + 1, 1), (2.0, 3), (2.5, 3)])
def test_shapes_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(MatrixError, match="is not two lengths"):
        check_shape(shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("values", "nnz"), [(0, 0), (1, 0), (1, 1), (1, 7), (7, 7)])
def test_value_counts_accepted(values: int, nnz: int, dtype: type) -> None:
    check_values(np.zeros(values, dtype), nnz)


@pytest.mark.parametrize(("values", "nnz"), [(0, 1), (0, 5), (2, 0), (2, 1), (2, 5), (6, 5)])
def test_value_counts_refused(values: int, nnz: int) -> None:
    with pytest.raises(MatrixError, match=f"{values} values for {nnz} entries"):
        check_values(np.zeros(values, np.float32), nnz)


@pytest.mark.parametrize("dtype", [np.float16, np.int32, np.complex64, np.bool_, np.longdouble, ">f4"])
def test_value_types_refused(dtype: str) -> None:
    with pytest.raises(MatrixError, match="float32 or float64"):
        check_values(np.zeros(2, dtype), 2)


def test_values_must_be_a_vector() -> None:
    with pytest.raises(MatrixError, match=r"shape \(2, 2\)"):
        check_values(np.zeros((2, 2), np.float32), 4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.0, -0.0, 0.0625, np.inf, np.nan])
def test_bit_equal_values_collapse_to_one(dtype: type, value: float) -> None:
    values = np.full(5, value, dtype)
    collapsed = collapse_iso(values)
    assert collapsed.shape == (1,)
    assert collapsed.tobytes() == values[:1].tobytes()
    assert not np.shares_memory(collapsed, values)


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 1.0, 2.0, 1.0],
        [2.0, 1.0, 1.0, 1.0],
        [1.0, 1.0, 1.0, 2.0],
        [0.0, -0.0, 0.0],
        [1.0, np.nextafter(np.float32(1.0), 2), 1.0],
    ],
)
def test_values_that_differ_in_one_bit_stay(values: list[float]) -> None:
    given = np.array(values, np.float32)
    assert collapse_iso(given) is given


@pytest.mark.parametrize("values", [np.zeros(0, np.float32), np.ones(3, np.int16), np.ones((2, 2)), np.ones(3, "f2")])
def test_what_cannot_be_iso_comes_back_untouched(values: np.ndarray) -> None:
    assert collapse_iso(values) is values


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_indices_of_any_integer_type_are_narrowed(dtype: type) -> None:
    given = np.array([2, 0, 1], dtype)
    assert as_indices("rows", given, 3).dtype == np.uint16
    assert as_indices("rows", given, 65_537).dtype == np.int32
    assert as_indices("rows", given, 3).tolist() == [2, 0, 1]


def test_the_largest_index_of_each_type_survives() -> None:
    assert as_indices("rows", np.array([65_535]), 65_536).tolist() == [65_535]
    assert as_indices("rows", np.array([65_536]), 65_537).tolist() == [65_536]
    assert as_indices("rows", np.array([INDEX32_LIMIT - 1]), INDEX32_LIMIT).tolist() == [INDEX32_LIMIT - 1]


@pytest.mark.parametrize(
    ("indices", "length", "message"),
    [
        (np.array([0, 3]), 3, r"rows run from 0 to 3, outside 0\.\.2"),
        (np.array([-1, 2]), 3, r"rows run from -1 to 2, outside 0\.\.2"),
        (np.array([1 << 63], np.uint64), 3, "9223372036854775808"),
        (np.array([0]), 0, "outside"),
        (np.array([0.0, 1.5]), 3, "vector of integers, not float64"),
        (np.array([True, False]), 3, "vector of integers, not bool"),
        (np.array([[0, 1]]), 3, r"shape \(1, 2\)"),
    ],
)
def test_indices_refused(indices: np.ndarray, length: int, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        as_indices("rows", indices, length)


def test_no_indices_may_have_any_type() -> None:
    assert as_indices("rows", np.array([]), 0).dtype == np.uint16


def test_floats_are_copied_and_overflow_becomes_infinite_without_a_warning() -> None:
    given = np.array([1e300, -1e300, 0.5])
    assert as_floats(given, np.float32).tolist() == [np.inf, -np.inf, 0.5]
    assert not np.shares_memory(as_floats(given, np.float64), given)


@pytest.mark.parametrize("values", [np.ones(2, complex), np.array(["1", "2"]), np.array([None, 1.0])])
def test_values_that_are_no_real_numbers_are_refused(values: np.ndarray) -> None:
    with pytest.raises(MatrixError, match="real numbers"):
        as_floats(values, np.float32)


@pytest.mark.parametrize("value", [3, np.uint8(3), np.int64(3), np.array(3)])
def test_a_size_is_pythons_own(value: Any) -> None:
    found = size(value, "batch_size")
    assert type(found) is int
    assert found * 1000 == 3000


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float64(1), "3", None, [3], np.array([3, 4]), 0, -1])
def test_what_is_no_size(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^batch_size is "):
        size(value, "batch_size")


def test_sizes_from_another_least_one_on() -> None:
    assert size(0, "start", 0) == 0
    with pytest.raises(UsageError, match="start is 1"):
        size(1, "start", 2)


def test_read_only_is_a_view_where_one_is_needed() -> None:
    array = np.arange(3)
    view = read_only(array)
    assert np.shares_memory(view, array)
    assert (view.flags.writeable, array.flags.writeable) == (False, True)
    assert read_only(view) is view
    elsewhere: Any = object()
    assert read_only(elsewhere) is elsewhere


def test_frozen_takes_in_all_of_the_memory() -> None:
    whole = np.arange(12)
    part = frozen(whole.reshape(3, 4)[1])
    assert not whole.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        part.flags.writeable = True


def test_arrays_that_others_can_write_to_are_copied(tmp_path: Path) -> None:
    array = np.arange(6)
    through_view = read_only(array)
    np.save(tmp_path / "a.npy", array)
    for others in (array, through_view, np.load(tmp_path / "a.npy", mmap_mode="r"), np.frombuffer(bytearray(8))):
        assert not is_own(others)
        mine = own(others)
        assert is_own(mine)
        assert type(mine) is np.ndarray
        assert not np.shares_memory(mine, others)
        assert np.array_equal(mine, others)


def test_arrays_that_nobody_writes_to_are_taken() -> None:
    array = frozen(np.arange(6))
    for mine in (array, array[2:], array.reshape(2, 3), np.frombuffer(b"12345678", np.uint8)):
        assert own(mine) is mine
