from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.layers import Conv2d, ReLU


def ones(*shape: int, **parameters: Any) -> Conv2d:
    return Conv2d(np.ones(shape), **parameters)


def test_hand_made_case() -> None:
    layer = ones(6, 2, 3, 5, groups=3, stride=(2, 1), padding=1, dilation=(1, 2), bias=0.5)
    assert (layer.filters, layer.channels, layer.kernel_size, layer.edges) == (6, 6, (3, 5), 180)
    assert layer.sliding_window == ((3, 5), (2, 1), (1, 1), (1, 2))
    assert layer.output_shape((7, 6, 8, 9)) == (7, 6, 4, 3)
    assert layer.output_shape((0, 6, 8, 9)) == (0, 6, 4, 3)
    assert layer.weights.dtype == np.float32
    assert layer.activation == ReLU()


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"weights": np.ones((1, 2, 3))}, ShapeError, r"weights have shape \(1, 2, 3\)"),
        ({"weights": np.ones((1, 0, 3, 3))}, ShapeError, "weights have shape"),
        ({"weights": np.full((1, 1, 1, 1), np.nan)}, InputError, "weights hold NaN"),
        ({"weights": np.full((1, 1, 1, 1), 1e39)}, InputError, "beyond float32"),
        ({"weights": np.ones((3, 1, 1, 1)), "groups": 2}, ShapeError, "3 filters cannot be cut into 2 groups"),
        ({"groups": 0}, UsageError, "0 groups are not possible; give an integer of at least 1"),
        ({"groups": 1.0}, UsageError, "1.0 groups are not possible"),
        ({"groups": True}, UsageError, "True groups are not possible"),
        ({"groups": "1"}, UsageError, "1 groups are not possible"),
        ({"stride": True}, UsageError, "a stride of True"),
        ({"stride": 0}, UsageError, "a stride of 0"),
        ({"padding": -1}, UsageError, "a padding of -1"),
        ({"dilation": (1, 0)}, UsageError, r"a dilation of \(1, 0\)"),
        ({"bias": [1.0, 2.0]}, ShapeError, r"the bias has shape \(2,\); 1 filters take \(1,\)"),
        ({"bias": np.inf}, InputError, "bias holds NaN"),
    ],
    ids=str,
)
def test_what_makes_no_convolution_is_refused(parameters: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        Conv2d(**{"weights": np.ones((1, 1, 1, 1)), **parameters})
    assert raised.type is error


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 9, 9), "takes 2 channels; its input has shape"),
        ((2, 9, 9), "takes .images, channels, height, width."),
        ((1, 2, 2, 9), "a window of 3 x 3 pixels is larger than an image of 2 x 9"),
    ],
)
def test_images_that_do_not_fit(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        ones(1, 2, 3, 3).output_shape(shape)
