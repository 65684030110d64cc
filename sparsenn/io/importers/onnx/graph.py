"""The walk through a graph's nodes: constants are folded, and what depends on the input becomes layers."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx

from sparsenn.errors import InputError, prefix_errors
from sparsenn.formats import Array
from sparsenn.io.importers.affine import UNSCALED, Scaling
from sparsenn.io.importers.combinations import network_between
from sparsenn.io.importers.onnx.call import Call, Classes, Value
from sparsenn.io.importers.onnx.folding import fold
from sparsenn.io.importers.onnx.gates import Gates
from sparsenn.io.importers.onnx.graph_inputs import differ_in_rows
from sparsenn.io.importers.onnx.labels import labels_of
from sparsenn.io.importers.onnx.normalisations import Normalisation, Normalisations
from sparsenn.io.importers.onnx.operators import OPERATORS
from sparsenn.io.importers.onnx.subgraphs import Subgraphs
from sparsenn.io.importers.onnx.tensors import Tensors
from sparsenn.io.importers.signal import Signal
from sparsenn.layers import Softmax
from sparsenn.network import Network
from sparsenn.printable import reason_of

_OLDEST = 7
"""The version of the operators from which on sums broadcast as NumPy's do; layers here are made of none before."""

_DOMAINS = {"": "", "ai.onnx": "", "ai.onnx.ml": "ai.onnx.ml"}

_NEEDED = {
    "Attention": "attention",
    "ConvTranspose": "a transposed convolution",
    "GRU": "a recurrent layer",
    "If": "a choice while it runs",
    "LSTM": "a recurrent layer",
    "Loop": "a loop",
    "QuantizeLinear": "arithmetic with quantised values",
    "RNN": "a recurrent layer",
}
"""What sparsenn would need for operators that networks often have."""


@dataclass(frozen=True)
class Imported:
    """What a graph holds.

    classes : whether its outputs are scores or probabilities of classes.
    labels : the classes' own labels, where the graph has them.
    entering : how the graph scales its input before all else.
    dequantised : how many quantised constants, such as weights, became float32.
    inputs, outputs : the graph's, those that are the network's, by their names.
    """

    network: Network
    classes: bool
    labels: tuple[str, ...] = ()
    entering: Scaling = UNSCALED
    dequantised: int = 0
    inputs: Mapping[str, Signal] = field(default_factory=dict)
    outputs: Mapping[str, Signal] = field(default_factory=dict)


