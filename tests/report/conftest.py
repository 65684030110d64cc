"""Real results to report on."""

from __future__ import annotations

import numpy as np
import pytest

from sparsenn import infer
from sparsenn.datasets import radixnet
from sparsenn.engine import Result
from sparsenn.formats import from_dense
from sparsenn.network import Network


@pytest.fixture(scope="session")
def network() -> Network:
    return radixnet(64, 8, kronecker=4, bias=-0.15)


@pytest.fixture(scope="session")
def result(network: Network) -> Result:
    """A run in which some rows die, some live, and some are equal."""
    generator = np.random.default_rng(5)
    rows = generator.random((40, 64)) < generator.random((40, 1))
    rows[:3] = False
    rows[5] = rows[6]
    return infer(network, from_dense(rows), kernel="panel")
