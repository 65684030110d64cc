"""Ranges of an array in a file: the numbers in it, in memory of their own."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparsenn.formats import CSR, Array
from sparsenn.formats.arrays import frozen, is_own
from sparsenn.io.arrays import stored
from sparsenn.io.arrays.stored import Stored

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
