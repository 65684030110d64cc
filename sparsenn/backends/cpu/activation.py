"""Activations as compiled functions know them: by a number and a parameter, their code generated from the one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparsenn.backends.cpu import elementary
from sparsenn.errors import UsageError
from sparsenn.layers import Activation, Identity, ReLU
from sparsenn.layers.activation import ACTIVATIONS
from sparsenn.layers.activation_names import table_row
from sparsenn.layers.formulas import as_python
from sparsenn.runtime.jit import uncontracted, wide_vectors

RELU = ACTIVATIONS.index(ReLU)
IDENTITY = ACTIVATIONS.index(Identity)


def activation_code(activation: Activation) -> tuple[int, float]:
    """Return an activation's place in the table, and its parameter or infinity; refuse one that is not there."""
    row = table_row(activation)
    if row is None:
        raise UsageError(f"the CPU kernels do not know the activation {activation}")
    return ACTIVATIONS.index(type(row)), row.parameter


def unknown_activation(layers: Sequence[Any]) -> str | None:
    """Return why a layer's activation cannot be computed; None if all can."""
    try:
        for layer in layers:
            activation_code(layer.activation)
    except UsageError as error:
        return str(error)
    return None


_LINE = """\
def activate_line(kind, sums, at, count, p):
    wide_vectors()
    begin = uintp(at)
{branches}
    for lane in range(uintp(count)):
        sums[begin + lane] = nan
"""
"""A loop for each kind, so that none asks for it number by number."""

_BRANCH = """\
    if kind == {code}:
        for lane in range(uintp(count)):
            z = sums[begin + lane]
{formula}
        return
"""


def _line() -> str:
    branches = [
        _BRANCH.format(code=code, formula=_indented(as_python(row.formula, "sums[begin + lane] ="), 3))
        for code, row in enumerate(ACTIVATIONS)
    ]
    return _LINE.format(branches="".join(branches))


def _slope() -> str:
    branches = [
        f"    if kind == {code}:\n{_indented(as_python(row.slope, 'return'), 2)}\n"
        for code, row in enumerate(ACTIVATIONS)
        if row.slope is not None
    ]
    return f"def slope(kind, y, p):\n{''.join(branches)}    return float32(nan)\n"


def _indented(lines: list[str], depth: int) -> str:
    return "\n".join("    " * depth + line for line in lines)


def _made(name: str, text: str) -> Callable[..., Any]:
    functions = {each: getattr(elementary, each) for each in elementary.__all__}
    namespace: dict[str, Any] = {
        "__name__": __name__, "float32": np.float32, "uintp": np.uintp, "wide_vectors": wide_vectors, **functions
    }  # fmt: skip
    exec(compile(text, __file__, "exec"), namespace)
    function: Callable[..., Any] = namespace[name]
    return uncontracted(function)


activate_line = _made("activate_line", _line())
"""Apply the activation of a code and a parameter to `count` float32 sums from a place on; NaN for another code."""

slope = _made("slope", _slope())
"""Return the derivative of the activation of a code and a parameter where its value is y; NaN for another code."""
