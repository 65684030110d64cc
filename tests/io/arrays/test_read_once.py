"""Files that are read once: what the system is to let go of, and what it held before."""

import os

import numpy as np
import pytest

from sparsenn.io.arrays import read_once
from sparsenn.io.arrays.read_once import PART_BYTES, ReadOnce
from sparsenn.io.tables.row_source import opened_rows

WIDTH, PARTS = 1024, 5
ROWS = PARTS * PART_BYTES // (4 * WIDTH)


@pytest.fixture
def path(tmp_path, rng):
    """A file of a few parts that the system holds nothing of."""
    found = tmp_path / "rows.npy"
    np.save(found, rng.random((ROWS, WIDTH), np.float32))
    drop(found)
    if any(held(found)):
        pytest.skip("the folder for tests is in memory: the system lets go of nothing")
    return found


def drop(path):
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def held(path):
    with path.open("rb") as file:
        return [read_once._is_held(file.fileno(), part) for part in range(PARTS)]


def read(path, size, once=True):
    with opened_rows(path, WIDTH, once) as source:
        return np.concatenate(list(source.pieces(size)))


@pytest.mark.parametrize("size", [100, 3000, 2 * ROWS])
def test_nothing_of_a_file_is_left(path, size):
    found = read(path, size)
    assert not any(held(path))
    assert np.array_equal(found, read(path, ROWS, once=False))


def test_small_arrays_are_not_looked_at(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(read_once, "_is_held", lambda descriptor, part: looked.append(part) or True)
    for rows, expected in ((10, 0), (2 * ROWS // PARTS, 16)):
        np.save(tmp_path / "rows.npy", np.zeros((rows, WIDTH), np.float32))
        read(tmp_path / "rows.npy", 5)
        assert len(set(looked)) >= expected
        assert bool(looked) is bool(expected)


def test_what_was_held_stays(path):
    np.load(path)
    assert all(held(path))
    for _ in range(2):
        read(path, 3000)
        assert all(held(path))


def test_of_a_file_that_was_held_in_part_that_part_stays(path):
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
        file.read(2 * PART_BYTES)
    before = held(path)
    assert before == [True, True, False, False, False]
    read(path, 3000)
    assert held(path) == before


def test_a_file_that_is_read_again_from_its_beginning(path):
    with opened_rows(path, WIDTH, True) as source:
        next(source.pieces(100))
        for _ in source.pieces(3000):
            pass
    assert not any(held(path))


def test_others_files_are_left_as_they_are(path):
    read(path, 3000, once=False)
    assert all(held(path))


def test_where_the_system_does_not_tell_nothing_goes(tmp_path, monkeypatch):
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((100, WIDTH), np.float32))
    told = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: told.append(given), raising=False)
    monkeypatch.setattr(read_once, "_mincore", lambda: None)
    assert read(path, 30).shape == (100, WIDTH)
    monkeypatch.setattr(read_once, "_mincore", lambda: lambda *given: -1)
    assert read(path, 30).shape == (100, WIDTH)
    assert told == []


def test_a_file_that_has_become_shorter_is_not_mapped(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(b"")
    with path.open("rb") as file:
        once = ReadOnce(file.fileno(), 3 * PART_BYTES)
        once.look(PART_BYTES)
        once.let_go(PART_BYTES, 3 * PART_BYTES)
