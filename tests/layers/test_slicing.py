from __future__ import annotations

import pickle
from math import prod
from typing import Any

import numpy as np
import pytest

from sparsenn.errors import ShapeError, UsageError
from sparsenn.layers import Slice


@pytest.mark.parametrize(
    ("layer", "shape", "expected", "columns"),
    [
        (Slice(1, 3), (5, 7), (5, 2), (1, 3)),
        (Slice(1, 3), (5, 4, 2, 3), (5, 2, 2, 3), (6, 18)),
        (Slice(0, 4), (0, 4, 2, 3), (0, 4, 2, 3), (0, 24)),
        (Slice(5, 17, (3, 2, 2)), (5, 20), (5, 3, 2, 2), (5, 17)),
        (Slice(0, 2, (1, 4, 3)), (5, 4, 2, 3), (5, 1, 4, 3), (0, 12)),
        (Slice(1, 2, axis=1), (5, 4, 2, 3), (5, 4, 1, 3), (3, 6)),
        (Slice(1, 3, axis=2), (5, 4, 2, 3), (5, 4, 2, 2), (1, 3)),
        (Slice(0, 1, (8, 1, 1), 2), (5, 4, 2, 3), (5, 8, 1, 1), (0, 1)),
    ],
)
def test_neighbouring_features_or_channels(
    layer: Slice, shape: tuple[int, ...], expected: tuple[int, ...], columns: tuple[int, int]
) -> None:
    assert layer.output_shape(shape) == expected
    assert layer.columns(shape[1:]) == columns
    rows = np.arange(prod(shape)).reshape(-1, layer.block(shape[1:]))
    cut = np.take(np.arange(prod(shape)).reshape(shape), range(layer.first, layer.last), axis=1 + layer.axis)
    np.testing.assert_array_equal(rows[:, slice(*columns)].ravel(), cut.ravel())
    assert layer.keeps_zero_rows
    assert pickle.loads(pickle.dumps(layer)) == layer


@pytest.mark.parametrize("values", [(1, 1), (2, 1), (-1, 1), (0.0, 1), (0, 2**31), (0, 1, None, 3), (0, 1, None, -1)])
def test_slices_that_are_none(values: Any) -> None:
    with pytest.raises(UsageError):
        Slice(*values)
    for image in ((2, 2), (4, 1, 0)):
        with pytest.raises(ShapeError, match="channels, height, width"):
            Slice(0, 4, image)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Slice(0, 3), (5, 2)),
        (Slice(0, 3), (5,)),
        (Slice(0, 4, (1, 2, 3)), (5, 9)),
        (Slice(0, 1, axis=1), (5, 9)),
        (Slice(2, 4, axis=2), (5, 4, 4, 3)),
    ],
)
def test_inputs_that_do_not_fit(layer: Slice, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="the slice"):
        layer.output_shape(shape)
