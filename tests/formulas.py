"""What activations compute, one float64 formula each, written without a look at the package's own.

This is the only other place that lists the activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

from sparsenn.layers import activation as table

__all__ = ["EXAMPLES", "FORMULAS", "Unknown", "steepest", "value_of"]


class Unknown:
    """An activation that is in no table."""

    name = "unknown"

    def __call__(self, z: Any) -> Any:
        return z + z


def _sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


def _softplus(z: float) -> float:
    return z + math.exp(-z) if z > 40 else math.log1p(math.exp(z)) if z > -700 else 0.0


def _gated(gate: Callable[[float], float]) -> Callable[..., float]:
    return lambda z: z * gate(z) if z > -700 else 0.0


def _tail(z: float) -> float:
    """Return the share of normal numbers below z."""
    return math.erfc(-z / math.sqrt(2)) / 2


def _tanh_tail(z: float) -> float:
    inner = math.sqrt(2 / math.pi) * (z + 0.044715 * min(z, 1e50) ** 3)
    return _sigmoid(2 * inner)


FORMULAS: dict[type, Callable[..., float]] = {
    table.ReLU: lambda z, clip: min(max(z, 0.0), math.inf if clip is None else clip),
    table.Sigmoid: _sigmoid,
    table.Tanh: math.tanh,
    table.Identity: lambda z: z,
    table.ELU: lambda z, alpha: z if z >= 0 else alpha * math.expm1(z),
    table.CELU: lambda z, alpha: max(z, 0.0) + alpha * math.expm1(min(z, 0.0) / alpha),
    table.SELU: lambda z: 1.0507009873554804934193349852946 * (z if z >= 0 else 1.6732632423543772848 * math.expm1(z)),
    table.SiLU: _gated(_sigmoid),
    table.GELU: _gated(_tail),
    table.GELUTanh: _gated(_tanh_tail),
    table.HardSwish: _gated(lambda z: min(max(z + 3, 0.0), 6.0) / 6),
    table.HardSigmoid: lambda z, alpha: min(max(alpha * z + 0.5, 0.0), 1.0),
    table.LeakyReLU: lambda z, alpha: z if z >= 0 else alpha * z,
    table.Softplus: lambda z, beta: _softplus(beta * z) / beta,
    table.Mish: _gated(lambda z: math.tanh(_softplus(z))),
    table.Softsign: lambda z: z / (1 + abs(z)) if math.isfinite(z) else math.copysign(1.0, z),
}

EXAMPLES = (
    *(kind() for kind in table.ACTIVATIONS),
    *(kind(parameter) for kind in table.ACTIVATIONS for parameter in (0.3, 2.5) if kind.takes_parameter()),
    table.LeakyReLU(-0.5),
)
"""Each activation, with its default and with other parameters."""


@cache
def steepest(activation: table.Elementwise) -> float:
    """Return how steep an activation is at most, and 1 at least."""
    step = 0.01
    values = [value_of(activation, number * step) for number in range(-1000, 1000)]
    return max(1.0, *(abs(after - before) / step for before, after in pairwise(values))) * 1.001


def value_of(activation: table.Elementwise, z: float) -> float:
    """Return what an activation makes of a number; NaN of NaN."""
    formula, takes = FORMULAS[type(activation)], activation.takes_parameter()
    if math.isnan(z):
        return z
    return formula(z, activation.argument) if takes else formula(z)
