"""Sparse rows on a GPU, checked by a kernel that runs emulated."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from emulation import emulated
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparsenn.backends.chains import SparseRows
from sparsenn.backends.cpu.incoming import check_rows as check_on_host
from sparsenn.backends.cuda.transfer import incoming
from sparsenn.errors import MatrixError, UnsortedError
from sparsenn.formats import from_dense

THREADS, PIECE = 32, 128

OFFSETS = (np.int32, np.int64, np.uint32)
INDICES = (np.uint16, np.int32, np.int64, np.int16, np.uint64)
VALUES = (np.float32, np.float64, np.float16, np.int8, np.bool_)


class Numpy(SimpleNamespace):
    def __getattr__(self, name):
        return getattr(np, name)


class Checked:
    """The kernel, compiled for the host."""

    def kernel(self, name, **defines):
        assert name == "check_rows"
        return emulated("incoming/check_rows.cu", {**defines, "PIECE": PIECE, "THREADS": THREADS})


def launch(name, kernel, grid, block, *arguments, shared_bytes):
    assert shared_bytes == THREADS // 32 * 16
    passed = (np.uintp(0) if np.size(argument) == 0 else argument for argument in arguments)
    kernel.launch(*grid, *block, *passed, seed=int(arguments[2]))


@pytest.fixture(scope="module", autouse=True)
def on_the_host():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incoming, "cupy", lambda: Numpy(asnumpy=np.array, ndarray=OnDevice))
        patch.setattr(incoming, "_CHECK", Checked())
        patch.setattr(incoming, "launch", launch)
        patch.setattr(incoming, "as_rows", np.ascontiguousarray)
        for name, value in {"THREADS": THREADS, "PIECE": PIECE, "ROWS_PER_BLOCK": 128, "MOST_BLOCKS": 3}.items():
            patch.setattr(incoming, name, value)
        patch.setattr(incoming, "SHARED_BYTES", THREADS // 32 * 16)
        yield


class OnDevice:
    def __init__(self, number):
        self.data = SimpleNamespace(device_id=number)


def matrix_of(seed, rows, width, ones):
    rng = np.random.default_rng(seed)
    dense = (rng.random((rows, width)) < rng.random()) * (1.0 if ones else rng.integers(1, 100, (rows, width)))
    dense[rng.random(rows) < 0.3] = 0
    return from_dense(dense.astype(np.float32))


matrices = st.builds(
    matrix_of, st.integers(0, 1 << 30), st.integers(0, 300), st.sampled_from([1, 2, 9, 70]), st.booleans()
)


def behind(count, numbers):
    """Return numbers that lie behind so many others: at no multiple of 16 bytes."""
    return np.concatenate([np.zeros(count, numbers.dtype), numbers])[count:]


@settings(deadline=None)
@given(
    matrices,
    st.sampled_from(OFFSETS),
    st.sampled_from(INDICES),
    st.sampled_from(VALUES),
    st.integers(0, 1000),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_rows_of_any_types_become_the_same_csr(matrix, offset_type, index_type, value_type, base, skipped, others):
    values = behind(others, matrix.expanded_values().astype(value_type))
    indptr, indices = (matrix.indptr + base).astype(offset_type), behind(skipped, matrix.indices.astype(index_type))
    found = incoming.check_rows(SparseRows(matrix.shape, indptr, indices, values))
    assert np.array_equal(found.indptr, matrix.indptr)
    assert np.array_equal(found.indices, matrix.indices)
    assert np.array_equal(found.expanded_values(), values.astype(np.float32))
    assert found.iso == (np.unique(values).size == 1)
    found.validate()


def test_arrays_of_the_right_types_are_not_copied():
    matrix = from_dense(np.arange(1, 101).reshape(10, 10))
    found = incoming.check_rows(SparseRows(matrix.shape, matrix.indptr, matrix.indices, matrix.values))
    for name in ("indptr", "indices", "values"):
        assert np.shares_memory(getattr(found, name), getattr(matrix, name))


def test_a_value_for_all_is_taken_and_looked_at():
    ones = from_dense(np.ones((5, 5)))
    found = incoming.check_rows(SparseRows(ones.shape, ones.indptr, ones.indices, np.float32([3.0])))
    assert np.array_equal(found.values, [3.0])
    with pytest.raises(MatrixError, match="entry 0: the value nan is not finite"):
        incoming.check_rows(SparseRows(ones.shape, ones.indptr, ones.indices, np.float32([np.nan])))


def test_minus_zero_is_another_value_than_zero():
    found = incoming.check_rows(SparseRows((1, 2), np.int64([0, 2]), np.uint16([0, 1]), np.float32([0.0, -0.0])))
    assert not found.iso


def test_wide_rows_have_wide_indices():
    rows = SparseRows((1, 70_000), np.int64([0, 2]), np.uint16([0, 65_535]), np.ones(2, np.float32))
    found = incoming.check_rows(rows)
    assert found.indices.dtype == np.int32
    assert np.array_equal(found.indices, [0, 65_535])


@settings(deadline=None)
@given(matrices.filter(lambda matrix: matrix.nnz > 0), st.data())
def test_a_fault_is_told_as_on_the_host(matrix, data):
    indptr, indices = matrix.indptr.copy(), matrix.indices.astype(np.int32)
    values = matrix.expanded_values().copy()
    for kind in data.draw(st.lists(st.sampled_from(["index", "value", "offset"]), min_size=1, max_size=3)):
        at = data.draw(st.integers(0, matrix.nnz - 1))
        if kind == "index":
            indices[at] = data.draw(st.integers(0, matrix.width - 1))
        elif kind == "value":
            values[at] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 2.0]))
        else:
            indptr[data.draw(st.integers(1, indptr.size - 1))] += data.draw(st.sampled_from([-1, 1]))
    rows = SparseRows(matrix.shape, indptr, indices, values)
    told = fault_told(rows)
    if told is None and int(indptr[-1]) == matrix.nnz:
        incoming.check_rows(rows)
        return
    with pytest.raises(MatrixError) as found:
        incoming.check_rows(rows)
    assert told is None or (type(found.value), str(found.value)) == (type(told), str(told))


def fault_told(rows):
    try:
        check_on_host(rows)
    except MatrixError as error:
        return error
    return None


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("at", [0, 1, 6, 7])
@pytest.mark.parametrize("index", [-1, 4, 1 << 30])
def test_indices_out_of_range_are_found(kind, at, index):
    indices = np.array([0, 1, 2, 3] * 2, kind)
    indices[at] = index
    with pytest.raises(MatrixError, match=f"row {at // 4}, entry {at}: index {index} ") as found:
        incoming.check_rows(SparseRows((2, 4), np.int32([0, 4, 8]), indices, np.ones(8, np.float32)))
    assert not isinstance(found.value, UnsortedError)


@pytest.mark.parametrize(
    ("indices", "values", "message"),
    [
        ([0, 1 << 32], [1.0, 1.0], "index 4294967296 is outside"),  # which a narrow type would wrap
        ([0, 1], [1.0, 1e60], r"the value 1e\+60 is not finite in float32"),
    ],
)
def test_numbers_beyond_a_type_are_found(indices, values, message):
    rows = SparseRows((1, 4), np.int64([0, 2]), np.int64(indices), np.array(values))
    with np.errstate(over="ignore"), pytest.raises(MatrixError, match=message):
        incoming.check_rows(rows)


def test_a_check_that_is_queued_passes_rows_of_one_value():
    indptr, indices, values = np.int64([0, 2, 3]), np.uint16([0, 3, 1]), np.float32([2, 2, 2])
    check = incoming.QueuedCheck(SparseRows((2, 4), indptr, indices, values))
    assert check.passed()
    assert not check.found.any()
    assert check.rows.found is check.found
    for kept, given_array in zip(check.rows.arrays, (indptr, indices, values[:1]), strict=True):
        assert np.array_equal(kept, given_array)
    for other in (
        SparseRows((2, 4), indptr, indices, np.float32([2, 2, 3])),
        SparseRows((2, 4), indptr + 5, indices, values),
    ):
        check = incoming.QueuedCheck(other)
        assert not check.passed()
        assert check.found.any()
        assert np.array_equal(check.result().indptr, indptr)
    unsorted = incoming.QueuedCheck(SparseRows((2, 4), indptr, np.uint16([3, 0, 1]), values))
    assert not unsorted.passed()  # placing the rows sorts them
    assert unsorted.found.any()
    check = incoming.QueuedCheck(SparseRows((2, 4), indptr, np.uint16([0, 9, 1]), values))
    assert check.found.any()
    with pytest.raises(MatrixError, match="index 9 is outside"):
        check.passed()


@settings(deadline=None)
@given(
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-5, 200), min_size=1, max_size=300),
    st.integers(0, 200),
)
@example([(1 << 63) - 1, -(1 << 63)], 2)
def test_offsets_may_hold_anything(offsets, entries):
    """What is outside of the arrays is never read: the emulation would stop."""
    indptr = np.array(offsets, np.int64)
    rows = SparseRows((indptr.size - 1, 500), indptr, np.arange(entries, dtype=np.int32), np.ones(entries, np.float32))
    starts = [offset - offsets[0] for offset in offsets]
    if starts == sorted(starts) and starts[-1] == entries:
        incoming.check_rows(rows)
        return
    with pytest.raises(MatrixError):
        incoming.check_rows(rows)


@pytest.mark.parametrize(
    ("indptr", "indices", "values", "told"),
    [
        (np.zeros(2), np.zeros(0, int), np.zeros(0), "indptr must be a vector of integers"),
        (np.zeros(2, int), np.zeros((1, 1), int), np.zeros(1), "indices must be a vector of integers"),
        (np.zeros(3, int), np.zeros(0, int), np.zeros(0), "indptr has 3 numbers; 1 rows take 2"),
        (np.zeros(2, int), np.zeros(0, int), np.zeros(0, complex), "values must be a vector of real numbers"),
        (np.zeros(2, int), np.zeros(3, int), np.zeros(2), "2 values for 3 entries"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(indptr, indices, values, told):
    with pytest.raises(MatrixError, match=told):
        incoming.check_rows(SparseRows((1, 4), indptr, indices, values))
