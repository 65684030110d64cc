"""A network as an ONNX graph."""

from __future__ import annotations

from functools import singledispatchmethod
from math import prod
from typing import Any

import numpy as np
import onnx

from sparsenn.errors import UsageError
from sparsenn.formats import Array, Scaling
from sparsenn.formats.named_shapes import named_columns
from sparsenn.layers import (
    Activation,
    Add,
    AvgPool2d,
    Concatenate,
    Conv2d,
    Flatten,
    ForeignGraph,
    ForeignLayer,
    Identity,
    LayerNorm,
    Linear,
    LogSoftmax,
    MaxPool2d,
    Multiply,
    PerPosition,
    Pool2d,
    ReLU,
    Slice,
    SoftmaxLayer,
    SparseLinear,
)
from sparsenn.layers.activation_names import elsewhere_of
from sparsenn.model import with_onnx_graph
from sparsenn.network import Network
from sparsenn.printable import kind_of, reason_of
from sparsenn.runtime.storage.records import package_version
from sparsenn.structure.onnx_values import ValueWriter

MOST_BYTES = (1 << 31) - 1
"""Bytes of a protobuf, at most; larger models have their weights in files beside it."""

MOST_GRAPH_BYTES = 1 << 30
"""Bytes of a graph, at most: a network holds it besides its layers, and ONNX Runtime makes copies of its weights."""

# Versions that programs of the last years read; files with newer operators are of newer ones.
_OPSET = 17
_IR = 8

_ROWS, _INPUT, _OUTPUT = "rows", "input", "output"


