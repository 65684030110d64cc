from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats import from_dense
from sparsenn.io.dataset import Dataset, check_limits


def test_inputs_must_fit_the_network(challenge_like: Dataset) -> None:
    with pytest.raises(ShapeError, match=r"9 columns.* 8"):
        replace(challenge_like, inputs=from_dense(np.ones((6, 9))))


def test_truth_must_be_about_the_inputs(challenge_like: Dataset) -> None:
    assert replace(challenge_like, truth=np.array([5])).truth is not None
    with pytest.raises(ShapeError, match=r"category 7, .* 6 inputs"):
        replace(challenge_like, truth=np.array([0, 6]))


def test_limits() -> None:
    check_limits()
    check_limits(1, 1)
    with pytest.raises(UsageError, match=r"layers .* 0"):
        check_limits(layers=0)
    with pytest.raises(UsageError, match=r"inputs .* -2"):
        check_limits(limit_inputs=-2)