class Walk:
    """One model: its constants, and what its nodes make of an input.

    `constants` are its initialisers where another walk has read them.
    """

    def __init__(self, model: Any, tensors: Tensors, constants: Mapping[str, Value] | None = None) -> None:
        self._graph, self._tensors = model.graph, tensors
        self._opsets = _opsets(model)
        self._context = _checker(model, self._opsets)
        self.constants = self._read_constants() if constants is None else constants
        known = (node for node in self._graph.node if node.op_type == "Constant")
        self._constants = {name: node for node in known for name in node.output}
        self._constant = cache(self._constant_of)
        gates = Gates(self._graph.node, self._number, self._attributes)
        normalisations = Normalisations(self._graph.node, self._constant, self._attributes)
        found = ((place, normalisations.of(node) or gates.of(node)) for place, node in enumerate(self._graph.node))
        self._patterns = {place: pattern for place, pattern in found if pattern is not None}
        reads = {place: (pattern.source,) for place, pattern in self._patterns.items()}
        self._subgraphs = Subgraphs(model, reads)
        self._needed = self._subgraphs.needed
        self._read = self.names_read()
        self._begin()

    def _begin(self) -> None:
        self._labels: tuple[str, ...] = ()
        self._dequantised: set[str] = set()

    def again(self) -> Walk:
        """Return a walk of the same model that has passed no node."""
        walk = copy(self)
        walk._begin()
        return walk

    def _read_constants(self) -> dict[str, Value]:
        constants: dict[str, Value] = {}
        for tensor in (*self._graph.initializer, *self._graph.sparse_initializer):
            is_sparse = tensor.DESCRIPTOR.name == "SparseTensorProto"
            name = tensor.values.name if is_sparse else tensor.name
            if name in constants:
                raise InputError(f"two initialisers are called {name!r}")
            constants[name] = self._tensors.sparse(tensor) if is_sparse else self._tensors.array(tensor)
        return constants

    def names_read(self) -> set[str]:
        """Return the names of all values that the outputs depend on."""
        return {output.name for output in self._graph.output}.union(*map(self._subgraphs.reads, self._needed))

    def unknown_operators(self) -> set[str]:
        """Return the operators without layers here whose nodes depend on the graph's inputs."""
        computed = {value.name for value in self._graph.input} - self.constants.keys()
        unknown = set()
        for place in self._needed:
            node = self._graph.node[place]
            if node.op_type not in ("Shape", "Size") and computed.intersection(self._subgraphs.reads(place)):
                computed.update(node.output)
                if place not in self._patterns and node.op_type not in OPERATORS:
                    unknown.add(node.op_type)
        return unknown

    def reads(self, place: int) -> tuple[str, ...]:
        """Return the names of the values that a node reads."""
        pattern = self._patterns.get(place)
        return tuple(self._graph.node[place].input) if pattern is None else (pattern.source,)

    def normalises(self, place: int) -> bool:
        """Whether a node is a layer normalisation, or the last node of one."""
        is_operator = self._graph.node[place].op_type == "LayerNormalization"
        return is_operator or isinstance(self._patterns.get(place), Normalisation)

    @property
    def has_normalisations(self) -> bool:
        """Whether the outputs depend on a layer normalisation."""
        return any(map(self.normalises, self._needed))

    def run(self, signals: dict[str, Signal]) -> Imported:
        """Return what the graph makes of its inputs."""
        if differ_in_rows(signals):
            names = ", ".join(f"{name!r}: {signal}" for name, signal in signals.items())
            raise InputError(
                f"its inputs differ in their rows ({names}); export all of them with an open axis of rows, or none"
            )
        values: dict[str, Value] = {**self.constants, **signals}
        for place in self._needed:
            self.add_outputs(place, values)
        return self.imported(signals, values)

    def add_outputs(self, place: int, values: dict[str, Value]) -> None:
        """Add a node's outputs to values, and the labels of classes that it holds to those of the graph."""
        node = self._graph.node[place]
        where = f"node {place + 1} ({node.op_type}{f' {node.name!r}' if node.name else ''})"
        with prefix_errors(where):
            pattern = self._patterns.get(place)
            source = None if pattern is None else _found(pattern.source, values)
            made: list[Value]
            if pattern is not None and isinstance(source, Signal):
                made = [pattern.of_signal(source)]
            elif pattern is not None and isinstance(source, np.ndarray):
                made = [pattern.of_constant(source)]
            else:
                made = self._made(node, [_found(name, values) for name in node.input])
            self._labels = self._labels or labels_of(node, values)
        if missing := [name for name in node.output[len(made) :] if name and name in self._read]:
            raise InputError(f"{where}: no layer gives its other outputs, of which {missing[0]!r} is read")
        for name, value in zip(node.output, made, strict=False):
            if name in values:
                raise InputError(f"{where}: {name!r} is given twice")
            if name:
                values[name] = value

    def imported(self, signals: Mapping[str, Signal], values: Mapping[str, Value]) -> Imported:
        """Return the network of the graph's outputs: numbers, or those that numbers of classes are taken of."""
        outputs = {output.name: _found(output.name, values) for output in self._graph.output}
        found = {name: value for name, value in outputs.items() if isinstance(value, Signal | Classes)}
        scores = {name: value for name, value in found.items() if isinstance(value, Signal)}
        classes = [value for value in found.values() if isinstance(value, Classes)]
        distinct = {id(value) for value in scores.values()} or {id(value.scores) for value in classes}
        widths = {value.width for value in scores.values()}.union(value.scores.width for value in classes)
        if not distinct or (classes and (len(distinct) > 1 or len(widths) > 1)):
            names = ", ".join(map(repr, found)) or "none"
            raise InputError(
                f"its outputs that depend on the input are {names}; one at least is needed, and where one is the "
                "number of a class only one other may be, the scores (onnx.utils.extract_model leaves one)"
            )
        if classes:
            scores = dict(list(scores.items())[:1])
        network, entering = network_between(signals, scores or {"scores": classes[0].scores})
        has_classes = bool(classes) or isinstance(network[-1], Softmax)
        return Imported(network, has_classes, self._labels, entering, len(self._dequantised), signals, scores)

    def _made(self, node: Any, inputs: list[Value]) -> list[Value]:
        domain = _DOMAINS.get(node.domain)
        if domain is None:
            raise InputError(f"its domain {node.domain!r} is not one of ONNX's; nothing is known about the operator")
        version = self._opsets[domain]
        if not domain and version < _OLDEST:
            raise InputError(f"its operator has version {version}; layers are made of those from version {_OLDEST} on")
        try:
            onnx.checker.check_node(node, self._context)
        except Exception as error:  # the checker raises whatever its parts raise
            raise InputError(reason_of(error)) from error
        attributes = self._attributes(node)
        if any(isinstance(value, Classes) for value in inputs):
            return [_classes_of(node.op_type, inputs)]
        if not any(isinstance(value, Signal) for value in inputs):
            return self._folded(node, attributes, inputs)
        if node.op_type not in OPERATORS:
            needed = _NEEDED.get(node.op_type, "a layer for it; docs/importing-onnx.md lists what is read")
            raise InputError(f"no layer does that; sparsenn would need {needed}")
        made = OPERATORS[node.op_type](Call(node.op_type, version, attributes, inputs, len(node.output)))
        return made if isinstance(made, list) else [made]

    def _folded(self, node: Any, attributes: dict[str, Any], inputs: list[Value]) -> list[Value]:
        if node.op_type == "Constant":
            for name, read in (("value", self._tensors.array), ("sparse_value", self._tensors.sparse)):
                if name in attributes:
                    return [read(attributes[name])]
        if node.op_type == "DequantizeLinear":
            self._dequantised.add(node.output[0])
        return fold(node, inputs, self._opsets)

    def _constant_of(self, name: str) -> Array | None:
        """Return an initialiser, or what a Constant node holds, by its name; None for others, and sparse ones."""
        constant = self.constants.get(name)
        if constant is None and (node := self._constants.get(name)) is not None:
            constant = self._folded(node, self._attributes(node), [])[0]
        return constant if isinstance(constant, np.ndarray) else None

    def _number(self, name: str) -> float | None:
        """Return a constant of one number and at most one axis by its name; None for others."""
        constant = self._constant(name)
        is_number = constant is not None and constant.size == 1 and constant.ndim < 2 and constant.dtype.kind in "fiu"
        return float(constant.reshape(-1)[0]) if constant is not None and is_number else None

    def _attributes(self, node: Any) -> dict[str, Any]:
        return {attribute.name: self._attribute(attribute) for attribute in node.attribute}

    def _attribute(self, attribute: Any) -> Any:
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            raise InputError(
                f"its attribute {attribute.name!r} is a subgraph; sparsenn does not choose layers at run time"
            )
        value = onnx.helper.get_attribute_value(attribute)
        if value is None:
            raise InputError(f"its attribute {attribute.name!r} has no type, and so no value")
        return value


