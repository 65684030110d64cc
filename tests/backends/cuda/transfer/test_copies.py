"""Rows through pinned memory, on streams that are late: what arrives, what waits for what, and what is kept."""

from __future__ import annotations

import gc
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from late_cupy import LateCuPy
from transfer_memory import device_bytes, pinned_bytes

from sparsenn.backends.chains import SparseRows
from sparsenn.backends.cuda.runtime import memory
from sparsenn.backends.cuda.transfer import copies as transfer
from sparsenn.backends.cuda.transfer.copies import Transfer

KINDS = ("f2", "f4", "f8", ">f4", ">f2", "g", "u1", "i2", "i4", "i8", "u8", "?", ">i2")
PIECE_BYTES, SMALL_BYTES = 64, 100


@pytest.fixture(autouse=True, scope="module")
def little_memory():
    with pytest.MonkeyPatch.context() as patch:
        sizes = {"PIECE_BYTES": PIECE_BYTES, "SMALL_BYTES": SMALL_BYTES, "PART_BYTES": 20, "THREADS": 3}
        pieces = {"PIECES_UP": 4, "PIECES_DOWN": 3, "PIECES_WAITING": 2}
        for name, value in (sizes | pieces | {"thread_count": lambda: 3}).items():
            patch.setattr(transfer, name, value)
        patch.setattr(memory, "ALIGNMENT", 16)
        yield


def stand_in(patch, *how):
    """Have a late CuPy and its driver take the places of the real ones."""
    fake = LateCuPy(*how)
    patch.setattr(transfer, "cupy", lambda: fake)
    patch.setattr(transfer, "driver", fake.driver)
    patch.setattr(transfer, "as_rows", lambda rows, kind: rows if rows.dtype == kind else fake.asarray(rows, kind))
    return fake


@pytest.fixture
def cupy(monkeypatch):
    return stand_in(monkeypatch)


def rows_of(seed, shape, kind, layout):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 100, shape).astype(kind)
    if layout == "columns":
        return np.asfortranarray(rows)
    if layout == "every other":
        wide = np.zeros((shape[0], 2 * shape[1]), kind)
        wide[:, ::2] = rows
        return wide[:, ::2]
    return rows[::-1] if layout == "upside down" else rows


matrices = st.builds(
    rows_of,
    st.integers(0, 1 << 30),
    st.tuples(st.integers(0, 40), st.sampled_from([1, 2, 3, 17, 40])),
    st.sampled_from(KINDS),
    st.sampled_from(["rows", "columns", "every other", "upside down"]),
)
chances = st.sampled_from([0.0, 0.3, 0.9])


@settings(deadline=None)
@given(st.lists(st.tuples(matrices, st.booleans(), st.booleans()), min_size=1, max_size=8), chances, st.integers(0, 99))
def test_rows_arrive_as_they_were_given(given_rows, chance, seed):
    """Their memory is written to as soon as that may be, and what was placed is dropped once work on it is queued."""
    found, expected, held = [], [], []
    with pytest.MonkeyPatch.context() as patch:
        fake = stand_in(patch, chance, seed)
        made = Transfer()
        for rows, keep_half, holds in given_rows:
            kept = np.float16 if keep_half and rows.dtype == np.float16 else np.float32
            expected.append(rows.astype(kept))
            placed = made.place_dense(rows, keep_half)
            assert placed.dtype == kept
            rows[...] = 1
            fake.read(placed, found)
            if holds:
                held.append(placed)
            del placed
        fake.default.synchronize()
    for left, right in zip(found, expected, strict=True):
        assert left.dtype == right.dtype
        assert np.array_equal(left, right)
    assert len(given_rows) == len(found)


