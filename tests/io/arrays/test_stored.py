"""Ranges of an array in a file: the numbers in it, in memory of their own, and gone from the page cache."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest

from sparsenn.formats import Array
from sparsenn.formats.arrays import frozen
from sparsenn.io.arrays import stored
from sparsenn.io.arrays.stored import PART_BYTES, Stored

ROWS, WIDTH = 600, 8


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the memory of small parts kept, too."""
    monkeypatch.setattr(stored, "KEPT_BYTES", 1)


@pytest.fixture
def whole() -> Array:
    return np.random.default_rng(4).integers(0, 60_000, (ROWS, WIDTH)).astype(np.uint16)


@pytest.fixture
def array(whole: Array) -> Stored:
    return Stored("rows", io.BytesIO(b"head" + whole.tobytes()), 4, whole.shape, whole.dtype)


def test_memory_is_used_again_once_it_is_free(array: Stored, whole: Array) -> None:
    seen = set()
    for first in range(0, ROWS, 50):
        part = array.read(first, first + 50)
        assert np.array_equal(part, whole[first : first + 50])
        seen.add(frozen(part).ctypes.data)
        del part
    assert len(seen) == 1


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of five parts, of which the page cache holds nothing."""
    path = tmp_path / "rows.bin"
    path.write_bytes(np.random.default_rng(5).bytes(5 * PART_BYTES - 100))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if any(cached(path)):
        pytest.skip("the folder for tests is in memory: the page cache drops nothing")
    return path


def cached(path: Path) -> list[bool]:
    """Whether the page cache holds places inside of each part; asking for one may read some pages from there on."""
    with path.open("rb") as file:
        places = (at - PART_BYTES // 2 for at in range(PART_BYTES, 6 * PART_BYTES, PART_BYTES))
        return [stored._is_cached(file, place, place + 1) for place in places]


def read(path: Path, size: int, once: bool = True) -> bytes:
    with path.open("rb") as file:
        length = path.stat().st_size
        array = Stored(path, file, 0, (length,), np.dtype(np.uint8), once)
        return b"".join(array.read(first, min(first + size, length)).tobytes() for first in range(0, length, size))


@pytest.mark.parametrize("size", [1_000_000, 3 * PART_BYTES, 9 * PART_BYTES])
def test_parts_leave_the_page_cache(large: Path, size: int) -> None:
    content = read(large, size)
    assert sum(cached(large)) <= 1  # the system drops no page that it uses itself at that moment
    assert content == large.read_bytes()


def test_a_file_that_was_cached_stays(large: Path) -> None:
    large.read_bytes()
    for _ in range(2):
        read(large, 3_000_000)
        assert all(cached(large))
