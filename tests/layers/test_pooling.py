from __future__ import annotations

from typing import Any

import pytest

from sparsenn.errors import ShapeError, UsageError
from sparsenn.layers import AvgPool2d, MaxPool2d, Pool2d

KINDS = pytest.mark.parametrize("kind", [MaxPool2d, AvgPool2d])


@KINDS
def test_windows_touch_unless_a_stride_is_given(kind: type[Pool2d]) -> None:
    assert kind(3).sliding_window == ((3, 3), (3, 3), (0, 0), (1, 1))
    assert kind((2, 3), 1, (1, 0)).sliding_window == ((2, 3), (1, 1), (1, 0), (1, 1))
    assert kind(2) == kind((2, 2), 2, 0) == kind(2, padding_after=0)
    assert kind(3, padding=1).after == (1, 1)
    assert kind(3, padding=1, padding_after=(0, 2)).after == (0, 2)
    assert kind(2) != kind(2, 1)
    assert kind(2).keeps_zero_rows


@KINDS
@pytest.mark.parametrize(
    ("parameters", "shape"),
    [
        ((2,), (5, 3, 3, 4)),
        ((2, 2, 0, (1, 1)), (5, 3, 4, 5)),
        ((2, 2, 1, 0), (5, 3, 4, 5)),
        ((2, 1), (5, 3, 6, 8)),
        ((3, 2, 1), (5, 3, 4, 5)),
        (((7, 9),), (5, 3, 1, 1)),
    ],
)
def test_output_shapes(kind: type[Pool2d], parameters: Any, shape: tuple[int, ...]) -> None:
    assert kind(*parameters).output_shape((5, 3, 7, 9)) == shape


@KINDS
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ((0,), "a window of 0"),
        ((2, 0), "a stride of 0"),
        ((2, None, -1), "a padding of -1"),
        ((3, 1, 3), "a padding of 3 x 3 pixels is not less than a window of 3 x 3"),
        (((2, 4), 1, (2, 2)), "not less than"),
        ((1, 1, (0, 1)), "not less than"),
        ((2, None, 0, (0, 2)), "a padding of 0 x 2 pixels"),
        ((2, None, 0, -1), "a padding of -1"),
    ],
)
def test_what_makes_no_pooling_is_refused(kind: type[Pool2d], parameters: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kind(*parameters)


@KINDS
@pytest.mark.parametrize("shape", [(5, 3), (1, 1, 3, 9), (1, 1, 9, 3)])
def test_images_that_do_not_fit(kind: type[Pool2d], shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError):
        kind(4).output_shape(shape)
