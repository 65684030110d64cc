"""Counting the non-zeros of rows on a GPU, and the largest number: which kernels run, and that they are right."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from emulation import emulated

from sparsenn import backends
from sparsenn.backends.cuda import images

TINY = 2.0**-149
"""The smallest float32 above 0."""


@pytest.mark.parametrize(
    ("width", "dtype", "expected"),
    [
        (1, np.float32, "warps"),
        (images.COUNTED_WIDTH - 1, np.float32, "warps"),
        (images.COUNTED_WIDTH, np.float32, "blocks"),
        (1, np.float16, "blocks"),  # warps read float32 only
    ],
)
def test_long_rows_and_those_of_half_precision_are_counted_by_blocks(
    width: int, dtype: type, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "cupy", lambda: np)
    monkeypatch.setattr(images, "weigh_rows", lambda features, weights: (weights.sum(), "warps"))
    monkeypatch.setattr(images, "_count", lambda features: "blocks")
    assert images.count_nonzeros(np.zeros((3, width), dtype)) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(0, 5), (300, 3), (3, images.COUNTED_WIDTH)], ids=str)
def test_nonzeros_of_half_precision_are_counted(shape: tuple[int, int], rng: np.random.Generator) -> None:
    import cupy

    matrix = (rng.normal(size=shape) * (rng.random(shape) < 0.5)).astype(np.float16)
    found = backends.backend_for("cuda").count_nonzeros(cupy.asarray(matrix))
    assert np.array_equal(found, np.count_nonzero(matrix, axis=1))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What is done on a device that is emulated: kernels launched, and times that its answer is waited for."""
    done: Counter[str] = Counter()

    def kernel(program: object, name: str, numbers: np.ndarray) -> object:
        half = int(numbers.dtype == np.float16)
        return emulated("images/largest.cu", {"HALF": half, "PIECE": images.PIECE, "THREADS": images.THREADS})

    def launch(name: str, kernel: object, grid: tuple[int], block: tuple[int], *arguments: object) -> None:
        done["launches"] += 1
        kernel.launch(*grid, *block, *arguments, seed=arguments[0])

    def fetched(array: np.ndarray) -> np.ndarray:
        done["waits"] += 1
        return array.copy()

    monkeypatch.setattr(images, "cupy", lambda: SimpleNamespace(zeros=np.zeros, asnumpy=fetched))
    monkeypatch.setattr(images, "_kernel", kernel)
    monkeypatch.setattr(images, "launch", launch)
    return done


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("count", [1, 31, images.PIECE - 1, images.PIECE, 2 * images.PIECE + 300])
def test_the_largest_number_takes_one_launch_and_one_wait(
    count: int, dtype: type, steps: Counter[str], rng: np.random.Generator
) -> None:
    numbers = rng.normal(size=count).astype(dtype)
    numbers[rng.integers(count)] = -1000.0
    assert images.largest_number(numbers) == (1000.0, True)
    assert steps == {"launches": 1, "waits": 1}


@pytest.mark.parametrize(
    ("numbers", "largest", "finite"),
    [
        ([], 0.0, True),
        ([0.0, -0.0], 0.0, True),
        ([TINY, -0.0], TINY, True),
        ([-3.0e38, 2.0e38], float(np.float32(3.0e38)), True),
        ([np.nan, 5.0], 5.0, False),
        ([5.0, -np.inf, -7.0], 7.0, False),
        ([np.inf], 0.0, False),
        ([-np.nan, np.inf], 0.0, False),
    ],
    ids=str,
)
def test_sizes_at_the_ends_of_the_range(
    numbers: list[float], largest: float, finite: bool, steps: Counter[str]
) -> None:
    given = np.array(numbers, np.float32)
    assert images.largest_number(given) == (largest, finite)
    assert steps["waits"] == len(numbers[:1])
    assert backends.backend_for("cpu").largest_number(given) == (largest, finite)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 300, 1_000_003])
def test_the_largest_number_of_half_precision(count: int, rng: np.random.Generator) -> None:
    import cupy

    numbers = rng.normal(size=(1, count)).astype(np.float16)
    largest, backend = np.abs(numbers).max(), backends.backend_for("cuda")
    assert backend.largest_number(cupy.asarray(numbers)) == (largest, True)
    numbers[0, -1] = np.inf
    largest = np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0)
    assert backend.largest_number(cupy.asarray(numbers)) == (largest, False)
