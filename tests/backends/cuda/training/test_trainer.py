"""What all trainers on a GPU share: batches, the layout of rows, and the check of an epoch's order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.training.trainer import batches, checked_order, padded
from sparsenn.errors import InputError, ShapeError


@given(st.integers(1, 500), st.integers(1, 600))
def test_batches_cover_the_rows(rows, batch_size):
    found = list(batches(rows, batch_size))
    assert [start for start, _ in found] == list(range(0, rows, batch_size))
    assert sum(count for _, count in found) == rows
    assert all(count == batch_size for _, count in found[:-1])


@given(st.integers(1, 500))
def test_rows_are_whole_quads(width):
    assert width <= padded(width) < width + 4
    assert padded(width) % 4 == 0


def test_order_is_checked():
    assert checked_order(np.array([2, 0, 1], np.int32), 3).tolist() == [2, 0, 1]
    with pytest.raises(ShapeError, match="3 rows"):
        checked_order(np.arange(4), 3)
    for wrong in ([0, 1, 3], [0, -1, 2]):
        with pytest.raises(InputError, match="0 to 2"):
            checked_order(np.array(wrong), 3)
    with pytest.raises(InputError):
        checked_order(np.array([0.0, 1.0, 2.0]), 3)
