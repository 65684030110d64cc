"""Layer normalisations that programs write as several nodes, as exporters did before opset 17.

::

    centred = Sub(x, ReduceMean(x))
    Add(Mul(Div(centred, Sqrt(Add(ReduceMean(Pow(centred, 2)), epsilon))), scale), shift)

A square may be a product, a quotient one with a Reciprocal, and the last product and sum may be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.io.importers.normalising import normalise
from sparsenn.io.importers.signal import Signal


class Normalisation(NamedTuple):
    """A layer normalisation of the tensor `source` along its last axes."""

    source: str
    axes: tuple[int, ...]
    epsilon: float
    scale: Array | None = None
    shift: Array | None = None

    def of_signal(self, signal: Signal) -> Signal:
        """Return what it makes of a signal."""
        axes = sorted(axis % signal.rank for axis in self.axes)
        if axes != list(range(signal.rank - len(axes), signal.rank)):
            raise InputError(f"it takes {signal}, and normalises it along {list(self.axes)}; its last axes are needed")
        sizes = signal.full(0)[-len(axes) :]
        scale, shift = (None if each is None else _without_ones(each, len(axes)) for each in (self.scale, self.shift))
        return normalise(signal, sizes, scale, shift, self.epsilon)

    def of_constant(self, values: Array) -> Array:
        """Return what it makes of an array."""
        centred = values - values.mean(axis=self.axes, keepdims=True)
        variance = (centred**2).mean(axis=self.axes, keepdims=True)
        scale, shift = 1.0 if self.scale is None else self.scale, 0.0 if self.shift is None else self.shift
        made: Array = centred / np.sqrt(variance + self.epsilon) * scale + shift
        return made.astype(values.dtype)


class Normalisations:
    """Finds the nodes of a graph that are the last of a normalisation.

    constant : returns a constant by its name; None for other tensors.
    attributes : returns a node's attributes.
    """

    def __init__(
        self, nodes: Sequence[Any], constant: Callable[[str], Array | None], attributes: Callable[[Any], dict[str, Any]]
    ) -> None:
        self._makers = {name: node for node in nodes for name in node.output}
        self._constant, self._attributes = constant, attributes

    def of(self, node: Any) -> Normalisation | None:
        """Return what a node gives if that is a normalisation."""
        shift, scale = None, None
        if node.op_type == "Add":
            node, shift = self._with_constant(node)
        if node is not None and node.op_type == "Mul":
            before, scale = self._with_constant(node)
            node = node if before is None else before
        found = None if node is None else self._quotient(node)
        return None if found is None else found._replace(scale=scale, shift=shift)

    def _quotient(self, node: Any) -> Normalisation | None:
        """Return what a node gives if that is differences from a mean, divided by their deviation."""
        if node.op_type not in ("Div", "Mul"):
            return None
        centred, root = node.input
        if node.op_type == "Mul":
            if self._kind(root) != "Reciprocal":
                centred, root = root, centred
            if self._kind(root) != "Reciprocal":
                return None
            (root,) = self._makers[root].input
        if self._kind(root) != "Sqrt":
            return None
        total = self._makers.get(self._makers[root].input[0])
        variance, epsilon = (None, None) if total is None or total.op_type != "Add" else self._with_constant(total)
        differences = self._centred(centred)
        if variance is None or epsilon is None or epsilon.size != 1 or differences is None:
            return None
        mean = self._mean(variance)
        if mean is None or mean[1] != differences[1] or self._squared(mean[0]) != differences:
            return None
        return Normalisation(*differences, float(epsilon.reshape(-1)[0]))

    def _kind(self, name: str) -> str:
        return self._makers[name].op_type if name in self._makers else ""

    def _with_constant(self, node: Any) -> tuple[Any, Array | None]:
        """Return the node that makes one of two inputs, and the other, a constant; None where there is no such pair."""
        for name, other in (node.input, node.input[::-1]):
            constant = self._constant(other)
            if constant is not None and name in self._makers and constant.dtype.kind == "f":
                return self._makers[name], constant
        return None, None

    def _mean(self, node: Any) -> tuple[str, tuple[int, ...]] | None:
        """Return the tensor that a node takes the mean of, and along which axes; None where it leaves these out."""
        if node is None or node.op_type != "ReduceMean":
            return None
        attributes = self._attributes(node)
        axes = attributes.get("axes")
        if axes is None and len(node.input) > 1:
            axes = self._constant(node.input[1])
        if axes is None or not attributes.get("keepdims", 1):
            return None
        return node.input[0], tuple(int(axis) for axis in np.reshape(axes, -1))

    def _centred(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """Return the tensor of which a value is the differences from a mean, and the axes of that."""
        node = self._makers.get(name)
        if node is None or node.op_type != "Sub":
            return None
        mean = self._mean(self._makers.get(node.input[1]))
        return mean if mean is not None and mean[0] == node.input[0] else None

    def _squared(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """Return what `_centred` does of the value whose square this is."""
        node = self._makers.get(name)
        if node is None or node.op_type not in ("Mul", "Pow"):
            return None
        base, other = node.input
        exponent = self._constant(other) if node.op_type == "Pow" else None
        is_square = other == base if node.op_type == "Mul" else exponent is not None and bool(np.all(exponent == 2))
        return self._centred(base) if is_square else None


def _without_ones(numbers: Array, rank: int) -> Array:
    """Return numbers without axes of length 1 that come before the last `rank` ones."""
    extra = max(0, numbers.ndim - rank)
    return numbers.reshape(numbers.shape[extra:]) if set(numbers.shape[:extra]) <= {1} else numbers
