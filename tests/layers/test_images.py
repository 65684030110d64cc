from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.errors import ShapeError, UsageError
from sparsenn.layers import AvgPool2d, Conv2d, Flatten, ImageLayer, MaxPool2d, Softmax
from sparsenn.layers.images import SlidingWindow, check_images, pair


@pytest.mark.parametrize(
    ("value", "both"),
    [
        (3, (3, 3)),
        ((1, 2), (1, 2)),
        ([4, 5], (4, 5)),
        (0, (0, 0)),
        (np.int64(3), (3, 3)),
        ((np.uint8(1), 2), (1, 2)),
        (np.array([4, 5]), (4, 5)),
        (np.array(6), (6, 6)),
    ],
)
def test_one_number_or_two(value: Any, both: tuple[int, int]) -> None:
    found = pair(value, "padding", 0)
    assert found == both
    assert [type(size) for size in found] == [int, int]


@pytest.mark.parametrize(
    "value",
    [
        *(0, (1, 0), (1,), (1, 2, 3), -1, 1.5, (1, 2.0), None, "3", "12", (), b"12", {1, 2}),
        *(True, (1, True), np.True_, np.float32(2), np.ones(2), np.array([1]), [[1, 2], [3, 4]]),
    ],
    ids=repr,
)
def test_what_is_no_pair_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="a stride of "):
        pair(value, "stride", 1)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (1, 2, 3), (1, 2, 3, 4, 5)])
def test_images_have_four_dimensions(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"\(images, channels, height, width\)"):
        check_images(shape)


@given(*(st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3), st.integers(1, 3)))
def test_windows_are_as_many_as_can_be_laid(size: int, window: int, stride: int, padding: int, dilation: int) -> None:
    places = range(-padding, size + padding)
    span = dilation * (window - 1)
    laid = [first for first in places[::stride] if first + span in places]
    if laid:
        found = SlidingWindow((window, 1), (stride, 1), (padding, 0), (dilation, 1)).positions((size, 1))
        assert found == (len(laid), 1)
        assert SlidingWindow((1, window), (1, stride), (0, padding), (1, dilation)).positions((1, size)) == (
            1,
            len(laid),
        )
    else:
        with pytest.raises(ShapeError, match="is larger than an image of"):
            SlidingWindow((window, 1), (stride, 1), (padding, 0), (dilation, 1)).positions((size, 1))


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (Conv2d(np.ones((6, 2, 3, 3)), groups=2), (5, 4, 8, 9), 5 * 6 * 6 * 7 * 2 * 9),
        (MaxPool2d(2), (5, 4, 8, 9), 0),
        (AvgPool2d(2), (5, 4, 8, 9), 0),
        (Flatten(), (5, 4, 8, 9), 0),
        (Softmax(), (5, 4), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_multiply_adds(layer: ImageLayer, shape: tuple[int, ...], expected: int) -> None:
    assert layer.multiply_adds(shape) == expected
    assert layer.multiply_adds((0, *shape[1:])) == 0
    with pytest.raises(ShapeError):
        layer.multiply_adds((5,))


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (Flatten(), (5, 3, 4, 2), (5, 24)),
        (Flatten(), (0, 3, 4, 2), (0, 24)),
        (Flatten(), (5, 7), (5, 7)),
        (Softmax(), (0, 7), (0, 7)),
        (Softmax(), (5, 3, 2, 4), (5, 3, 2, 4)),
    ],
)
def test_layers_that_take_any_shape(layer: ImageLayer, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert layer.output_shape(shape) == expected
    assert layer.keeps_zero_rows == isinstance(layer, Flatten)
    with pytest.raises(ShapeError, match=r"its input has shape \(5,\)"):
        layer.output_shape((5,))
