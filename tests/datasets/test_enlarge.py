from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.datasets import enlarge
from sparsenn.errors import ResourceError, UsageError
from sparsenn.runtime import memory


def interpolated(signals: np.ndarray, length: int) -> np.ndarray:
    """Enlarge along the last axis by zero-padding the complex spectrum, Nyquist coefficient on the positive side."""
    old = signals.shape[-1]
    spectrum = np.fft.fft(signals)
    padded = np.zeros((*signals.shape[:-1], length), complex)
    padded[..., : old // 2 + 1] = spectrum[..., : old // 2 + 1]
    padded[..., length - (old // 2 - 1) :] = spectrum[..., old // 2 + 1 :]
    return np.fft.ifft(padded) * (length / old)


def magnitudes(images: np.ndarray, side: int) -> np.ndarray:
    """The recipe word for word, on everything at once: (images, x, y) float64."""
    count, _, width = images.shape
    tall = interpolated(images.astype(float).transpose(0, 2, 1), side)  # image, x, y
    rows = tall.transpose(2, 0, 1).reshape(side, count * width)
    wide = interpolated(rows, count * side).reshape(side, count, side)
    return np.abs(wide).transpose(1, 2, 0)


def assert_is_the_recipe(images: np.ndarray, side: int) -> None:
    inputs = enlarge(images, side * side).validate()
    assert inputs.shape == (len(images), side * side)
    assert inputs.values.tolist() == [1.0]
    wanted = magnitudes(images, side)
    half = wanted.max() / 2
    found = inputs.to_scipy().toarray().reshape(wanted.shape) == 1
    decided = np.abs(wanted - half) > 1e-9 * half
    assert decided.mean() > 0.9
    np.testing.assert_array_equal(found[decided], (wanted > half)[decided])


@given(
    count=st.integers(1, 5),
    height=st.sampled_from((2, 4, 6)),
    width=st.sampled_from((2, 4, 8)),
    side=st.integers(9, 17),
    seed=st.integers(0, 99),
)
def test_random_images_follow_the_recipe(count: int, height: int, width: int, side: int, seed: int) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (count, height, width)).astype(np.uint8)
    assert_is_the_recipe(images, side)


@pytest.mark.parametrize("brightest", [0, 5], ids=["first row", "last row"])
def test_rows_cut_before_the_largest_was_known_are_cut_again(brightest: int) -> None:
    images = np.full((2, 6, 6), 90, np.uint8)
    images[:, brightest] = 250
    images[0, 3, 2] = 10
    assert_is_the_recipe(images, 24)


@pytest.mark.parametrize(
    ("shape", "neurons", "message"),
    [
        ((1, 4, 4), 63, "63 neurons are not a square image"),
        ((1, 4, 4), 257 * 257, "at most 256"),
        ((1, 4, 4), 16, "smaller than the new one"),
        ((1, 4, 8), 49, "4 × 8 cannot be enlarged to 7 × 7"),
        ((1, 3, 4), 64, "even sides"),
    ],
)
def test_what_cannot_be_enlarged_is_refused(shape: tuple[int, int, int], neurons: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        enlarge(np.zeros(shape, np.uint8), neurons)


def test_too_little_memory_is_said_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 1000)
    with pytest.raises(ResourceError, match=r"enlarging 2 images to 9 × 9 needs .* of memory"):
        enlarge(np.zeros((2, 4, 4), np.uint8), 81)