@settings(deadline=None)
@given(
    st.lists(st.tuples(*(st.integers(0, 60) for _ in range(3))), min_size=1, max_size=6),
    st.sampled_from(["f4", "f8", "i1", "f2"]),
    chances,
)
def test_sparse_rows_arrive_in_their_types(sizes, kind, chance):
    found, expected = [], []
    rng = np.random.default_rng(len(sizes))
    with pytest.MonkeyPatch.context() as patch:
        fake = stand_in(patch, chance)
        made = Transfer()
        for rows, entries, shared in sizes:
            values = rng.integers(0, 99, 1 if shared % 2 else entries).astype(kind)
            given_rows = SparseRows(
                (rows, 7), rng.integers(0, 99, rows + 1).astype(np.int32), rng.integers(0, 99, entries), values
            )
            placed = made.place_sparse(given_rows)
            for name in ("indptr", "indices", "values"):
                array = getattr(given_rows, name)
                expected.append(array.astype(np.float32) if array.dtype == np.float64 else array.copy())
                fake.read(getattr(placed, name), found)
                array[...] = 0
            assert placed.shape == given_rows.shape
            del placed
        fake.default.synchronize()
    for left, right in zip(found, expected, strict=True):
        assert left.dtype == right.dtype
        assert np.array_equal(left, right)


def test_numbers_beyond_float32_become_infinite(cupy):
    found = []
    rows = np.full((10, 10), 1e60)
    cupy.read(Transfer().place_dense(rows), found)
    cupy.default.synchronize()
    assert np.isposinf(found[0]).all()


def test_rows_are_copied_while_others_are_computed(cupy):
    made, found, rows = Transfer(), [], np.ones((10, 10), np.float32)
    copies = cupy.streams[1]
    for _ in range(5):
        cupy.read(made.place_dense(rows), found)  # and dropped
        steps = len(cupy.default.queue)
        copies.synchronize()
        assert len(cupy.default.queue) >= steps - 5  # the work before the last two has to end, no more
    assert len(found) >= 3
    assert len(found) <= 4


def test_the_first_rows_wait_for_nothing(cupy):
    made, rows = Transfer(), np.ones((10, 10), np.float32)
    cupy.queue(cupy.default, lambda: pytest.fail("work before need not end"))
    made.place_dense(rows)
    cupy.streams[1].synchronize()


def test_a_copy_to_the_host_that_fails_is_told(cupy):
    made, rows, target = Transfer(), cupy.empty((30, 10), np.float32), np.zeros((30, 10), np.float32)
    cupy.write(rows, np.ones((30, 10)))
    cupy.fails = True
    with pytest.raises(OSError, match="the copy fails"):
        made.fetch_later(rows, target)()
    cupy.fails = False
    made.fetch_later(rows, target)()
    assert (target == 1).all()


def test_blocks_are_used_again(cupy):
    made, rows, places = Transfer(), np.ones((10, 10), np.float32), set()
    for count in (10, 9, 10, 8, 10, 7):
        places.add(made.place_dense(rows[:count]).ctypes.data)
    assert len(places) == 2
    assert 400 < device_bytes(made) <= 2 * 400
    held = [made.place_dense(rows) for _ in range(5)]
    del held
    made.place_dense(np.ones((100, 10), np.float32))
    assert device_bytes(made) <= 400 + 4000
    made.release()
    assert device_bytes(made) == 0


def test_memory_that_was_let_go_is_not_written_to_before_it_was_read(cupy):
    made, found = Transfer(), []
    for number in range(4):
        cupy.read(made.place_dense(np.full((10, 10), number, np.float32)), found)
        made.release()
        cupy.streams[1].synchronize()
    cupy.default.synchronize()
    assert [numbers[0, 0] for numbers in found] == [0, 1, 2, 3]


def test_where_memory_does_not_suffice_blocks_that_wait_are_let_go(cupy, monkeypatch):
    made, alloc, refused = Transfer(), cupy.cuda.alloc, []
    made.place_dense(np.ones((10, 10), np.float32))

    def scarce(size):
        if device_bytes(made):
            refused.append(size)
            raise MemoryError
        return alloc(size)

    monkeypatch.setattr(cupy.cuda, "alloc", scarce)
    found = []
    cupy.read(made.place_dense(np.full((100, 10), 5, np.float32)), found)
    cupy.default.synchronize()
    assert refused == [4000]
    assert (found[0] == 5).all()


