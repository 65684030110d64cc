"""Rows of other libraries on a GPU: taken as they are, and checked by a kernel that runs emulated."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from device_emulation import emulated_device
from emulation import emulated
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparsenn.backends.chains import SparseRows
from sparsenn.backends.cpu.incoming import check_rows as check_on_host
from sparsenn.backends.cuda.runtime import recorder, row_copies
from sparsenn.backends.cuda.runtime.device import cupy as current_cupy
from sparsenn.backends.cuda.transfer import incoming
from sparsenn.errors import InputError, MatrixError, UnsortedError, UsageError
from sparsenn.formats import CSR, from_dense

THREADS, PIECE = 32, 128

OFFSETS = (np.int32, np.int64, np.uint32)
INDICES = (np.uint16, np.int32, np.int64, np.int16, np.uint64)
VALUES = (np.float32, np.float64, np.float16, np.int8, np.bool_)


class Numpy(SimpleNamespace):
    """NumPy in the place of CuPy."""

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
    """A CuPy array on a device."""

    def __init__(self, number):
        self.data = SimpleNamespace(device_id=number)


# ---- Sparse rows, checked ---------------------------------------------------------------------------------------


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
    """Return what the host says of rows."""
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


def test_an_index_that_a_narrow_type_would_wrap_is_found():
    with pytest.raises(MatrixError, match="index 4294967296 is outside"):
        incoming.check_rows(SparseRows((1, 4), np.int64([0, 1]), np.int64([1 << 32]), np.ones(1)))


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


def test_a_value_beyond_float32_is_not_finite():
    with np.errstate(over="ignore"), pytest.raises(MatrixError, match=r"the value 1e\+60 is not finite in float32"):
        incoming.check_rows(SparseRows((1, 4), np.int64([0, 2]), np.int64([0, 1]), np.array([1.0, 1e60])))


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


# ---- Rows of other libraries ------------------------------------------------------------------------------------


class Tensor:
    """An array of another library."""

    def __init__(self, kind, number=0, refuses=False):
        self.kind, self.number, self.refuses = kind, number, refuses

    def __dlpack_device__(self):
        return self.kind, self.number

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("must not be asked: it needs a gradient")


def from_dlpack(tensor):
    if tensor.refuses:
        raise BufferError("it needs a gradient; call detach()")
    return OnDevice(tensor.number)


@pytest.fixture
def cupy(monkeypatch):
    fake = SimpleNamespace(ndarray=OnDevice, from_dlpack=from_dlpack, asarray=lambda rows: OnDevice(rows.number))
    monkeypatch.setattr(incoming, "cupy", lambda: fake)


@pytest.mark.usefixtures("cupy")
def test_rows_on_the_device_are_taken_as_they_are():
    given_rows = OnDevice(1)
    assert incoming.device_rows(given_rows, 1) is given_rows
    for kind in (2, 13):  # device memory, managed memory
        assert incoming.device_rows(Tensor(kind, 1), 1).data.device_id == 1
    by_interface = SimpleNamespace(__cuda_array_interface__={}, number=1)
    assert incoming.device_rows(by_interface, 1).data.device_id == 1


@pytest.mark.usefixtures("cupy")
def test_rows_on_the_host_are_none():
    ones = from_dense(np.ones((2, 2)))
    for rows in (np.ones((2, 2)), ones, ones.to_scipy(), [[1.0]], Tensor(1), Tensor(3)):
        assert incoming.device_rows(rows, 0) is None


class Placed(np.ndarray):
    """An array that says where it lies, as CuPy's do."""

    data = SimpleNamespace(device_id=0)


class Sparse:
    """A matrix of CuPy's, over arrays of NumPy."""

    __module__ = "cupyx.scipy.sparse._base"

    def __init__(self, matrix, **changed):
        self.format, self.shape = matrix.format, matrix.shape
        for name in ("data", "row", "col", "indptr", "indices", "offsets"):
            if hasattr(matrix, name):
                setattr(self, name, np.asarray(changed.get(name, getattr(matrix, name))).view(Placed))

    def tocsr(self):
        raise AssertionError("CuPy follows any index")


def sorted_by_kernels(matrix):
    """As the device's `coo_to_csr`: of entries that one place has, one stays, and the row ends with zeros."""
    count = matrix.shape[0]
    indices, values = np.zeros_like(matrix.columns), np.zeros_like(matrix.values)
    indptr = np.searchsorted(np.sort(matrix.rows), np.arange(count + 1))
    for row in range(count):
        here = np.flatnonzero(matrix.rows == row)[::-1]
        columns, first = np.unique(matrix.columns[here], return_index=True)
        slots = slice(indptr[row], indptr[row] + columns.size)
        indices[slots], values[slots] = columns, matrix.values[here[first]]
    return CSR(matrix.shape, indptr, indices, values)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dia"])
