"""Activations as compiled functions know them: by a number and a parameter, their code generated from the one table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsenn.errors import UsageError
from sparsenn.jit import uncontracted
from sparsenn.layers import Activation, Identity, ReLU
from sparsenn.layers.activation import ACTIVATIONS
from sparsenn.layers.activation_names import table_row
from sparsenn.layers.formulas import as_python

__all__ = ["IDENTITY", "RELU", "activate", "activation_code", "slope"]

RELU, IDENTITY = ACTIVATIONS.index(ReLU), ACTIVATIONS.index(Identity)


def activation_code(activation: Activation) -> tuple[int, float]:
    """Return an activation as compiled functions take it: its place in the table, and its parameter or infinity.

    Raises
    ------
    UsageError
        It is not in the table.
    """
    row = table_row(activation)
    if row is None:
        raise UsageError(f"the CPU kernels do not know the activation {activation}")
    return ACTIVATIONS.index(type(row)), row.parameter


def _generated(name: str, variable: str, formulas: dict[int, str]) -> Callable[..., Any]:
    """Return a function of (kind, `variable`, p), all float32 but the kind, to be compiled; NaN for other kinds."""
    lines = [f"def {name}(kind, {variable}, p):"]
    for code, formula in formulas.items():
        lines += [f"    if kind == {code}:", *(f"        {line}" for line in as_python(formula))]
    lines += ["    return float32(math.nan)"]
    namespace: dict[str, Any] = {"__name__": __name__, "math": math, "float32": np.float32}
    exec(compile("\n".join(lines), __file__, "exec"), namespace)
    function: Callable[..., Any] = namespace[name]
    return function


activate = uncontracted(_generated("activate", "z", {code: kind.formula for code, kind in enumerate(ACTIVATIONS)}))
"""Apply the activation of a code and a parameter to a sum."""

slope = uncontracted(
    _generated("slope", "y", {code: kind.slope for code, kind in enumerate(ACTIVATIONS) if kind.slope is not None})
)
"""Return the derivative of the activation of a code and a parameter where its value is y."""
