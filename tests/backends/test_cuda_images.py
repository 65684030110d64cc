"""Counting the non-zeros of rows on a GPU: which kernel counts, and that it counts right."""

from __future__ import annotations

import numpy as np
import pytest

from sparsenn import backends
from sparsenn.backends.cuda import images


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
    monkeypatch.setattr(images, "_count", lambda name, features: "blocks")
    assert images.count_nonzeros(np.zeros((3, width), dtype)) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(0, 5), (300, 3), (3, images.COUNTED_WIDTH)], ids=str)
def test_nonzeros_of_half_precision_are_counted(shape: tuple[int, int], rng: np.random.Generator) -> None:
    import cupy

    matrix = (rng.normal(size=shape) * (rng.random(shape) < 0.5)).astype(np.float16)
    found = backends.backend_for("cuda").count_nonzeros(cupy.asarray(matrix))
    assert np.array_equal(found, np.count_nonzero(matrix, axis=1))
