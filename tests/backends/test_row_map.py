"""Row maps: what they say of inputs is what a loop over the inputs finds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.chains import SAME_ROWS, RowMap
from sparsenn.formats import from_dense


@st.composite
def maps(draw, inputs=None):
    """A map, and how many rows there are; some belong to no input."""
    computed = draw(st.integers(0, 6))
    inputs = draw(st.integers(0, 12)) if inputs is None else inputs
    places = st.lists(st.integers(-1, computed - 1), min_size=inputs, max_size=inputs)
    return RowMap(np.array(draw(places), np.int32)), computed


@given(maps(), st.data())
def test_maps_follow_each_other(first, data):
    before, computed = first
    after, _ = data.draw(maps(computed))
    expected = [-1 if row < 0 else int(after.rows[row]) for row in before.rows]
    assert before.then(after).rows.tolist() == expected
    assert before.then(SAME_ROWS) is before
    assert SAME_ROWS.then(before) is before


@given(maps(), st.booleans())
def test_each_input_gets_its_row(problem, expanded):
    row_map, computed = problem
    rows = np.arange(1, 3 * computed + 1, dtype=np.float32).reshape(computed, 3)
    columns = np.array([2, 0, 0, 1]) if expanded else None
    each = rows if columns is None else rows[:, columns]
    expected = [[0] * each.shape[1] if row < 0 else each[row].tolist() for row in row_map.rows]
    assert row_map.scatter(rows, columns).tolist() == expected
    assert np.array_equal(SAME_ROWS.scatter(rows, columns), each)
    sparse = row_map.gather(from_dense(each)).validate().to_scipy().toarray()
    assert sparse.reshape(-1, each.shape[1]).tolist() == expected


@given(maps(), st.data())
def test_some_inputs_take_the_rows_they_use(problem, data):
    row_map, computed = problem
    start = data.draw(st.integers(0, row_map.rows.size))
    stop = data.draw(st.integers(start, row_map.rows.size))
    used, taken = row_map.take(start, stop)
    assert used.tolist() == sorted({int(row) for row in row_map.rows[start:stop] if row >= 0})
    rows = np.arange(1, computed + 1)
    assert np.array_equal(taken.scatter(rows[used]), row_map.scatter(rows)[start:stop])
    used, taken = SAME_ROWS.take(start, stop)
    assert (used.tolist(), taken) == (list(range(start, stop)), SAME_ROWS)


@given(maps(), st.data())
def test_inputs_are_counted_by_row(problem, data):
    row_map, computed = problem
    before = np.array(data.draw(st.lists(st.integers(1, 9), min_size=12, max_size=12)))[: row_map.rows.size]
    expected = [int(before[row_map.rows == row].sum()) for row in range(computed)]
    assert row_map.multiplicity(computed, before).tolist() == expected
    assert row_map.multiplicity(computed).tolist() == [int((row_map.rows == row).sum()) for row in range(computed)]
    assert SAME_ROWS.multiplicity(computed) is None


@given(st.permutations(range(6)), st.integers(0, 6))
def test_survivors_are_rows_in_the_order_they_came(order, count):
    row_map = RowMap.of_survivors(np.array(order[:count], np.int64), 6)
    expected = [order.index(row) if row in order[:count] else -1 for row in range(6)]
    assert (row_map is SAME_ROWS) == (expected == list(range(6)))
    assert row_map is SAME_ROWS or row_map.rows.tolist() == expected