def test_pinned_memory_is_bounded_and_goes_back(cupy):
    made, rows = Transfer(), np.ones((300, 10), np.float32)
    assert (pinned_bytes(made), cupy.pinned) == (0, 0)
    for _ in range(3):
        placed = made.place_dense(rows)
        finishing = [made.fetch_later(placed[:2], np.zeros((2, 10), np.float32)) for _ in range(4)]
        made.fetch_later(placed, rows)()
        for finish in finishing:
            finish()
    assert pinned_bytes(made) == cupy.pinned <= (4 + 3 + 2) * PIECE_BYTES
    made.release()
    assert (pinned_bytes(made), cupy.pinned) == (0, 0)
    made.place_dense(rows)
    assert cupy.pinned > 0
    del made, placed, finish, finishing
    gc.collect()
    assert cupy.pinned == 0


def test_a_copy_that_fails_is_told_and_keeps_nothing(cupy):
    made, rows, found = Transfer(), np.ones((10, 10), np.float32), []
    for _ in range(6):
        cupy.fails = True
        with pytest.raises(OSError, match="the copy fails"):
            made.place_dense(rows)
        cupy.fails = False
        cupy.read(made.place_dense(rows), found)
    cupy.default.synchronize()
    assert all((numbers == 1).all() for numbers in found)


@settings(deadline=None)
@given(
    arrays.arrays(np.float32, arrays.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=30)),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from("CF"),
    chances,
    st.booleans(),
)
def test_rows_come_back_as_they_were(numbers, kind, order, chance, drops):
    with pytest.MonkeyPatch.context() as patch:
        fake = stand_in(patch, chance)
        made, target = Transfer(), np.full(numbers.shape, 3, kind, order)
        rows = fake.empty(numbers.shape, np.float32)
        fake.write(rows, numbers)
        finish = made.fetch_later(rows, target)
        if drops:  # what comes after it may then have its memory, but only once it has been copied
            del rows
        assert (target == 3).all()
        finish()
        assert np.array_equal(target, numbers, equal_nan=True)
        target[...] = 4
        finish()
        assert (target == 4).all()


def test_small_rows_are_on_their_way_before_they_are_asked_for(cupy):
    made, target = Transfer(), np.zeros(5, np.float32)
    rows = cupy.empty((5,), np.float32)
    cupy.write(rows, np.arange(5))
    finish = made.fetch_later(rows, target)
    cupy.streams[2].synchronize()
    cupy.write(rows, np.zeros(5))
    cupy.default.synchronize()
    finish()
    assert np.array_equal(target, np.arange(5))


def test_what_is_never_asked_for_leaves_its_piece_to_others(cupy):
    made = Transfer()
    rows = cupy.empty((5,), np.float32)
    for _ in range(10):
        made.fetch_later(rows, np.zeros(5, np.float32))
        assert pinned_bytes(made) <= 2 * PIECE_BYTES
    waiting = [made.fetch_later(rows, np.zeros(5, np.float32)) for _ in range(2)]
    assert all(finish._piece is not None for finish in waiting)


def test_rows_come_back_in_any_order(cupy):
    made, targets, finishing = Transfer(), [], []
    for number in range(12):
        rows = cupy.empty((7 * number,), np.float32)
        cupy.write(rows, np.full(7 * number, number))
        targets.append(np.zeros(7 * number, np.float32))
        finishing.append(made.fetch_later(rows, targets[-1]))
    for finish in reversed(finishing):
        finish()
    for number, target in enumerate(targets):
        assert (target == number).all()


def test_a_block_is_given_back_on_its_device_whoever_lets_go_of_it(cupy, monkeypatch):
    """The stream that reads a block may be the default one, which is another one on each device."""
    entered = []

    @contextmanager
    def device(number):
        entered.append(number)
        yield

    monkeypatch.setattr(cupy.cuda, "Device", device)
    placed = Transfer().place_dense(np.ones((40, 40), np.float32))
    entered.clear()
    del placed
    assert entered == [3]
