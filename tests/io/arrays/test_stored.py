"""Ranges of an array in a file: the numbers in it, in memory of their own, and gone from the page cache."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsenn.formats import CSR, Array
from sparsenn.formats.arrays import frozen, is_own
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


def address(part: Array) -> int:
    return int(part.ctypes.data)


def test_memory_is_used_again_once_it_is_free(array: Stored, whole: Array) -> None:
    seen = set()
    for first in range(0, ROWS, 50):
        part = array.read(first, first + 50)
        assert np.array_equal(part, whole[first : first + 50])
        seen.add(address(frozen(part)))
        del part
    assert len(seen) == 1


@pytest.mark.parametrize(
    "made",
    [
        lambda part: part[3:7],
        lambda part: part.reshape(-1).view(np.uint8),
        lambda part: part.T[:, ::2],
        lambda part: part.view(np.recarray),
        lambda part: memoryview(part),
        lambda part: np.from_dlpack(part),
        lambda part: CSR((1, 60_000), np.array([0, part.size]), part.ravel(), np.ones(1, np.float32)),
    ],
)
def test_memory_stays_with_whatever_was_made_of_a_part(array: Stored, made: Callable[[Array], Any]) -> None:
    def numbers(found: Any) -> list[Any]:
        return list(np.asarray(found.indices if isinstance(found, CSR) else found).ravel())

    kept = made(array.read(0, 50))
    before = numbers(kept)
    others = [array.read(first, first + 50) for first in range(50, ROWS, 50)]
    assert len({address(part) for part in others}) == len(others)
    assert numbers(kept) == before


def test_a_part_that_is_frozen_is_its_holders_own(array: Stored) -> None:
    part = array.read(0, 50)
    assert not is_own(part)
    assert is_own(frozen(part))
    del part
    again = array.read(50, 100)
    assert again.flags.writeable


def test_memory_that_does_not_fit_is_let_go(array: Stored, whole: Array) -> None:
    for count in (10, 200, 150, 30, 31, 600):
        assert np.array_equal(array.read(0, count), whole[:count])
        assert len(array._memory._free) == 1


def test_parts_outlive_the_array(array: Stored, whole: Array) -> None:
    part = array.read(0, 50)
    del array
    assert np.array_equal(part, whole[:50])


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


def test_a_file_that_may_be_read_again_stays(large: Path) -> None:
    read(large, 3_000_000, once=False)
    assert all(cached(large))


@pytest.mark.parametrize("size", [1000, PART_BYTES])
def test_small_arrays_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    dropped: list[Any] = []
    monkeypatch.setattr(stored, "_is_cached", lambda *_: False)
    monkeypatch.setattr(os, "posix_fadvise", lambda *place: dropped.append(place))
    (tmp_path / "rows").write_bytes(bytes(size))
    read(tmp_path / "rows", 500_000)
    assert bool(dropped) is (size == PART_BYTES)


def test_a_system_that_does_not_say_is_left_alone(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: pytest.fail("the page cache was told to drop pages"))
    read(large, 3_000_000)
