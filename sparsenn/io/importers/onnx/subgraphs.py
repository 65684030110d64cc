"""Cutting a graph into what becomes layers and subgraphs that ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from sparsenn.errors import InputError
from sparsenn.io.importers.onnx.probing import Probed
from sparsenn.layers.foreign import AS_FLOAT

_MOST_BYTES = (1 << 31) - 1


@dataclass(frozen=True)
class Subgraph:
    """Nodes of a graph as a model of its own.

    model : a serialised `onnx.ModelProto`, whose inputs and outputs are float32.
    inputs, outputs : names of the values in the graph.
    operators : kinds of its nodes, each once.
    """

    model: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: tuple[str, ...]


class Subgraphs:
    """A model's nodes, by their places in the graph.

    reads : the names that some nodes read in place of their own inputs.
    """

    def __init__(self, model: Any, reads: Mapping[int, Collection[str]] | None = None) -> None:
        self._model, self._graph = model, model.graph
        self._reads_of = {} if reads is None else {place: {*filter(None, names)} for place, names in reads.items()}
        self.maker = {name: place for place, node in enumerate(self._graph.node) for name in node.output if name}
        self.needed = self._needed()

    def _needed(self) -> list[int]:
        """Return the places of the nodes that the outputs depend on, ascending."""
        wanted, needed = {output.name for output in self._graph.output}, []
        for place in range(len(self._graph.node) - 1, -1, -1):
            if wanted & set(self._graph.node[place].output):
                needed.append(place)
                wanted |= self.reads(place)
        return needed[::-1]

    def reads(self, place: int) -> set[str]:
        """Return the names that a node reads, those within its subgraphs included."""
        return self._reads_of[place] if place in self._reads_of else _names_read(self._graph.node[place])

    def connected(self, own: set[int], anchors: set[int], reads: Callable[[int], Collection[str]]) -> set[int]:
        """Return the nodes of `own` that values connect with an anchor by nodes of `own` alone."""
        readers: dict[int, set[int]] = {place: set() for place in own}
        for place in own:
            for name in reads(place):
                maker = self.maker.get(name)
                if maker in own:
                    readers[place].add(maker)
                    readers[maker].add(place)
        found, waiting = set(anchors), list(anchors)
        while waiting:
            new = readers[waiting.pop()] - found
            found |= new
            waiting += new
        return found

    def stages(self, own: set[int]) -> Iterator[tuple[bool, list[int]]]:
        """Yield nodes in stages, each after those that it reads: whether they become layers, and their places.

        Foreign nodes of a stage are one subgraph: no value leads from one to another through a layer.
        """
        stage: dict[int, int] = {}
        for place in self.needed:
            before = [self.maker[name] for name in self.reads(place) if name in self.maker]
            least = max((stage[other] + ((other in own) != (place in own)) for other in before), default=0)
            parity = int(place not in own)
            stage[place] = least if least % 2 == parity else least + 1
        for number in range(max(stage.values(), default=-1) + 1):
            places = [place for place in self.needed if stage[place] == number]
            if places:
                yield number % 2 == 0, places

    def extracted(
        self, places: Collection[int], is_known: Callable[[str], bool], tensors: Mapping[str, Probed]
    ) -> Subgraph:
        """Return nodes as a model of their own, with what they read that is not known, such as sizes."""
        constants = {tensor.name: tensor for tensor in self._graph.initializer}
        sparse = {tensor.values.name: tensor for tensor in self._graph.sparse_initializer}
        inside, inputs, used = set(places), {}, {}
        waiting = sorted(places)
        while waiting:
            for name in sorted(self.reads(waiting.pop())):
                maker = self.maker.get(name)
                if name in constants or name in sparse:
                    used[name] = True
                elif is_known(name):
                    inputs[name] = True
                elif maker is not None and maker not in inside:
                    inside.add(maker)
                    waiting.append(maker)
        outputs = self._outputs(places, inside, tensors)
        nodes = [self._graph.node[place] for place in sorted(inside)]
        made = onnx.ModelProto(ir_version=self._model.ir_version)
        domains = {"" if node.domain == "ai.onnx" else node.domain for node in nodes} | {""}
        imports = ("" if entry.domain == "ai.onnx" else entry.domain for entry in self._model.opset_import)
        used_opsets = (
            entry for entry, domain in zip(self._model.opset_import, imports, strict=True) if domain in domains
        )
        made.opset_import.extend(used_opsets)
        if any(function.domain in domains for function in self._model.functions):  # that are not inlined
            made.functions.extend(self._model.functions)
        graph = made.graph
        graph.name = "subgraph"
        names = {}
        graph.initializer.extend(constants[name] for name in used if name in constants)
        graph.sparse_initializer.extend(sparse[name] for name in used if name in sparse)
        graph_inputs = {value.name: value for value in self._graph.input}
        for name in inputs:
            kind = tensors[name].type_number if name in tensors else graph_inputs[name].type.tensor_type.elem_type
            names[name] = as_float(graph, name, kind, entering=True)
        graph.node.extend(nodes)
        for name in outputs:
            names[name] = as_float(graph, name, tensors[name].type_number, entering=False)
        graph.input.extend(onnx.ValueInfoProto(name=names[name]) for name in inputs)
        for value in graph.input:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        graph.output.extend(onnx.ValueInfoProto(name=names[name]) for name in outputs)
        if made.ByteSize() > _MOST_BYTES:
            raise InputError("a subgraph of it is larger than a protobuf may be")
        operators = dict.fromkeys(node.op_type for node in nodes)
        return Subgraph(made.SerializeToString(), tuple(inputs), outputs, tuple(operators))

    def _outputs(
        self, places: Collection[int], inside: Collection[int], tensors: Mapping[str, Probed]
    ) -> tuple[str, ...]:
        """Return the names of the values that others read, and can."""
        read = {output.name for output in self._graph.output}
        read = read.union(*(self.reads(place) for place in self.needed if place not in inside))
        names = (name for place in sorted(places) for name in self._graph.node[place].output)
        last = {output.name for output in self._graph.output}

        def is_output(name: str) -> bool:
            tensor = tensors.get(name)
            return tensor is not None and (tensor.crosses or (name in last and tensor.rows is not None))

        return tuple(name for name in names if name in read and is_output(name))


def without_dead_nodes(model: Any) -> Any:
    """Return a model of the nodes that its outputs depend on."""
    needed = Subgraphs(model).needed
    if len(needed) == len(model.graph.node):
        return model
    live = onnx.ModelProto()
    live.CopyFrom(model)
    del live.graph.node[:]
    live.graph.node.extend(model.graph.node[place] for place in needed)
    return live


def without_constant_outputs(model: Any) -> Any:
    """Return a model of the outputs that depend on inputs, such as boxes without their anchors; of all, if none do."""
    computed = {value.name for value in model.graph.input} - {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if not computed.isdisjoint(_names_read(node)):
            computed.update(node.output)
    left = [value for value in model.graph.output if value.name in computed]
    if len(left) in (0, len(model.graph.output)):
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    del found.graph.output[:]
    found.graph.output.extend(left)
    return found


def as_float(graph: Any, name: str, kind: int, entering: bool) -> str:
    """Return the name of a value as float32; a node that casts values of other types is added to a graph."""
    if kind == onnx.TensorProto.FLOAT:
        return name
    outer = name + AS_FLOAT
    source, target, to = (outer, name, kind) if entering else (name, outer, onnx.TensorProto.FLOAT)
    graph.node.append(onnx.helper.make_node("Cast", [source], [target], to=to))
    return outer


def _names_read(node: Any) -> set[str]:
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own: set[str] = {value.name for value in (*graph.input, *graph.initializer)}
            inner: Sequence[Any] = graph.node
            own.update(name for each in inner for name in each.output)
            names |= set().union(*(_names_read(each) for each in inner)) - own
            names |= {value.name for value in graph.output} - own
    return names
