"""Activations that programs write as several nodes, such as x · sigmoid(x): found by what they compute of numbers.

Only products and quotients of two tensors that depend on the network's input are compared; other products are layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.io.importers.combinations import POINTS, activation_of
from sparsenn.io.importers.signal import Signal
from sparsenn.layers import Activation
from sparsenn.layers.activation_names import activation_elsewhere
from sparsenn.layers.formulas import numpy_function

_MOST_TENSORS = 16  # of an activation, at most

_OPERATORS: dict[str, Callable[..., Array]] = {
    "Abs": np.abs,
    "Add": np.add,
    "Div": np.divide,
    "Erf": lambda z: 1 - numpy_function("erfc")(z),
    "Exp": np.exp,
    "Log": np.log,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Pow": np.power,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
}


class Gate(NamedTuple):
    """What a node gives: a factor times an activation of the tensor `source`."""

    source: str
    activation: Activation
    factor: float

    def of_signal(self, signal: Signal) -> Signal:
        """Return what it makes of a signal."""
        return signal.activated(self.activation).times(self.factor)

    def of_constant(self, values: Array) -> Array:
        """Return what it makes of an array."""
        made: Array = (self.activation(values) * self.factor).astype(values.dtype)
        return made


class Gates:
    """Finds the nodes of a graph that are the last of an activation.

    number : returns a constant of one number by its name; None for other tensors.
    attributes : returns a node's attributes.
    """

    def __init__(
        self, nodes: Sequence[Any], number: Callable[[str], float | None], attributes: Callable[[Any], dict[str, Any]]
    ) -> None:
        self._makers = {name: node for node in nodes for name in node.output}
        self._number, self._attributes = number, attributes

    def of(self, node: Any) -> Gate | None:
        """Return what a node gives if that is a gate."""
        if node.op_type not in ("Mul", "Div") or any(self._number(name) is not None for name in node.input):
            return None
        for source in self._before(node):
            values = self._result(node, {source: POINTS})
            found = None if values is None or np.shape(values) != POINTS.shape else activation_of(values)
            if found is not None:
                return Gate(source, *found)
        return None

    def _before(self, node: Any) -> Iterator[str]:
        """Yield the names of tensors that a node's value comes from, the nearest first."""
        waiting, seen = list(node.input), set[str]()
        while waiting and len(seen) < _MOST_TENSORS:
            name = waiting.pop(0)
            if name not in seen:
                seen.add(name)
                yield name
                waiting += self._makers[name].input if name in self._makers else ()

    def _value(self, name: str, known: dict[str, Any]) -> Any:
        if name not in known and len(known) < _MOST_TENSORS:
            number = self._number(name)
            known[name] = number  # None while it is not known, which ends circles
            if number is None and name in self._makers:
                known[name] = self._result(self._makers[name], known)
        return known.get(name)

    def _result(self, node: Any, known: dict[str, Any]) -> Any:
        """Return what a node gives where tensors have known values; None if others matter, or other operators."""
        inputs = [self._value(name, known) for name in node.input]
        if any(each is None for each in inputs):
            return None
        with np.errstate(all="ignore"):
            if node.op_type in _OPERATORS:
                return _OPERATORS[node.op_type](*inputs)
            try:
                activation = activation_elsewhere("onnx", node.op_type, self._attributes(node).get)
            except InputError:  # a parameter that no layer has: where the node is computed, it is refused by name
                return None
            return None if activation is None else activation(np.asarray(inputs[0], np.float64))