_PICKING_LABELS = ("ArrayFeatureExtractor", "Gather")
_PASSING_CLASSES = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that leave the number of a class one; those above make its label of it, which they pick from a constant."""


def _classes_of(operator: str, inputs: list[Value]) -> Classes:
    """Return the classes that an operator gives for classes: the same."""
    if operator not in _PICKING_LABELS and not (operator in _PASSING_CLASSES and isinstance(inputs[0], Classes)):
        raise InputError("it computes with the numbers of classes; do that with the network's outputs")
    found = [value for value in inputs if isinstance(value, Classes)]
    if len(found) != 1 or any(isinstance(value, Signal) for value in inputs):
        raise InputError("it picks by classes, from no constant; only labels of classes can be picked so")
    return found[0]


def _opsets(model: Any) -> dict[str, int]:
    opsets = {_DOMAINS.get(opset.domain, opset.domain): opset.version for opset in model.opset_import}
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= opsets.get("", newest) <= newest:
        raise InputError(f"its operators are of version {opsets['']} (opset); the installed onnx knows 1 to {newest}")
    if not 1 <= opsets.get("ai.onnx.ml", 1) <= onnx.defs.onnx_ml_opset_version():
        raise InputError(f"its operators of ai.onnx.ml are of version {opsets['ai.onnx.ml']}, which onnx does not know")
    return {
        "": newest,
        "ai.onnx.ml": 1,
        **{domain: version for domain, version in opsets.items() if domain in _DOMAINS},
    }


def _checker(model: Any, opsets: dict[str, int]) -> Any:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = min(max(model.ir_version, 3), onnx.IR_VERSION)
    context.opset_imports = opsets
    return context


def _found(name: str, values: Mapping[str, Value]) -> Value:
    """Return a value by its name; None for one that is left out."""
    if not name:
        return None
    if name not in values:
        raise InputError(f"{name!r} is not an input, an initialiser, or the output of a node before it")
    return values[name]
