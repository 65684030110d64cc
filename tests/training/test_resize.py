"""Bilinear enlargement against NumPy's interpolation of one line after the other."""

from __future__ import annotations

import numpy as np
import pytest

from sparsenn.errors import ShapeError
from sparsenn.training import resize, resize_bilinear


def interpolated(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Columns, then rows, by `numpy.interp` in float64; it keeps to the outermost values beyond them."""
    rows, columns = image.shape
    down = (np.arange(height) + 0.5) * rows / height - 0.5
    across = (np.arange(width) + 0.5) * columns / width - 0.5
    tall = np.stack([np.interp(down, np.arange(rows), column) for column in image.astype(np.float64).T], axis=1)
    return np.stack([np.interp(across, np.arange(columns), row) for row in tall])


@pytest.mark.parametrize("size", [(86, 86), (28, 29), (29, 28), (28, 28), (56, 84), (113, 300)])
def test_bytes_become_shares_and_are_interpolated(rng: np.random.Generator, size: tuple[int, int]) -> None:
    images = rng.integers(0, 256, (5, 28, 28)).astype(np.uint8)
    found = resize_bilinear(images, *size)
    assert (found.dtype, found.shape, found.flags["C_CONTIGUOUS"]) == (np.float32, (5, *size), True)
    expected = [interpolated(image / 255, *size) for image in images]
    np.testing.assert_allclose(found, expected, atol=2e-7)


def test_numbers_are_taken_as_they_are_channel_by_channel(rng: np.random.Generator) -> None:
    images = rng.normal(size=(3, 2, 4, 7)).astype(np.float32) * 100
    found = resize_bilinear(images, 9, 11)
    assert found.shape == (3, 2, 9, 11)
    expected = [[interpolated(channel, 9, 11) for channel in image] for image in images]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-4)


def test_a_known_line() -> None:
    found = resize_bilinear(np.array([[[0.0, 1.0]]]), 1, 4)
    np.testing.assert_allclose(found, [[[0.0, 0.25, 0.75, 1.0]]])
    np.testing.assert_array_equal(resize_bilinear(np.full((1, 1, 1), 255, np.uint8), 3, 2), np.ones((1, 3, 2)))


def test_an_image_does_not_depend_on_its_neighbours(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    images = rng.integers(0, 256, (200, 9, 8)).astype(np.uint8)
    whole = resize_bilinear(images, 20, 30)
    for first, last in ((0, 1), (63, 66), (150, 200)):
        np.testing.assert_array_equal(resize_bilinear(images[first:last], 20, 30), whole[first:last])
    monkeypatch.setattr(resize, "_IMAGES", 7)
    np.testing.assert_array_equal(resize_bilinear(images, 20, 30), whole)
    assert resize_bilinear(images[:0], 20, 30).shape == (0, 20, 30)


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ((3, 10, 9), r"images of 10 × 9 pixels cannot be enlarged to 9 × 9"),
        ((3, 9, 10), r"images of 9 × 10 pixels"),
        ((10, 9), "cannot be enlarged; images with rows"),
        ((3, 0, 5), "cannot be enlarged; images with rows"),
        ((1, 1, 1, 2, 2), "cannot be enlarged; images with rows"),
    ],
)
def test_what_cannot_be_enlarged(shape: tuple[int, ...], told: str) -> None:
    with pytest.raises(ShapeError, match=told):
        resize_bilinear(np.zeros(shape, np.uint8), 9, 9)
