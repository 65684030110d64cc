"""What an answer may differ by: a bound on float32's rounding, carried through the network with float64 values."""

from __future__ import annotations

import numpy as np

from sparsenn import backends
from sparsenn.formats import CSR
from sparsenn.layers import Linear
from sparsenn.network import Network

__all__ = ["assert_close", "expected"]

EPSILON = float(np.finfo(np.float32).eps)


def expected(network: Network, inputs: CSR) -> tuple[np.ndarray, np.ndarray]:
    """Return the float64 outputs and, for each, how far a float32 computation in any order may stray.

    A sum of n products is off by at most (n + 2)·eps·Σ|w·y|, an input's own error passes on through |W|, and no
    activation has a slope above 1; a sigmoid or tanh adds a few roundings of its own.
    """
    values = inputs.to_scipy().toarray().astype(np.float64)
    error = np.zeros_like(values)
    for layer in network:
        stored = layer.weights if isinstance(layer, Linear) else layer.weights.to_scipy().toarray()
        weights = stored.astype(np.float64)
        size = np.abs(values) @ np.abs(weights) + np.abs(layer.bias_vector())
        error = error @ np.abs(weights) + (layer.inputs + 2) * EPSILON * (size + error @ np.abs(weights)) + 4 * EPSILON
        values = layer.activation(values @ weights + layer.bias_vector().astype(np.float64))
    return backends.oracle.run(network, inputs).toarray(), error


def assert_close(outputs: CSR, network: Network, inputs: CSR, slack: float = 1.0) -> None:
    """Fail unless `outputs` is canonical and every element lies within `slack` times the bound; NaN never does."""
    outputs.validate()
    values, error = expected(network, inputs)
    found = outputs.to_scipy().toarray()
    assert found.shape == values.shape
    within = np.abs(found - values) <= slack * error
    assert within.all(), f"{np.count_nonzero(~within)} elements differ, by up to {np.abs(found - values).max()}"
