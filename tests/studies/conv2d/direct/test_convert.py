"""Numbers from float32 to float16, on a GPU, as NumPy converts them."""

import numpy as np
import pytest

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.errors import UsageError
from sparsenn.studies.conv2d.direct.convert import to_half


@pytest.mark.gpu
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 2047, 2048, 100_003])
def test_conversions_round_as_numpy_does(size, rng):
    cp = cupy()
    numbers = (rng.normal(size=size) * 10.0 ** rng.integers(-9, 6, size)).astype(np.float32)
    numbers[:5] = np.array([np.nan, np.inf, -0.0, 65_519.0, 65_520.0], np.float32)[:size]
    with np.errstate(over="ignore"):
        expected = numbers.astype(np.float16)
    made = cp.asnumpy(to_half(cp.asarray(numbers)))
    assert np.array_equal(made, expected, equal_nan=True)
    if size > 8:
        assert np.array_equal(cp.asnumpy(to_half(cp.asarray(numbers)[3:])), expected[3:], equal_nan=True)


@pytest.mark.gpu
def test_conversions_refuse_other_types():
    cp = cupy()
    with pytest.raises(UsageError, match="give float32"):
        to_half(cp.zeros(4, np.float64))
    with pytest.raises(UsageError, match="row-major"):
        to_half(cp.zeros((4, 3), np.float32).transpose(1, 0))
