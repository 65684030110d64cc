from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sparsenn.errors import InputError, ShapeError, SparseNNError, UsageError
from sparsenn.formats import from_dense
from sparsenn.io.dataset import Dataset, check_limits


def test_inputs_must_fit_the_network(challenge_like: Dataset) -> None:
    with pytest.raises(ShapeError, match=r"9 columns.* 8"):
        replace(challenge_like, inputs=from_dense(np.ones((6, 9))))


def test_truth_must_be_about_the_inputs(challenge_like: Dataset) -> None:
    assert replace(challenge_like, truth=np.array([5])).truth is not None
    with pytest.raises(ShapeError, match=r"category 7, .* 6 inputs"):
        replace(challenge_like, truth=np.array([0, 6]))


@pytest.mark.parametrize(
    ("part", "kind", "told"),
    [
        ({"network": [1]}, UsageError, r"the network is a list; a Dataset holds a sparsenn\.Network"),
        (
            {"inputs": sp.csr_array(np.ones((6, 8)))},
            InputError,
            r"the inputs are a csr_array; .* \(see CSR\.from_scipy\)",
        ),
        ({"truth": [0]}, InputError, "the truth is a list; a Dataset holds a NumPy array of int64"),
    ],
)
def test_parts_of_other_types(
    challenge_like: Dataset, part: dict[str, Any], kind: type[SparseNNError], told: str
) -> None:
    with pytest.raises(kind, match=told):
        replace(challenge_like, **part)


def test_limits() -> None:
    check_limits()
    check_limits(1, 1)
    with pytest.raises(UsageError, match=r"layers .* 0"):
        check_limits(layers=0)
    with pytest.raises(UsageError, match=r"inputs .* -2"):
        check_limits(limit_inputs=-2)
