from typing import Any

import numpy as np
import pytest

from sparsenn import LayerNorm
from sparsenn.errors import InputError, ShapeError, UsageError


def layer(width: int = 3, **options: Any) -> LayerNorm:
    return LayerNorm(np.arange(width), np.ones(width), **options)


@pytest.mark.parametrize("shape", [(5, 12), (0, 12), (5, 4, 3), (5, 2, 2, 3), (5, 3, 4)])
def test_shapes_stay(shape: tuple[int, ...]) -> None:
    assert layer(positions=4).output_shape(shape) == shape


@pytest.mark.parametrize("shape", [(12,), (5, 11), (5, 24), (5, 4, 4)])
def test_rows_of_other_lengths_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="4 positions of 3 numbers"):
        layer(positions=4).output_shape(shape)


def test_parameters_are_float32_and_counted_once() -> None:
    found = layer(positions=4)
    assert (found.scale.dtype, found.shift.dtype) == (np.float32, np.float32)
    assert (found.inputs, found.outputs, found.parameters, found.weight_bytes) == (12, 12, 6, 24)
    with pytest.raises(ValueError, match="read-only"):
        found.scale[0] = 1


def test_zeros_stay_zeros_where_nothing_is_added() -> None:
    ones, zeros = np.ones(3), np.zeros(3)
    assert LayerNorm(ones, zeros).keeps_zero_rows
    assert not LayerNorm(ones, ones).keeps_zero_rows
    assert not LayerNorm(ones, zeros, epsilon=0).keeps_zero_rows


@pytest.mark.parametrize(
    ("scale", "shift", "options", "error", "message"),
    [
        (np.ones(3), np.ones(2), {}, ShapeError, r"\(3,\).*\(2,\)"),
        (np.ones((3, 1)), np.ones((3, 1)), {}, ShapeError, "two vectors"),
        (1.0, 1.0, {}, ShapeError, "two vectors"),
        ([], [], {}, ShapeError, "two vectors"),
        ([1.0, np.nan], [0.0, 0.0], {}, InputError, "scale holds NaN"),
        ([1.0, 1.0], [0.0, 1e39], {}, InputError, "shift holds NaN, infinity"),
        (np.ones(2), np.ones(2), {"epsilon": -1e-5}, InputError, "epsilon of -1e-05"),
        (np.ones(2), np.ones(2), {"epsilon": np.inf}, InputError, "epsilon is inf"),
        (np.ones(2), np.ones(2), {"positions": 0}, UsageError, "positions=0"),
        (np.ones(2), np.ones(2), {"positions": (1, 2)}, UsageError, "positions"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(
    scale: Any, shift: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        LayerNorm(scale, shift, **options)
