"""Whole networks in ONNX Runtime, in place of all kernels: where a network allows it, and a session has measured it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sparsenn.backends.foreign import ONNX_RUNTIME, ForeignNetwork
from sparsenn.backends.sizes import FLOAT_BYTES
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.options import PRECISIONS
from sparsenn.engine.steps import Step
from sparsenn.errors import InputError, SparseNNError
from sparsenn.layers import ForeignLayer, FullyConnected, RowTensor, SparseLinear, connected_layer
from sparsenn.network import Network
from sparsenn.printable import reason_of
from sparsenn.structure.onnx_graph import export_graph, selected_inputs

__all__ = ["foreign_network", "may_run_whole", "onnx_runtime_version", "whole_step"]

MAX_WHOLE_BYTES = 1 << 30
"""Bytes of weights, with their zeros: a protobuf holds less than 2 GiB, and several copies exist for a moment."""

LEAST_DENSITY = 1 / 64
"""Share of weights that are stored, below which a product with all zeros is never the fastest."""


def may_run_whole(compiled: CompiledNetwork, form: str) -> bool:
    """Return whether ONNX Runtime may run all layers for rows of a form, if that is measured to be faster."""
    options, network = compiled.options, compiled.merged.network
    permitted = compiled.network.allows_onnx_runtime and compiled.measures and not compiled.in_order
    plain = form == "dense" and options.kernel == "auto" and options.precision == PRECISIONS[0]
    if not (permitted and plain and compiled.backend.device == ONNX_RUNTIME.device and onnx_runtime_version()):
        return False
    if any(isinstance(layer, ForeignLayer) and layer.row_by_row for layer in network):
        return False
    stored = sum(layer.weight_bytes for layer in network)
    places = sum(map(_bytes_there, network))
    return places <= MAX_WHOLE_BYTES and stored >= LEAST_DENSITY * places


def _bytes_there(layer: Any) -> int:
    """Return the bytes of a layer's weights in ONNX Runtime: with their zeros, but for layers that select inputs."""
    own = connected_layer(layer)
    selects = isinstance(own, SparseLinear) and selected_inputs(own) is not None
    is_dense = isinstance(own, FullyConnected) and not selects
    return FLOAT_BYTES * own.inputs * own.outputs if is_dense else int(layer.weight_bytes)


def whole_step(network: Network) -> Step:
    """Return the step that takes rows through all layers of a network."""
    return Step(0, len(network), ONNX_RUNTIME)


def foreign_network(network: Network) -> ForeignNetwork:
    """Return a network as ONNX Runtime computes it.

    Raises
    ------
    InputError, UsageError
        ONNX has no operator for a layer, or ONNX Runtime does not take the graph.
    """
    if network.named_inputs is None:
        network = replace(network, named_inputs={"input": _shape_of_rows(network)})
    graph = export_graph(network, sparse=False)
    inputs, outputs = (
        {value.name: tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim[1:]) for value in values}
        for values in (graph.graph.input, graph.graph.output)
    )
    try:
        return ForeignNetwork(graph.SerializeToString(), inputs, outputs)
    except SparseNNError:
        raise
    except Exception as error:  # of whatever kinds that ONNX Runtime raises
        raise InputError(f"ONNX Runtime does not take the network: {reason_of(error)}") from error


def _shape_of_rows(network: Network) -> tuple[int, ...]:
    """Return the shape that the first layers give each row, where all give it the same."""
    shapes = set()
    for number in network.consumers[0]:
        layer, sources = network[number - 1], network.nodes[number - 1].sources
        takes = layer.takes if isinstance(layer, ForeignLayer) else [RowTensor(network.shapes[0])] * len(sources)
        shapes |= {tensor.shape for tensor, source in zip(takes, sources, strict=True) if source == 0}
    return shapes.pop() if len(shapes) == 1 else network.shapes[0]


@cache
def onnx_runtime_version() -> str:
    """Return the version of the package onnxruntime; an empty text where it is not installed."""
    try:
        return version("onnxruntime")
    except PackageNotFoundError:
        return ""
