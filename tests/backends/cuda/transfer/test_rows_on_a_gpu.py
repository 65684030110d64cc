"""Rows that come to a GPU and go from it: through pinned memory, from CuPy's matrices, and checked there."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from transfer_memory import device_bytes, pinned_bytes

from sparsenn import Linear, Network, ReLU, Session, SparseLinear
from sparsenn.backends.chains import SparseRows
from sparsenn.backends.cuda import images
from sparsenn.backends.cuda.transfer import incoming
from sparsenn.backends.cuda.transfer.copies import PIECE_BYTES, SMALL_BYTES, Transfer
from sparsenn.errors import MatrixError, UnsortedError, UsageError
from sparsenn.formats import CSR, from_dense

pytestmark = pytest.mark.gpu

SIZES = (0, 1, SMALL_BYTES // 4, SMALL_BYTES // 4 + 1, PIECE_BYTES // 4 + 3, 5 * PIECE_BYTES)
"""Numbers of a matrix, around those at which the way of a copy changes."""


def sparse_rows(dense, kind=np.int32):
    rows = from_dense(dense)
    return SparseRows(rows.shape, rows.indptr.astype(kind), rows.indices.astype(kind), rows.expanded_values())


def on_the_host(matrix):
    return CSR(matrix.shape, matrix.indptr.get(), matrix.indices.get(), matrix.values.get())


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, np.uint8, np.bool_, np.int64])
@pytest.mark.parametrize("count", SIZES)
def test_rows_arrive(count, kind, rng):
    transfer, rows = Transfer(), (3 * rng.random((count, 1))).astype(kind)
    for given in (rows, rows[::2], rows.reshape(1, count)):
        placed = transfer.place_dense(given)
        assert placed.dtype == np.float32
        assert np.array_equal(placed.get(), given.astype(np.float32))
    if kind == np.float16:
        assert np.array_equal(transfer.place_dense(rows, keep_half=True).get(), rows)
    transfer.release()
    assert (pinned_bytes(transfer), device_bytes(transfer)) == (0, 0)


def test_rows_in_flight_are_not_written_over(cupy):
    transfer, found = Transfer(), []
    rows = np.empty((3000, 1024), np.float32)
    for number in range(30):
        rows[...] = number
        placed = transfer.place_dense(rows)
        for _ in range(20):
            placed = cupy.sqrt(placed * placed)  # work that takes longer than the copy
        found.append((placed.min(), placed.max()))
        del placed
    assert [(float(least), float(most)) for least, most in found] == [(number, number) for number in range(30)]
    assert pinned_bytes(transfer) <= 128 << 20


@pytest.mark.parametrize("count", SIZES)
def test_rows_come_back(count, rng, cupy):
    transfer, numbers = Transfer(), rng.random((count, 1), np.float32)
    for target in (np.zeros((count, 1), np.float32), np.zeros((count, 2))[:, :1]):
        rows = cupy.asarray(numbers)
        finish = transfer.fetch_later(rows, target)
        del rows
        cupy.zeros((count, 1), np.float32)
        finish()
        assert np.array_equal(target, numbers)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint16])
@pytest.mark.parametrize("ones", [True, False])
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 4000), (4000, 3), (3000, 1024)], ids=str)
def test_sparse_rows_are_checked(shape, ones, kind, rng, cupy):
    dense = ((rng.random(shape) < 0.2) * (1 if ones else 1 + rng.random(shape))).astype(np.float32)
    rows, expected = sparse_rows(dense, np.int64), from_dense(dense)
    given = SparseRows(rows.shape, rows.indptr + 7, rows.indices.astype(kind), rows.values)
    for here in (Transfer().place_sparse(given), SparseRows(given.shape, *map(cupy.asarray, parts(given)))):
        found = on_the_host(incoming.check_rows(here))
        for left, right in zip(parts(found), parts(expected), strict=True):
            assert left.dtype == right.dtype
            assert np.array_equal(left, right)


def parts(rows):
    return rows.indptr, rows.indices, rows.values


def test_faults_of_sparse_rows_are_found(rng):
    transfer = Transfer()
    good = sparse_rows((rng.random((2000, 500)) < 0.1).astype(np.float32))
    for name, at, number, told in (
        ("indptr", 700, 1 << 30, "row 699: indptr"),
        ("indices", 5000, 500, "index 500 is outside 0..499"),
        ("indices", 5000, -1, "index -1 is outside 0..499"),
        ("values", 999, np.nan, "entry 999: the value nan is not finite"),
    ):
        arrays = {"indptr": good.indptr, "indices": good.indices, "values": good.values}
        arrays[name] = arrays[name].copy()
        arrays[name][at] = number
        with pytest.raises(MatrixError, match=told) as found:
            incoming.check_rows(transfer.place_sparse(SparseRows(good.shape, **arrays)))
        assert not isinstance(found.value, UnsortedError)
    indices = good.indices.copy()
    at = int(good.indptr[1])
    indices[:at] = indices[:at][::-1]
    with pytest.raises(UnsortedError, match="row 0, entry 1: index"):
        incoming.check_rows(transfer.place_sparse(SparseRows(good.shape, good.indptr, indices, good.values)))


def in_form(form, matrix):
    from cupyx.scipy import sparse

    return getattr(sparse, f"{form}_matrix")(getattr(matrix, f"to{form}")())


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dia"])
def test_sparse_matrices_of_cupy_are_taken(form, rng):
    dense = ((rng.random((60, 40)) < 0.1) * rng.random((60, 40))).astype(np.float32)
    rows = incoming.device_rows(in_form(form, sp.csr_array(dense)), 0)
    found, expected = on_the_host(incoming.check_rows(rows)), from_dense(dense)
    for left, right in zip(parts(found), parts(expected), strict=True):
        assert np.array_equal(left, right)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dia"])
def test_weights_may_be_matrices_of_cupy(form, rng):
    host = sp.csr_array((rng.random((20, 30)) < 0.3) * rng.normal(size=(20, 30)).astype(np.float32))
    found, expected = SparseLinear.from_scipy(in_form(form, host)), SparseLinear.from_scipy(host)
    for left, right in zip(parts(found.weights), parts(expected.weights), strict=True):
        assert np.array_equal(left, right)


@pytest.mark.parametrize("form", ["csc", "coo", "dia"])
def test_sparse_matrices_of_cupy_keep_their_numbers(form, rng):
    dense = (rng.random((30, 20)) < 0.5) * rng.random((30, 20))
    rows = incoming.fetch_rows(incoming.device_rows(in_form(form, sp.csr_array(dense)), 0))
    assert rows.values.dtype == np.float64
    assert np.array_equal(sp.csr_array((rows.values, rows.indices, rows.indptr), rows.shape).toarray(), dense)


def test_diagonals_of_cupy_may_be_wider_than_the_matrix(rng, cupy):
    from cupyx.scipy import sparse

    host = sp.dia_array((rng.random((5, 9)), [-7, -2, 0, 3, 5]), shape=(4, 6))
    matrix = sparse.dia_matrix((cupy.asarray(host.data), cupy.asarray(host.offsets, np.int32)), shape=host.shape)
    rows = incoming.fetch_rows(incoming.device_rows(matrix, 0))
    found = sp.csr_array((rows.values, rows.indices, rows.indptr), rows.shape)
    assert np.array_equal(found.toarray(), host.toarray())


@pytest.mark.parametrize(("height", "width", "times"), [(40, 30, 3), (3, 100_000, 2), (1, 1, 5)])
def test_entries_that_cupys_matrix_has_more_than_once_are_added_up_in_order(height, width, times, rng):
    count = 200
    rows, columns = (np.resize(rng.integers(0, most, count), times * count) for most in (height, width))
    values = rng.normal(size=times * count)
    matrix = in_form("coo", sp.coo_array((values, (rows, columns)), shape=(height, width)))
    given = incoming.fetch_rows(incoming.device_rows(matrix, 0))
    order = np.argsort(rows.astype(np.int64) * width + columns, kind="stable")
    assert np.array_equal(given.values, values[order])
    assert np.array_equal(given.indices, columns[order])
    network = Network((Linear(rng.normal(size=(width, 3)).astype(np.float32), np.zeros(3, np.float32)),))
    expected = Session(network, device="reference")(sp.coo_array((values, (rows, columns)), shape=(height, width)))
    found = Session(network, device="cuda")(matrix, form="dense").get()
    np.testing.assert_allclose(found, expected.toarray(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("form", "part", "numbers", "told"),
    [
        ("csc", "indices", [0, 1, 2, 1 << 30], "indices run from 0 to 1073741824, outside 0..3"),
        ("csc", "indices", [0, -7, 2, 3], "indices run from -7 to 3, outside 0..3"),
        ("csc", "indices", [0, 1, 2], "indptr must hold 5 offsets that rise from 0 to at most 3"),
        ("csc", "indptr", [0, 1, 2, 3, 1 << 30], "indptr must hold 5 offsets that rise from 0 to at most 4"),
        ("csc", "indptr", [0, 2**31 - 1, -(2**31), 3, 4], "indptr must hold 5 offsets that rise"),
        ("csc", "indptr", [0, 4], "indptr must hold 5 offsets"),
        ("coo", "row", [0, 1, 2, 4], "rows run from 0 to 4, outside 0..3"),
        ("coo", "col", [-1, 1, 2, 3], "columns run from -1 to 3, outside 0..3"),
        ("coo", "col", [0, 1, 2], "each entry takes a row, a column and a value"),
        ("dia", "offsets", [0, 1], "a number for each of the 1 diagonals"),
        ("dia", "offsets", [-(2**31)], "beyond int32"),
    ],
)
def test_wild_matrices_of_cupy_are_refused_before_they_are_followed(form, part, numbers, told, cupy):
    matrix = in_form(form, sp.eye_array(4, dtype=np.float32))
    setattr(matrix, part, cupy.asarray(numbers, np.int32))
    session = Session(Network((Linear(np.eye(4, dtype=np.float32), np.zeros(4, np.float32)),)), device="cuda")
    with pytest.raises(MatrixError, match=told):
        session(matrix)
    assert np.array_equal(session(cupy.eye(4, dtype=np.float32)).get(), np.eye(4))  # the device goes on


def test_what_lies_behind_the_entries_of_cupys_matrix_is_not_looked_at(cupy):
    matrix = in_form("csc", sp.eye_array(4, dtype=np.float32))
    matrix.indices = cupy.asarray([0, 1, 2, 3, 99], np.int32)
    matrix.data = cupy.asarray([1, 1, 1, 1, np.nan], np.float32)
    rows = incoming.fetch_rows(incoming.device_rows(matrix, 0))
    assert (rows.indices.tolist(), rows.values.tolist()) == ([0, 1, 2, 3], [1.0] * 4)


@pytest.mark.parametrize("offset", [9, 1 - 2**31, 2**31 - 1])
def test_diagonals_of_cupy_that_lie_outside_are_empty(offset, cupy):
    matrix = in_form("dia", sp.eye_array(4, dtype=np.float32))
    matrix.offsets = cupy.asarray([offset], np.int32)
    assert incoming.device_rows(matrix, 0).indices.size == 0


def test_arrays_on_the_device_are_not_copied(cupy):
    rows = cupy.ones((3, 4), np.float32)
    assert incoming.device_rows(rows, 0) is rows
    assert incoming.matrix(rows, keep_half=False).data.ptr == rows.data.ptr

    class Exported:
        def __dlpack__(self, **options):
            return rows.__dlpack__(**options)

        def __dlpack_device__(self):
            return rows.__dlpack_device__()

    assert incoming.device_rows(Exported(), 0).data.ptr == rows.data.ptr
    with pytest.raises(UsageError, match=r"rows .* cuda:0, .* cuda:1"):
        incoming.device_rows(rows, 1)


@pytest.mark.parametrize("shape", [(0, 3), (4, 5), (300, 70_000)], ids=str)
def test_dense_rows_become_sparse_ones(shape, rng, cupy):
    for dense in (np.zeros(shape), (rng.random(shape) < 0.1) * 1.0, (rng.random(shape) < 0.1) * rng.random(shape)):
        rows = cupy.asarray(dense, dtype=np.float32)
        found, expected = incoming.to_cupy_csr(rows).get(), from_dense(dense.astype(np.float32)).to_scipy()
        for name in ("indptr", "indices", "data"):
            assert getattr(found, name).dtype == getattr(expected, name).dtype
            assert np.array_equal(getattr(found, name), getattr(expected, name))


def test_more_entries_than_cupys_matrices_can_have_are_refused(monkeypatch, cupy):
    monkeypatch.setattr(incoming, "MOST_ENTRIES", 8)
    with pytest.raises(UsageError, match=r'9 non-zeros.*up to 8: ask for form="dense"'):
        incoming.to_cupy_csr(cupy.ones((3, 3), np.float32))


def test_numbers_are_looked_at_batch_by_batch(rng, cupy):
    check, numbers = images.NumberCheck(), rng.normal(size=(5, 100_000)).astype(np.float32)
    for batch in numbers:
        check.scan(cupy.asarray(batch))
    assert check.result() == (float(np.abs(numbers).max()), True)


def test_rows_of_halves_end_in_the_right_categories(rng, cupy):
    rows = rng.normal(size=(1000, 20)).astype(np.float16) * (rng.random((1000, 1)) < 0.5)
    rows[::3] = -np.abs(rows[::3])
    network = Network((Linear(np.eye(20, dtype=np.float32), np.zeros(20, np.float32), ReLU()),))
    session = Session(network, device="cuda", precision="float16")
    result = session.run(cupy.asarray(rows), statistics=False)
    assert np.array_equal(result.categories, np.flatnonzero((rows > 0).any(axis=1)))
