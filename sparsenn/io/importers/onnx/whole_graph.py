"""The graph of a whole network for ONNX Runtime, as it was imported, but that its inputs and outputs are float32."""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from sparsenn.io.importers.onnx.labels import with_numeric_outputs
from sparsenn.io.importers.onnx.subgraphs import as_float, without_dead_nodes
from sparsenn.io.importers.onnx.tensors import Tensors
from sparsenn.io.importers.signal import Signal
from sparsenn.layers import ForeignGraph, ForeignLayer
from sparsenn.network import Network
from sparsenn.structure.onnx_graph import MOST_GRAPH_BYTES

_OUTPUT = "/output of sparsenn"
"""Behind the name of an input that is an output."""


def whole_graph(
    model: Any, tensors: Tensors, network: Network, inputs: Mapping[str, Signal], outputs: Mapping[str, Signal]
) -> ForeignGraph | None:
    """Return the graph from a network's inputs to its outputs.

    None for graphs that are large, compute in float16, fix a number of rows above one, have rows in some inputs or
    outputs alone, or have branches and rows along other axes than the first.
    """
    rows = {signal.rows for signal in inputs.values()}
    are_whole = {signal.axis is None for signal in (*inputs.values(), *outputs.values())}  # of which each is one row
    if len(are_whole) > 1 or not outputs or not (are_whole == {True} or rows in ({None}, {1})):
        return None
    if _computes_in_half(model.graph) or _bytes(model) > MOST_GRAPH_BYTES:
        return None
    # ONNX Runtime ends the process where it moves a transposition past one that a branch reads
    if any(signal.axis for signal in (*inputs.values(), *outputs.values())) and _has_branches(model.graph):
        return None
    source, whole = with_numeric_outputs(tensors.with_all(model)), onnx.ModelProto()
    whole.CopyFrom(source)
    graph, taken, given = whole.graph, dict[str, tuple[int, ...]](), dict[str, tuple[int, ...]]()
    del graph.node[:]
    constants = {tensor.name for tensor in graph.initializer}
    _remove_others(graph.input, inputs.keys() | constants)
    for value in graph.input:
        if value.name in inputs:
            signal = inputs[value.name]
            _as_rows(graph, value, signal, entering=True)
            taken[value.name] = signal.shape
    graph.node.extend(source.graph.node)
    _remove_others(graph.output, outputs)
    for value in graph.output:
        signal = outputs[value.name]
        if value.name in inputs:  # which ONNX Runtime does not write where outputs are bound
            graph.node.append(onnx.helper.make_node("Identity", [value.name], [value.name + _OUTPUT]))
            value.name += _OUTPUT
        _as_rows(graph, value, signal, entering=False)
        given[value.name] = signal.shape
    is_one_row = rows == {1} or are_whole == {True}
    row_by_row = is_one_row or any(isinstance(layer, ForeignLayer) and layer.row_by_row for layer in network)
    return ForeignGraph(without_dead_nodes(whole).SerializeToString(), taken, given, row_by_row)


def _computes_in_half(graph: Any) -> bool:
    casts = (attribute for node in graph.node if node.op_type == "Cast" for attribute in node.attribute)
    kinds = {attribute.i for attribute in casts if attribute.name == "to"}
    kinds.update(value.type.tensor_type.elem_type for value in graph.input)
    return not kinds.isdisjoint((TensorProto.FLOAT16, TensorProto.BFLOAT16))


def _has_branches(graph: Any) -> bool:
    return any(attribute.HasField("g") for node in graph.node for attribute in node.attribute)


def _bytes(model: Any) -> int:
    """Return the bytes of a model with its external data."""
    outside = (each for each in model.graph.initializer if each.data_location == TensorProto.EXTERNAL)
    sizes = (prod(each.dims) * onnx.helper.tensor_dtype_to_np_dtype(each.data_type).itemsize for each in outside)
    size: int = model.ByteSize() + sum(sizes)
    return size


def _remove_others(values: Any, names: Container[str]) -> None:
    for value in [value for value in values if value.name not in names]:
        values.remove(value)


def _as_rows(graph: Any, value: Any, signal: Signal, entering: bool) -> None:
    """Make an input or output float32, its rows along the first axis; nodes are added that lead from it or to it."""
    axis, tensor = signal.axis, value.type.tensor_type
    inner, outer = value.name, value.name if axis == 0 else f"{value.name}/rows"
    kind, tensor.elem_type = tensor.elem_type or TensorProto.FLOAT, TensorProto.FLOAT
    if entering:
        value.name = as_float(graph, outer, kind, entering)
    source, target = (outer, inner) if entering else (inner, outer)
    if axis != 0:
        tensor.ClearField("shape")
    if axis is None:
        shape = np.array(signal.shape if entering else (1, *signal.shape), np.int64)
        graph.initializer.append(onnx.numpy_helper.from_array(shape, f"{inner}/shape"))
        graph.node.append(onnx.helper.make_node("Reshape", [source, f"{inner}/shape"], [target]))
    elif axis:
        order, (first, to) = list(range(signal.rank)), (0, axis) if entering else (axis, 0)
        order.insert(to, order.pop(first))
        graph.node.append(onnx.helper.make_node("Transpose", [source], [target], perm=order))
    if not entering:
        value.name = as_float(graph, outer, kind, entering)
