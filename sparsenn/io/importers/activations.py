"""Activations that programs write as several operations, such as x · sigmoid(x), identified by their values."""

from __future__ import annotations

import numpy as np

from sparsenn.formats import Array
from sparsenn.layers import Activation
from sparsenn.layers.activation import ACTIVATIONS

POINTS = np.concatenate([np.linspace(-8, 8, 65), [-0.01, 0.01]])
"""Inputs at which operations and activations are compared."""

_LARGEST = 64
"""Index of the largest input; all activations are positive there."""

_NEAR = 1e-6
"""Tolerance for float32 constants of programs; the two kinds of GELU differ by 5e-4."""


def activation_of(values: Array) -> tuple[Activation, float] | None:
    """Return the activation that gives, times a factor, these values at `POINTS`; None where there is none.

    Of activations with a parameter, that with its default alone is found.
    """
    for activation in (kind() for kind in ACTIVATIONS if kind.is_curved):
        expected = activation(POINTS)
        factor = round(float(values[_LARGEST] / expected[_LARGEST]) * 8) / 8
        if factor and np.allclose(values, factor * expected, rtol=0, atol=_NEAR * abs(factor)):
            return activation, factor
    return None
