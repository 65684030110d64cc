"""Stacks of dense layers on the host."""

import numpy as np
import pytest

from sparsenn.backends.cpu.dense import launch
from sparsenn.backends.oracle.dense import BATCH, check_stack, forward
from sparsenn.errors import ShapeError
from sparsenn.layers import Identity, Linear, ReLU
from sparsenn.studies.mlp.host import launch_blas


def small_layers():
    return (
        Linear(np.array([[1.0, -1.0], [2.0, 0.0], [0.0, 3.0]]), [0.5, -1.0], ReLU()),
        Linear(np.array([[2.0], [-4.0]]), 1.0, Identity()),
    )


@pytest.mark.parametrize("rows", [0, 1, 6, 7, 8, 22])
def test_batches_are_joined_in_order(rows, monkeypatch, rng):
    features = rng.normal(size=(rows, 3)).astype(np.float32)
    assert BATCH > 22
    whole = forward(small_layers(), features)
    monkeypatch.setattr("sparsenn.backends.oracle.dense.BATCH", 7)
    assert whole.shape == (rows, 1)
    np.testing.assert_allclose(forward(small_layers(), features), whole, rtol=1e-13)
    for fast in (launch, launch_blas):
        np.testing.assert_allclose(fast(small_layers(), features), whole, rtol=1e-5, atol=1e-5)


def test_layers_that_do_not_fit_are_named():
    first, last = small_layers()
    with pytest.raises(ShapeError, match="layer 2: the layer takes"):
        check_stack((first, first), (4, 3))
    with pytest.raises(ShapeError, match="layer 1: the layer takes"):
        forward((first, last), np.zeros((4, 2), np.float32))
    for fast in (launch, launch_blas):
        with pytest.raises(ShapeError, match="at least one layer"):
            fast((), np.zeros((4, 2), np.float32))
        with pytest.raises(ShapeError, match="rows of 3 inputs"):
            fast((first, last), np.zeros((4, 2), np.float32))