def export_graph(network: Network, sparse: bool, scaling: Scaling | None = None) -> Any:
    """Return a network as an `onnx.ModelProto`."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    writer = _Writer(sparse, network, _OPSET).written(scaling)
    own = {node.op_type for node in writer.nodes if not node.domain}
    newest = max((writer.versions[""], *map(_first_version, own)))
    if newest > _OPSET:  # which foreign layers' operators have to be of, too
        writer = _Writer(sparse, network, newest).written(scaling)
    opsets = [helper.make_opsetid(domain, version) for domain, version in writer.versions.items()]
    inputs = network.named_inputs or {_INPUT: network.shapes[0]}
    outputs = network.named_outputs or {_OUTPUT: network.shapes[-1]}
    graph = helper.make_graph(
        writer.nodes,
        "sparsenn",
        [helper.make_tensor_value_info(name, kind, [_ROWS, *shape]) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, kind, [_ROWS, *shape]) for name, shape in outputs.items()],
        writer.tensors,
        sparse_initializer=writer.sparse_tensors,
    )
    return helper.make_model(
        graph,
        opset_imports=opsets,
        ir_version=max(_IR, helper.find_min_ir_version_for(opsets, ignore_unknown=True)),
        producer_name="sparsenn",
        producer_version=package_version(),
    )


def with_own_graph(network: Network) -> Network:
    """Return a network with convolutions and the graph that `to_onnx` writes of it, which ONNX Runtime may run.

    Others, those that ONNX has no nodes for, and those of more than `MOST_GRAPH_BYTES` are returned as they are.
    """
    sizes = (
        4 * layer.inputs * layer.outputs if isinstance(layer, SparseLinear) else getattr(layer, "weight_bytes", 0)
        for layer in network
    )
    if not any(isinstance(layer, Conv2d) for layer in network) or sum(sizes) > MOST_GRAPH_BYTES:
        return network
    try:
        model = export_graph(network, sparse=False).SerializeToString()
    except UsageError:
        return network
    if len(model) > MOST_GRAPH_BYTES:
        return network
    inputs = network.named_inputs or {_INPUT: network.shapes[0]}
    outputs = network.named_outputs or {_OUTPUT: network.shapes[-1]}
    return with_onnx_graph(network, ForeignGraph(model, inputs, outputs))


def selected_inputs(layer: SparseLinear) -> Array | None:
    """Return the inputs of which outputs are multiples, one for each output; None for a layer with sums of inputs."""
    weights = layer.weights
    counts = np.diff(weights.indptr)
    if (counts > 1).any() or not (layer.inputs and layer.outputs):
        return None
    selected = np.zeros(layer.outputs, np.int64)
    selected[counts == 1] = weights.indices
    return selected


def _first_version(operator: str) -> int:
    schemas = onnx.defs.get_all_schemas_with_history()
    return min(int(schema.since_version) for schema in schemas if (schema.domain, schema.name) == ("", operator))


class _Writer(ValueWriter):
    """Nodes and initialisers, layer by layer; within a layer, a node's output is the next one's input."""

    def __init__(self, sparse: bool, network: Network, version: int) -> None:
        super().__init__(_INPUT)
        self._sparse, self._network = sparse, network
        self._number, self._others = 0, tuple[str, ...]()
        self._dense_bytes = 0  # of weights of sparse layers, with their zeros
        self._values = [_INPUT]  # of the network's input, and of each layer so far
        self._direct = dict[int, str]()  # slices that are one of several inputs
        self.versions = {"": version}  # of the operators of each domain
        self.sparse_tensors: list[Any] = []

    def written(self, scaling: Scaling | None) -> _Writer:
        """Add all of the network."""
        self.begin(scaling is not None)
        if scaling is not None:
            self.scale(scaling)
        for number in range(1, len(self._network) + 1):
            self.write(number)
        self.end()
        self._drop_unread()
        return self

    def begin(self, packed: bool) -> None:
        """Find the slices that are one of several inputs; put these side by side if `packed`, or others read them."""
        shapes = self._network.named_inputs
        if shapes is None:
            return
        columns = {(first, last): name for name, _, first, last in named_columns(shapes)}
        for number in self._network.consumers[0]:
            node = self._network.nodes[number - 1]
            if isinstance(node.layer, Slice) and not packed:
                name = columns.get(node.layer.columns(self._network.shapes[0]))
                self._direct |= {} if name is None else {number: name}
        if len(self._direct) < len(self._network.consumers[0]):
            rows = []
            for name in shapes:
                self._place, self._value = f"inputs/{name}", name
                self._reshape(shapes[name], (prod(shapes[name]),))
                rows.append(self._value)
            self._place = "inputs"
            self._concatenate(rows, [prod(shape) for shape in shapes.values()])
            self._reshape((self._network.inputs,), self._network.shapes[0])
            self._values[0] = self._value

    def write(self, number: int) -> None:
        """Add the nodes of layer `number`, counted from 1."""
        self._number, self._place = number, f"layer{number}"
        node = self._network.nodes[number - 1]
        if number in self._direct:
            self._value = self._direct[number]
            self._reshape((self._network.named_inputs or {})[self._value], self._network.shapes[number])
            self._values.append(self._value)
            return
        self._value, *others = (self._values[source] for source in node.sources)
        self._others = tuple(others)
        self.add(node.layer)
        self._values.append(self._value)

    def end(self) -> None:
        """Name what the last layer gives; several outputs are what it concatenates, or else slices of it."""
        network, node = self._network, self._network.nodes[-1]
        if network.named_outputs is None:
            if not self.nodes or self.nodes[-1].output[0] != self._value:
                self._node("Identity")
            self.nodes[-1].output[0] = _OUTPUT
            return
        columns = list(named_columns(network.named_outputs))
        widths = [network.sizes[source] for source in node.sources]
        apart = isinstance(node.layer, Concatenate) and widths == [last - first for *_, first, last in columns]
        if apart:
            self.nodes.pop()
        else:
            self._place = "outputs"
            self._reshape(network.shapes[-1], (network.outputs,))
        packed = self._value
        for place, (name, shape, first, last) in enumerate(columns):
            self._place, self._value = f"outputs/{name}", packed
            if apart:
                self._value = self._values[node.sources[place]]
                self._reshape(network.shapes[node.sources[place]], shape)
            else:
                self._slice_matrix(first, last)
                self._reshape((last - first,), shape)
            self._name_output(name)

    def _name_output(self, name: str) -> None:
        """Give the value at hand the name of an output; where it is the input of that name, it has it."""
        if self._value == name:
            return
        if name in (self._network.named_inputs or (_INPUT,)):
            raise UsageError(f"{name!r} names an input and another output; ONNX files need a name for each value")
        self._node("Identity")
        self.nodes[-1].output[0] = name

    def scale(self, scaling: Scaling) -> None:
        """Add nodes that multiply, move and divide the inputs, where that changes them."""
        shape = self._network.shapes[0]
        for operator, name, nothing in (("Mul", "factor", 1), ("Sub", "mean", 0), ("Div", "deviation", 1)):
            values: Array = getattr(scaling, name)
            if (values != nothing).any():
                by_channel = len(shape) > 1 and values.size == shape[0]
                form = (1,) if values.size == 1 else (shape[0], 1, 1) if by_channel else shape
                self._node(operator, self._tensor(name, values.reshape(form).astype(np.float32)))
        self._values[0] = self._value

    @singledispatchmethod
    def add(self, layer: Any) -> None:
        """Add a layer."""
        raise UsageError(f"layer {self._number} is {kind_of(layer)}, which ONNX files cannot hold")

    @add.register
    def _(self, layer: Linear) -> None:
        self._node("Gemm", self._tensor("weights", layer.weights), *self._bias(layer))
        self._activate(layer.activation)

    @add.register
    def _(self, layer: SparseLinear) -> None:
        selected = selected_inputs(layer)
        if selected is not None:
            self._select(layer, selected)
        elif self._sparse:
            self._multiply(layer)
        else:
            self._node("Gemm", self._weights(layer), *self._bias(layer))
        self._activate(layer.activation)

    def _select(self, layer: SparseLinear, selected: Array) -> None:
        """Select an input for each output, multiply it by its weight, and add the bias."""
        first, last = int(selected[0]), int(selected[-1]) + 1
        if np.array_equal(selected, np.arange(first, last)):
            self._slice_matrix(first, last)
        else:
            self._node("Gather", self._tensor("inputs", selected), axis=1)
        weights = np.zeros(layer.outputs, np.float32)
        weights[np.diff(layer.weights.indptr) == 1] = layer.weights.values
        if (weights != 1).any():
            self._node("Mul", self._tensor("weights", weights))
        if layer.bias is not None:
            self._node("Add", *self._bias(layer))

    @add.register
    def _(self, layer: PerPosition) -> None:
        (shape,) = self._network.input_shapes(self._number - 1)
        self._reshape(shape, (layer.positions, layer.layer.inputs))
        self._multiply(layer.layer)
        self._activate(layer.activation)
        self._reshape((layer.positions, layer.layer.outputs), (layer.outputs,))

    def _multiply(self, layer: Any) -> None:
        self._node("MatMul", self._weights(layer))
        if layer.bias is not None:
            self._node("Add", *self._bias(layer))

    def _weights(self, layer: Any) -> str:
        if not isinstance(layer, SparseLinear):
            return self._tensor("weights", layer.weights)
        if self._sparse:
            return self._sparse_tensor("weights", layer)
        self._dense_bytes += np.float32().itemsize * layer.inputs * layer.outputs
        if self._dense_bytes > MOST_BYTES:
            raise UsageError(
                f"with the zeros of layer {self._number}, of {layer.inputs:,} × {layer.outputs:,} weights, the file is "
                "larger than an ONNX file may be; sparse=True (--sparse of convert) leaves zeros out"
            )
        return self._tensor("weights", layer.weights.to_scipy().astype(np.float32).toarray())

    @add.register
    def _(self, layer: Conv2d) -> None:
        size, stride, padding, dilation = layer.sliding_window
        weights = self._tensor("weights", layer.weights)
        form = {"strides": stride, "pads": padding * 2, "dilations": dilation, "group": layer.groups}
        self._node("Conv", weights, *self._bias(layer), kernel_shape=size, **form)
        self._activate(layer.activation)

    @add.register
    def _(self, layer: Pool2d) -> None:
        window, stride, padding, _ = layer.sliding_window
        form: dict[str, Any] = {"kernel_shape": window, "strides": stride, "pads": (*padding, *layer.after)}
        if isinstance(layer, AvgPool2d):
            self._node("AveragePool", count_include_pad=int(layer.counts_padding), **form)
        elif isinstance(layer, MaxPool2d):
            self._node("MaxPool", **form)
        else:
            raise UsageError(f"layer {self._number} is {kind_of(layer)}, which ONNX files cannot hold")

    @add.register
    def _(self, layer: Add) -> None:
        self._node("Add" if len(self._others) == 1 else "Sum", *self._others)
        self._activate(layer.activation)

    @add.register
    def _(self, layer: Multiply) -> None:
        for other in self._others:
            self._node("Mul", other)
        self._activate(layer.activation)

    @add.register
    def _(self, layer: Concatenate) -> None:
        shapes = self._network.input_shapes(self._number - 1)
        if len(shapes[0]) == 1:
            self._concatenate((self._value, *self._others), [width for (width,) in shapes])
        else:
            self._node("Concat", *self._others, axis=1)

    @add.register
    def _(self, layer: ForeignLayer) -> None:
        if layer.row_by_row:
            raise UsageError(f"layer {self._number} takes one row at a time, which no node of an ONNX file says")
        graph, prefix = self._converted(onnx.ModelProto.FromString(layer.model)).graph, f"{self._place}/"
        constants = {tensor.name: prefix + tensor.name for tensor in graph.initializer}  # which its branches read, too
        graph = onnx.compose.add_prefix_graph(graph, prefix, name_map=constants)
        values, shapes = (self._value, *self._others), self._network.input_shapes(self._number - 1)
        for value, shape, tensor, described in zip(values, shapes, layer.takes, graph.input, strict=True):
            self._place, self._value = described.name, value
            self._reshape(shape, tensor.shape)
            self._rows_at(len(tensor.shape), tensor.axis or 0)
            self._node("Identity")
            self.nodes[-1].output[0] = described.name
        self.nodes.extend(graph.node)
        self._uses.update(name for node in graph.node for name in node.output)
        self._uses.update(tensor.name for tensor in graph.initializer)
        self.tensors.extend(graph.initializer)
        self.sparse_tensors.extend(graph.sparse_initializer)
        rows = []
        for tensor, described in zip(layer.gives, graph.output, strict=True):
            self._place, self._value = described.name, described.name
            self._rows_first(tensor.shape, tensor.axis or 0)
            self._reshape(tensor.shape, (tensor.width,))
            rows.append(self._value)
        self._place = f"layer{self._number}"
        self._concatenate(rows, [tensor.width for tensor in layer.gives])
        self._reshape((layer.outputs,), self._network.shapes[self._number])

    def _converted(self, model: Any) -> Any:
        """Return a model whose operators are of this graph's versions, or newer ones."""
        versions = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}
        newest = self.versions[""]
        if versions.get("", newest) < newest:
            try:
                model = onnx.version_converter.convert_version(model, newest)
            except Exception as error:  # of several kinds
                raise UsageError(
                    f"layer {self._number}: ONNX does not convert its operators: {reason_of(error)}"
                ) from error
        for domain, version in versions.items():
            self.versions[domain] = max(self.versions.get(domain, 1), version)
        return model

    @add.register
    def _(self, layer: Flatten) -> None:
        (shape,) = self._network.input_shapes(self._number - 1)
        self._reshape(shape, (prod(shape),))

    @add.register
    def _(self, layer: Slice) -> None:
        shape = self._network.input_shapes(self._number - 1)[0]
        if len(shape) == 1:
            self._slice_matrix(layer.first, layer.last)
        else:
            self._slice(layer.first, layer.last, 1 + layer.axis)
        sliced = (*shape[: layer.axis], layer.last - layer.first, *shape[layer.axis + 1 :])
        self._reshape(sliced, self._network.shapes[self._number])

    @add.register
    def _(self, layer: SoftmaxLayer) -> None:
        operator = "LogSoftmax" if isinstance(layer, LogSoftmax) else "Softmax"
        (shape,) = self._network.input_shapes(self._number - 1)
        if len(shape) == 1:
            self._node(operator, axis=1)
            return
        self._node("Flatten")
        self._node(operator, axis=1)
        self._node("Reshape", self._tensor("shape", np.array([0, *shape], np.int64)))

    @add.register
    def _(self, layer: LayerNorm) -> None:
        (shape,) = self._network.input_shapes(self._number - 1)
        split = shape[-1] != layer.width
        if split:
            self._node("Reshape", self._tensor("split", np.array([-1, layer.positions, layer.width], np.int64)))
        scale, shift = self._tensor("scale", layer.scale), self._tensor("shift", layer.shift)
        self._node("LayerNormalization", scale, shift, axis=-1, epsilon=layer.epsilon)
        if split:
            self._node("Reshape", self._tensor("shape", np.array([-1, *shape], np.int64)))

    def _activate(self, activation: Activation) -> None:
        if isinstance(activation, ReLU) and activation.clip is not None:
            bounds = (("least", 0.0), ("most", activation.clip))
            self._node("Clip", *(self._tensor(name, np.array(bound, np.float32)) for name, bound in bounds))
        elif not isinstance(activation, Identity):
            found = elsewhere_of(activation, "onnx")
            if found is None:
                raise UsageError(f"layer {self._number} has the activation {activation}, which ONNX files cannot hold")
            (foreign, attributes), sums = found, self._value
            self._node(foreign.name, **attributes)
            if foreign.is_gate:
                self._node("Mul", sums)

    def _bias(self, layer: Any) -> tuple[str, ...]:
        return () if layer.bias is None else (self._tensor("bias", layer.bias_vector()),)

    def _sparse_tensor(self, what: str, layer: SparseLinear) -> str:
        """Add weights as a sparse initialiser, with linear positions that rise, as ONNX wants them."""
        name = f"{self._place}/{what}"
        matrix = layer.weights.to_scipy().tocoo()
        linear = matrix.row.astype(np.int64) * matrix.shape[1] + matrix.col
        order = np.argsort(linear)
        from_array = onnx.numpy_helper.from_array
        values = from_array(matrix.data[order].astype(np.float32), name)
        positions = from_array(linear[order], f"{name}/positions")
        self.sparse_tensors.append(onnx.helper.make_sparse_tensor(values, positions, list(matrix.shape)))
        return name
