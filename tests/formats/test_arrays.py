from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsenn.formats.arrays import collapse_iso, frozen, is_own, own, read_only


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
