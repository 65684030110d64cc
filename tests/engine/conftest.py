"""A sparse network and inputs that most tests of the engine run."""

import numpy as np
import pytest

from sparsenn.formats import from_dense
from sparsenn.layers import ReLU
from sparsenn.network import Network


@pytest.fixture
def network(rng):
    matrices = [from_dense(rng.normal(size=(20, 20)).astype(np.float32)).to_scipy() for _ in range(12)]
    return Network.from_scipy(matrices, -0.1, ReLU())


@pytest.fixture
def inputs(rng):
    return from_dense(rng.random((100, 20)))
