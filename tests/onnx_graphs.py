"""Small ONNX graphs, and what the onnx package's own reference makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from sparsenn import Network, Session, from_onnx
from sparsenn.layers import ForeignGraph
from sparsenn.model import with_onnx_graph
from sparsenn.structure.onnx_graph import export_graph

Array = npt.NDArray[Any]


def with_graph(network: Network) -> Network:
    """Return a network with a graph of its layers, as if it were imported from it."""
    inputs = network.named_inputs or {"input": network.shapes[0]}
    outputs = network.named_outputs or {"output": network.shapes[-1]}
    graph = ForeignGraph(export_graph(network, sparse=False).SerializeToString(), inputs, outputs)
    return with_onnx_graph(network, graph)


RNG = np.random.default_rng(15)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def node(operator: str, *inputs: str, to: str = "y", domain: str = "", **attributes: Any) -> Any:
    return helper.make_node(operator, inputs, [to], domain=domain, **attributes)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def chain(*steps: Any, x: str = "x", to: str = "y") -> list[Any]:
    """Nodes of which each takes what the one before it gives, the first of them `x`, and the last gives `to`.

    A step is an operator and its other inputs, with `_` for what the node before it gives unless that comes first; or
    a pair of these and the attributes.
    """
    nodes: list[Any] = []
    for number, step in enumerate(steps, start=1):
        words, attributes = (step, {}) if isinstance(step, str) else step
        operator, *inputs = words.split()
        taken = [x if name == "_" else name for name in (inputs if "_" in inputs else ["_", *inputs])]
        x = to if number == len(steps) else f"{to}{number}"
        nodes.append(helper.make_node(operator, taken, [x], **attributes))
    return nodes


def cast(to: Any) -> tuple[str, dict[str, Any]]:
    """A step that casts to a type of NumPy."""
    return "Cast", {"to": helper.np_dtype_to_tensor_dtype(np.dtype(to))}


def typed(proto: Any, **kinds: int) -> Any:
    """A graph whose inputs and outputs have other types."""
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = kinds.get(value.name, value.type.tensor_type.elem_type)
    return proto


def model(
    nodes: Sequence[Any],
    size: Sequence[int | str | None] | Mapping[str, Sequence[int | str | None]],
    opset: int = 17,
    outputs: Sequence[str] = ("y",),
    dtype: Any = np.float32,
    ml: bool = False,
    **constants: Array,
) -> Any:
    """A graph from `x`, of that shape, or from inputs of these shapes, to `y`, with these initialisers."""
    sizes = size if isinstance(size, Mapping) else {"x": size}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, kind, each) for name, each in sizes.items()],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid("ai.onnx.ml", 1)] if ml else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def expected(proto: Any, x: Array, output: int = 0) -> Array:
    found: Array = np.asarray(ReferenceEvaluator(proto).run(None, {proto.graph.input[0].name: x})[output])
    return found


def check(proto: Any, x: Array, axis: int | None = 0, tolerance: float = 2e-5) -> Network:
    """Have a graph give what the reference gives; `axis` is that of rows, in the input and in the output."""
    network = from_onnx(proto)
    rows = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1) if axis is not None else x.reshape(1, -1)
    want = expected(proto, x)
    want = np.moveaxis(want, axis, 0).reshape(x.shape[axis], -1) if axis is not None else want.reshape(1, -1)
    found = Session(network, device="cpu")(rows.astype(np.float32))
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(want).max())))
    return network
