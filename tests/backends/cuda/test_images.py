"""Counting the non-zeros of rows on a GPU, and the largest number: which kernels run, and that they are right."""

from __future__ import annotations

from collections import Counter
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulation import emulated

from sparsenn import backends
from sparsenn.backends.cuda import images
from sparsenn.formats import from_dense
from sparsenn.layers import Add, AvgPool2d, Identity, MaxPool2d, Multiply, ReLU, Sigmoid

TINY = 2.0**-149
"""The smallest float32 above 0."""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", [(0, 5), (70_000, 3), (3, 9000)], ids=str)
def test_nonzeros_are_counted(shape: tuple[int, int], dtype: type, rng: np.random.Generator, cupy: Any) -> None:
    matrix = (rng.normal(size=shape) * (rng.random(shape) < 0.5)).astype(dtype)
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
@pytest.mark.parametrize("kinds", [(np.float32,) * 2, (np.float16,) * 3, (np.float16, np.float32)], ids=str)
@pytest.mark.parametrize("activation", [ReLU(), ReLU(0.5), Identity(), Sigmoid()], ids=str)
@pytest.mark.parametrize("layer", [Add, Multiply])
def test_layers_are_combined_on_a_gpu(
    kinds: tuple[type, ...], activation: Any, layer: Any, rng: np.random.Generator, cupy: Any
) -> None:
    matrices = [rng.normal(size=(7, 33)).astype(kind) for kind in kinds]
    found = images.run_layer(layer(activation), (33,), *map(cupy.asarray, matrices))
    expected = activation((np.prod if layer is Multiply else np.sum)([m.astype(np.float64) for m in matrices], axis=0))
    assert found.dtype == np.result_type(*kinds)
    np.testing.assert_allclose(cupy.asnumpy(found), expected, rtol=0, atol=1e-6 if np.float32 in kinds else 4e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("pixels", [2, 33, 64])
def test_channels_have_factors_on_a_gpu(pixels: int, kind: type, rng: np.random.Generator, cupy: Any) -> None:
    pictures, factors = rng.normal(size=(7, 5, pixels)).astype(kind), rng.normal(size=(7, 5)).astype(kind)
    expected = (pictures.astype(np.float32) * factors.astype(np.float32)[:, :, None]).astype(kind).reshape(7, -1)
    matrices = [cupy.asarray(factors), cupy.asarray(pictures.reshape(7, -1))]
    for given in (matrices, matrices[::-1]):
        assert np.array_equal(cupy.asnumpy(images.run_layer(Multiply(), (5, 1, 1), *given)), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("kind", [MaxPool2d, AvgPool2d])
@pytest.mark.parametrize("shape", [(1, 2, 2), (4, 80, 80), (16, 34, 34)], ids=str)
def test_both_ways_of_pooling_agree_bit_for_bit(
    shape: tuple[int, ...],
    kind: type,
    dtype: type,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    cupy: Any,
) -> None:
    rows = cupy.asarray(rng.normal(size=(33, prod(shape))).astype(dtype))
    found = images.run_layer(kind(2), shape, rows)
    monkeypatch.setattr(images, "_is_of_pairs", lambda *arguments: False)
    assert np.array_equal(found.get(), images.run_layer(kind(2), shape, rows).get())


def test_batch_after_batch_is_looked_at_without_waiting(steps: Counter[str]) -> None:
    check = images.NumberCheck()
    assert check.result() == (0.0, True)
    assert steps == {}
    for numbers in ([1.0, -3.0], [], [2.0]):
        check.scan(np.array(numbers, np.float32))
    check.scan(from_dense(np.float32([[0, 4, 0], [0, 0, -5]])))
    assert steps == {"launches": 3}
    assert check.result() == (5.0, True)
    check.scan(np.array([np.inf, 1.0], np.float16))
    assert check.result() == (5.0, False)
    assert steps == {"launches": 4, "waits": 2}
    assert images.NumberCheck().result() == (0.0, True)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 300, 1_000_003])
def test_the_largest_number_of_half_precision(count: int, rng: np.random.Generator, cupy: Any) -> None:
    numbers = rng.normal(size=(1, count)).astype(np.float16)
    largest, backend = np.abs(numbers).max(), backends.backend_for("cuda")
    assert backend.largest_number(cupy.asarray(numbers)) == (largest, True)
    numbers[0, -1] = np.inf
    largest = np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0)
    assert backend.largest_number(cupy.asarray(numbers)) == (largest, False)
