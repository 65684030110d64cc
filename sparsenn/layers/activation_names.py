"""Activations by their names, here and in other frameworks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from sparsenn.errors import InputError, unknown_name
from sparsenn.layers.activation import ACTIVATIONS, Identity, ReLU
from sparsenn.layers.elementwise import Activation, Elementwise, Foreign

_NAMED: dict[str, type[Elementwise]] = {**{kind.name: kind for kind in ACTIVATIONS}, "none": Identity}


def activation_named(name: str, parameter: float | None = None) -> Activation:
    """Return the activation called `name`, with a parameter if it has one; `none` is another name of Identity."""
    if name not in _NAMED:
        raise unknown_name("activation", name, _NAMED)
    kind = _NAMED[name]
    if parameter is not None and not kind.takes_parameter():
        having = ", ".join(sorted(each.name for each in ACTIVATIONS if each.takes_parameter()))
        raise InputError(f"{name} takes no parameter, such as a clip; these do: {having}")
    return _made(kind, parameter)


def _made(kind: type[Any], parameter: Any) -> Elementwise:
    activation: Elementwise = kind() if parameter is None else kind(parameter)
    return activation


def _default(name: str, default: Any) -> Any:
    return default


def activation_elsewhere(
    framework: str, name: str, attribute: Callable[[str, Any], Any] = _default
) -> Activation | None:
    """Return the activation that another framework calls `name`; None where the table has none.

    Parameters
    ----------
    framework : as `Foreign` has it.
    attribute : returns the value of an attribute of the framework's, by its name and default. Unless given, defaults.
    """
    for kind, foreign in _elsewhere(framework):
        if name == foreign.name and all(_agrees(attribute(*asked), value) for *asked, value in foreign.conditions):
            parameter = attribute(foreign.parameter, foreign.default) if foreign.parameter else None
            zero = kind.at_zero if parameter == 0 else None
            return _made(kind, parameter) if zero is None else zero()
    return None


def _elsewhere(framework: str) -> Iterator[tuple[type[Elementwise], Foreign]]:
    for kind in ACTIVATIONS:
        for foreign in kind.elsewhere:
            if foreign.framework == framework and not foreign.is_gate:
                yield kind, foreign


def _agrees(found: Any, value: Any) -> bool:
    found = found.decode(errors="replace") if isinstance(found, bytes) else found  # as ONNX has texts
    return math.isclose(found, value, rel_tol=1e-6) if isinstance(value, float) else bool(found == value)


def names_elsewhere(framework: str) -> list[str]:
    """Return what another framework calls the activations, those that it has."""
    return sorted({foreign.name for _, foreign in _elsewhere(framework)})


def attributes_elsewhere(framework: str, name: str) -> list[str]:
    """Return the names of all attributes that activations of a name have in another framework."""
    named = [foreign for _, foreign in _elsewhere(framework) if foreign.name == name]
    return sorted(
        {foreign.parameter for foreign in named if foreign.parameter}
        | {attribute for foreign in named for attribute, *_ in foreign.conditions}
    )


def elsewhere_of(activation: Activation, framework: str) -> tuple[Foreign, dict[str, Any]] | None:
    """Return what a framework calls an activation, and the attributes that it needs there; None if it has none."""
    row = table_row(activation)
    if row is None:
        return None
    for foreign in row.elsewhere:
        if foreign.framework == framework and (foreign.parameter or row == type(row)()):
            attributes = {key: value for key, default, value in foreign.conditions if value != default}
            return foreign, attributes | ({foreign.parameter: row.argument} if foreign.parameter else {})
    return None


def table_row(activation: Activation) -> Elementwise | None:
    """Return an activation as a row of the table; None for one that is not of this package."""
    return activation if isinstance(activation, Elementwise) and type(activation) in ACTIVATIONS else None


def row_of(activation: Activation) -> Elementwise:
    """Return an activation that is known to be in the table as a row of it."""
    row = table_row(activation)
    assert row is not None, "activations are checked where they are given"
    return row


def check_activation(activation: Any) -> None:
    """Refuse what is no activation, such as a name or a class."""
    if callable(activation) and isinstance(getattr(activation, "name", None), str) and not isinstance(activation, type):
        return
    found = activation.__name__ if isinstance(activation, type) else activation
    kinds = {key: kind for kind in ACTIVATIONS for key in (kind.name, kind.__name__)}
    kind = kinds.get(found, ReLU) if isinstance(found, str) else ReLU
    raise InputError(f"the activation is {activation!r}; take an object, such as sparsenn.{kind.__name__}()")
