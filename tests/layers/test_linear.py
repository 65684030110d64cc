from __future__ import annotations

import numpy as np
import pytest

from sparsenn.errors import InputError, ShapeError
from sparsenn.layers import Linear

WEIGHTS = np.array([[1.0, 0, 2], [0, 0, 3]])


@pytest.mark.parametrize("shape", [(3,), (), (1, 2, 3), (0, 3), (3, 0)])
def test_weights_that_are_no_matrix(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"a layer takes \(inputs, outputs\)"):
        Linear(np.ones(shape))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_numbers_that_are_not_finite(bad: float) -> None:
    with pytest.raises(InputError, match="the weights hold NaN, infinity"):
        Linear(np.full((2, 2), bad))
    with pytest.raises(InputError, match="the bias holds NaN, infinity"):
        Linear(WEIGHTS, np.full(3, bad))