def test_sparse_matrices_of_cupy_become_sparse_rows(form, times, monkeypatch, rng):
    monkeypatch.setattr(incoming, "coo_to_csr", sorted_by_kernels)
    places = np.resize(rng.choice(30, 12, replace=False), 12 * times)
    matrix = sp.coo_array((rng.normal(size=places.size), (places // 6, places % 6)), shape=(5, 6))
    rows = incoming.device_rows(Sparse(matrix.asformat(form) if form != "coo" else matrix), 0)
    assert rows.values.dtype == np.float64
    assert rows.indices.size == (12 * times if form == "coo" else 12)
    summed = sp.csr_array((rows.values, rows.indices, rows.indptr), shape=rows.shape)
    np.testing.assert_allclose(summed.toarray(), matrix.toarray())
    if form == "coo":
        order = np.argsort(places, kind="stable")
        assert np.array_equal(rows.values, matrix.data[order])
        assert np.array_equal(rows.indices, places[order] % 6)


def test_what_lies_behind_the_entries_of_cupys_matrix_is_not_looked_at(monkeypatch):
    monkeypatch.setattr(incoming, "coo_to_csr", sorted_by_kernels)
    roomy = Sparse(sp.eye_array(4, format="csc"), indices=[0, 1, 2, 3, 99], data=[1.0, 1, 1, 1, np.nan])
    rows = incoming.device_rows(roomy, 0)
    assert (rows.indices.tolist(), rows.values.tolist()) == ([0, 1, 2, 3], [1.0] * 4)


def test_diagonals_of_cupy_may_be_wider_than_the_matrix_and_reach_beyond(monkeypatch, rng):
    monkeypatch.setattr(incoming, "coo_to_csr", sorted_by_kernels)
    matrix = sp.dia_array((rng.random((5, 9)), [-7, -2, 0, 3, 5]), shape=(4, 6))
    rows = incoming.device_rows(Sparse(matrix), 0)
    found = sp.csr_array((rows.values, rows.indices, rows.indptr), shape=rows.shape)
    assert np.array_equal(found.toarray(), matrix.toarray())


def test_entries_in_order_are_not_sorted_again(monkeypatch):
    monkeypatch.setattr(incoming, "coo_to_csr", sorted_by_kernels)
    monkeypatch.setattr(incoming, "cupy", lambda: Numpy(ndarray=OnDevice, argsort=None))
    for form in ("csc", "coo", "dia"):
        assert incoming.device_rows(Sparse(sp.eye_array(4).asformat(form)), 0).indices.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("form", "changed", "told"),
    [
        ("csc", {"indices": [0, 1, 2, 9]}, r"indices run from 0 to 9, outside 0\.\.3"),
        ("csc", {"indptr": [0, 1, 2, 3, 99]}, "indptr must hold 5 offsets that rise from 0 to at most 4"),
        ("coo", {"row": [0, 1, 2, 4]}, r"rows run from 0 to 4, outside 0\.\.3"),
        ("coo", {"col": [0, 1, 2]}, "each entry takes a row, a column and a value"),
        ("dia", {"offsets": [0, 1]}, "offsets must hold a number for each of the 1 diagonals"),
    ],
)
def test_wild_matrices_of_cupy_are_refused(form, changed, told):
    with pytest.raises(MatrixError, match=told):
        incoming.device_rows(Sparse(sp.eye_array(4).asformat(form), **changed), 0)


@pytest.mark.usefixtures("cupy")
def test_rows_on_another_gpu_are_refused():
    by_interface = SimpleNamespace(__cuda_array_interface__={}, number=2)
    elsewhere = Sparse(sp.eye_array(4, format="csc"))
    elsewhere.indices = OnDevice(2)
    for rows in (OnDevice(2), Tensor(2, 2), elsewhere, by_interface):
        with pytest.raises(UsageError, match=r"rows .* cuda:2, .* cuda:0"):
            incoming.device_rows(rows, 0)


@pytest.mark.usefixtures("cupy")
def test_rows_that_their_library_keeps_are_refused_in_its_words():
    with pytest.raises(InputError, match=r"a Tensor, .* gradient"):
        incoming.device_rows(Tensor(2, refuses=True), 0)


# ---- Matrices, and outputs as sparse rows -----------------------------------------------------------------------


@pytest.mark.parametrize("keep_half", [True, False])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.uint8])
def test_a_matrix_is_of_a_type_that_kernels_take(kind, keep_half):
    rows = np.arange(12).reshape(3, 4).astype(kind)
    found = incoming.matrix(rows, keep_half)
    assert found.dtype == (np.float16 if keep_half and kind == np.float16 else np.float32)
    assert np.array_equal(found, rows)
    assert (found is rows) == (found.dtype == kind)
    assert incoming.matrix(rows.T, keep_half).flags.c_contiguous


@contextmanager
def emulated_to_csr():
    """The device on which `to_cupy_csr` runs, whose matrices become SciPy's."""

    def csr_matrix(parts, shape):
        return sp.csr_matrix(tuple(part.get() for part in parts), shape)

    with pytest.MonkeyPatch.context() as patch, emulated_device(patch):
        patch.setattr(incoming, "cupy", current_cupy)
        patch.setattr(incoming, "THREADS", 64)
        patch.setattr(incoming, "as_rows", row_copies.as_rows)
        patch.setattr(incoming, "launch", recorder.launch)
        patch.setattr(incoming, "import_module", lambda name: SimpleNamespace(csr_matrix=csr_matrix))
        yield


@settings(deadline=None, max_examples=30)
@given(matrices, st.sampled_from([np.float32, np.float16]))
def test_dense_rows_become_the_csr_that_they_become_on_the_host(matrix, kind):
    dense = matrix.to_scipy().toarray().astype(kind)
    with emulated_to_csr():
        found, expected = incoming.to_cupy_csr(current_cupy().asarray(dense)), from_dense(dense).to_scipy()
    assert isinstance(found, sp.csr_matrix)
    assert found.shape == expected.shape
    for name in ("indptr", "indices", "data"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
        assert getattr(found, name).dtype == getattr(expected, name).dtype


def test_more_entries_than_cupys_matrices_can_have_are_refused(monkeypatch):
    monkeypatch.setattr(incoming, "MOST_ENTRIES", 8)
    with emulated_to_csr(), pytest.raises(UsageError, match=r'9 non-zeros.*up to 8: ask for form="dense"'):
        incoming.to_cupy_csr(current_cupy().asarray(np.ones((3, 3), np.float32)))
