"""ONNX graphs of networks: no node undoes another one, and the numbers are those of the layers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

pytest.importorskip("onnx", reason="holds the graphs")
pytest.importorskip("onnxruntime", reason="computes them")

import onnx
import onnxruntime

from sparsenn import Session
from sparsenn.backends.foreign import ForeignNetwork
from sparsenn.errors import UsageError
from sparsenn.layers import (
    Concatenate,
    Conv2d,
    Flatten,
    ForeignLayer,
    Identity,
    Linear,
    PerPosition,
    ReLU,
    RowTensor,
    Slice,
    SparseLinear,
    Tanh,
)
from sparsenn.network import Network, Node
from sparsenn.structure import onnx_graph
from sparsenn.structure.onnx_graph import export_graph, with_own_graph


def foreign(
    operators: list[tuple[str, list[str], list[str], dict[str, Any]]], takes: Any, gives: Any, **constants: list[int]
) -> ForeignLayer:
    """Return a layer of operators; inputs are called a, b, ..., outputs z, y, ..., each of a shape and axis of rows."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT

    def values(names: str, tensors: Any) -> list[Any]:
        shapes = [[*shape[:axis], "rows", *shape[axis:]] for shape, axis in tensors]
        return [helper.make_tensor_value_info(name, kind, shape) for name, shape in zip(names, shapes, strict=False)]

    nodes = [helper.make_node(name, reads, makes, **attributes) for name, reads, makes, attributes in operators]
    tensors = [onnx.numpy_helper.from_array(np.array(each, np.int64), name) for name, each in constants.items()]
    graph = helper.make_graph(nodes, "g", values("ab", takes), values("zy", gives), tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    described = ([RowTensor(shape, axis) for shape, axis in each] for each in (takes, gives))
    return ForeignLayer(model.SerializeToString(), *map(tuple, described))


def linear(rng: np.random.Generator, inputs: int, outputs: int) -> Linear:
    return Linear(rng.random((inputs, outputs), np.float32), None, Identity())


def operators_of(network: Network) -> Counter[str]:
    """Return how many nodes of each operator a graph has, once its outputs are those of the layers."""
    graph = export_graph(network, sparse=False)
    onnx.checker.check_model(graph, full_check=True)
    rng = np.random.default_rng(0)
    shapes = network.named_inputs or {"input": network.shapes[0]}
    inputs = {name: rng.standard_normal((5, *shape)).astype(np.float32) for name, shape in shapes.items()}
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    found = np.concatenate([each.reshape(5, -1) for each in session.run(None, inputs)], axis=1)
    rows = np.concatenate([each.reshape(5, -1) for each in inputs.values()], axis=1)
    np.testing.assert_allclose(found, Session(network, device="reference")(rows, form="dense"), rtol=1e-5, atol=1e-5)
    initialisers = Counter(tensor.name for tensor in graph.graph.initializer)
    assert set(initialisers.values()) <= {1}
    assert set(initialisers) <= {name for node in graph.graph.node for name in node.input}
    return Counter(node.op_type for node in graph.graph.node if node.op_type != "Identity")


def test_positions_stay_apart_between_layers_that_share_them(rng: np.random.Generator) -> None:
    first, last = (PerPosition(linear(rng, *shape), 3) for shape in ((4, 6), (6, 2)))
    between = foreign([("Tanh", ["a"], ["z"], {})], [((3, 6), 0)], [((3, 6), 0)])
    assert operators_of(Network([first, between, last])) == {"Reshape": 2, "MatMul": 2, "Tanh": 1}


def test_outputs_of_a_foreign_layer_reach_their_readers_directly(rng: np.random.Generator) -> None:
    halves = [((2, 3), 0), ((1, 3), 0)]
    split = foreign([("Tanh", ["a"], ["z"], {}), ("Exp", ["b"], ["y"], {})], halves, halves)
    nodes = [
        Node(Slice(0, 6), (0,)),
        Node(Slice(6, 9), (0,)),
        Node(split, (1, 2)),
        Node(Slice(0, 6), (3,)),
        Node(linear(rng, 6, 4), (4,)),
        Node(Slice(6, 9), (3,)),
        Node(Concatenate(), (5, 6)),
    ]
    names = {"named_inputs": {"p": (2, 3), "q": (1, 3)}, "named_outputs": {"r": (4,), "s": (3,)}}
    assert operators_of(Network(nodes, **names)) == {"Tanh": 1, "Exp": 1, "Reshape": 2, "Gemm": 1}


def test_a_selection_is_a_slice_before_numbers_move(rng: np.random.Generator) -> None:
    series = foreign([("Transpose", ["a"], ["z"], {"perm": [1, 0, 2]})], [((4, 3), 0)], [((4, 3), 1)])
    last = SparseLinear.from_scipy(sp.csc_array(np.eye(12, dtype=np.float32)[:, 9:]), None, Tanh())
    found = operators_of(Network([series, last, linear(rng, 3, 2)]))
    assert found == {"Reshape": 2, "Transpose": 1, "Slice": 1, "Tanh": 1, "Gemm": 1}
    two = SparseLinear.from_scipy(sp.csc_array(np.eye(12, dtype=np.float32)[:, 6:]), None, Identity())
    assert operators_of(Network([series, two])) == {"Reshape": 2, "Transpose": 2, "Slice": 1}


def test_rows_beside_axes_of_size_1_are_not_transposed() -> None:
    apart = foreign([("Unsqueeze", ["a", "axes"], ["z"], {})], [((3,), 0)], [((1, 3), 1)], axes=[0])
    nodes = [Node(apart, (0,)), Node(PerPosition(Linear(np.ones((1, 1))), 3), (1,)), Node(Concatenate(), (1, 2))]
    assert operators_of(Network(nodes))["Transpose"] == 0


@pytest.mark.parametrize(
    ("value", "bias", "operators"),
    [(1.0, None, ["Gather"]), (2.0, None, ["Gather", "Mul"]), (1.0, 0.5, ["Gather", "Add"])],
)
def test_a_selection_of_scattered_inputs(value: float, bias: float | None, operators: list[str]) -> None:
    weights = sp.csc_array(value * np.eye(12, dtype=np.float32)[:, [7, 2, 2, 11]])
    assert operators_of(Network([SparseLinear.from_scipy(weights, bias, Identity())])) == dict.fromkeys(operators, 1)


def test_outputs_without_weights_are_multiplied_by_zero() -> None:
    weights = sp.csc_array(np.array([[0, 0, 3], [0, 0, 0], [2, 0, 0]], np.float32))
    found = operators_of(Network([SparseLinear.from_scipy(weights, [0.5, 1.5, 2.5], Identity())]))
    assert found == {"Gather": 1, "Mul": 1, "Add": 1}


def test_slices_of_images_and_of_parts_of_outputs(rng: np.random.Generator) -> None:
    twice = foreign([("Tanh", ["a"], ["z"], {}), ("Exp", ["a"], ["y"], {})], [((4, 2, 2), 0)], [((4, 2, 2), 0)] * 2)
    nodes = [
        Node(twice, (0,)),
        Node(Slice(4, 24), (1,)),  # of both outputs
        Node(Slice(2, 7), (1,)),  # of no whole number of channels
        Node(Slice(8, 16, (2, 2, 2)), (1,)),
        Node(Slice(1, 2), (4,)),
        Node(Flatten(), (5,)),
        Node(Concatenate(), (2, 3, 6)),
    ]
    operators_of(Network(nodes))


def test_layers_read_a_value_in_two_shapes(rng: np.random.Generator) -> None:
    nodes = [
        Node(PerPosition(Linear(rng.random((4, 4), np.float32), None, ReLU()), 3), (0,)),
        Node(linear(rng, 12, 4), (1,)),
        Node(PerPosition(linear(rng, 4, 1), 3), (1,)),
        Node(Concatenate(), (2, 3)),
    ]
    assert operators_of(Network(nodes))["Reshape"] == 3


def test_weights_that_no_file_holds_with_their_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [SparseLinear.from_scipy(sp.random(size, 20, 0.3, "csc", np.float32, 0)) for size in (30, 20)]
    network = Network(tuple(layers))
    monkeypatch.setattr("sparsenn.structure.onnx_graph.MOST_BYTES", 4 * (30 * 20 + 20 * 20) - 1)
    with pytest.raises(UsageError, match=r"layer 2, of 20 × 20 weights.*--sparse"):
        export_graph(network, sparse=False)
    assert len(export_graph(network, sparse=True).graph.sparse_initializer) == 2
    monkeypatch.undo()
    assert len(export_graph(network, sparse=False).graph.initializer) == 2


def test_networks_with_convolutions_get_a_graph(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = Conv2d(rng.normal(size=(3, 2, 2, 2))), Flatten(), Linear(rng.normal(size=(36, 4)), None, Identity())
    network, rows = Network(layers, image=(2, 4, 5)), rng.normal(size=(3, 40)).astype(np.float32)
    found = with_own_graph(network)
    assert found.onnx_graph is not None
    known = Session(network, device="reference")(rows)
    np.testing.assert_allclose(ForeignNetwork(found.onnx_graph).run(rows), known, rtol=1e-5, atol=1e-5)
    for device in "cpu", "reference":
        np.testing.assert_allclose(Session(found, device=device)(rows), known, rtol=1e-5, atol=1e-5)
    assert with_own_graph(Network(layers[2:])).onnx_graph is None
    monkeypatch.setattr(onnx_graph, "MOST_GRAPH_BYTES", 10)
    assert with_own_graph(network).onnx_graph is None
