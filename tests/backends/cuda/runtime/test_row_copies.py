"""Copies of matrices of any type and layout by one kernel, on a GPU."""

import numpy as np
import pytest

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.row_copies import _FROM, as_rows, copy_rows

pytestmark = pytest.mark.gpu

TO = (np.float32, np.float16, np.int64)


@pytest.mark.parametrize("to", TO, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("kind", _FROM)
def test_every_type_is_rounded_as_numpy_rounds_it(kind, to, rng):
    numbers = rng.normal(size=(5, 1100)) * 100
    if np.dtype(kind).kind in "iu":
        numbers = np.clip(numbers, np.iinfo(kind).min, np.iinfo(kind).max)
    given = numbers.astype(kind)
    if kind == "f2" and to != np.int64:
        given[0, :4] = np.inf, -0.0, 65504, 6e-8
    wanted = given.astype(np.float32).astype(to) if to == np.float16 else given.astype(to)
    found = as_rows(cupy().asarray(given), to).get()
    assert found.dtype == to
    assert np.array_equal(found.view(f"i{found.itemsize}"), wanted.view(f"i{found.itemsize}"))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (7,), (1, 1), (40, 3), (3, 2500)], ids=str)
def test_layouts_of_both_sides_are_any(shape, rng):
    given = rng.normal(size=shape).astype(np.float32)
    wide = cupy().asarray(np.asfortranarray(np.repeat(given, 2, axis=-1)))
    wide = wide[:, ::2] if len(shape) > 1 else wide[::2]
    assert np.array_equal(as_rows(wide, np.float32).get(), given)
    target = cupy().zeros((2 * shape[0], *shape[1:]), np.float32, order="F")
    copy_rows(wide, target[::2])
    assert np.array_equal(target.get()[::2], given)
    assert not target.get()[1::2].any()


def test_rows_that_are_as_they_should_be_are_not_copied():
    rows = cupy().zeros((3, 4), np.float16)
    assert as_rows(rows, np.float16) is rows
