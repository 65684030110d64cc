from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

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


@pytest.mark.parametrize("bad", [sp.csr_matrix(WEIGHTS), sp.csc_array(WEIGHTS), "weights", [[1.0], [2.0, 3.0]], {}])
def test_what_is_no_array_of_numbers(bad: Any) -> None:
    with pytest.raises(InputError, match=rf"weights .* not a {type(bad).__name__}"):
        Linear(bad)
    with pytest.raises(InputError, match="the bias holds no array of numbers"):
        Linear(WEIGHTS, bad)
