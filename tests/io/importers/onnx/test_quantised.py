"""Quantised files, with QuantizeLinear and DequantizeLinear around weights and what goes through the graph."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("onnxruntime", reason="computes quantised values")
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from sparsenn import Conv2d, ForeignLayer, Linear, Session, SparseLinear, from_onnx, read_model
from sparsenn.backends.foreign import ForeignNetwork
from sparsenn.errors import InputError

node = helper.make_node
Array = npt.NDArray[Any]

STEP = 0.05
"""Of what goes through the graphs."""


class Quantised:
    """A graph whose weights, and values between layers, are quantised."""

    def __init__(self, kind: int = TensorProto.INT8, opset: int = 21) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._kind, self._opset = kind, opset
        self._rng = np.random.default_rng(7)

    def constant(self, name: str, values: Any, kind: int) -> str:
        array = np.asarray(values)
        tensor = helper.make_tensor(name, kind, array.shape, array.ravel().tolist())
        self.constants.append(tensor)
        return name

    def weights(self, name: str, *shape: int, density: float, axis: int | None = None, **options: Any) -> str:
        """Add quantised weights, of which some are zero, and what dequantises them, with a scale for each channel."""
        least, most = (-7, 8) if self._kind == TensorProto.INT4 else (-100, 101)
        zero = 9 if self._kind == TensorProto.UINT8 else 0
        numbers = self._rng.integers(least, most, shape) * (self._rng.random(shape) < density) + zero
        channels = () if axis is None else (shape[axis],)
        self.constant(f"{name}_q", numbers.clip(0 if zero else None), self._kind)
        self.constant(f"{name}_s", self._rng.uniform(0.5, 1.5, channels) / most / np.sqrt(shape[0]), TensorProto.FLOAT)
        self.constant(f"{name}_z", np.full(channels, zero), self._kind)
        options |= {} if axis is None else {"axis": axis}
        self.nodes.append(node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [name], **options))
        return name

    def bias(self, name: str, width: int) -> str:
        self.constant(f"{name}_q", self._rng.integers(-500, 500, width), TensorProto.INT32)
        self.constant(f"{name}_s", 0.001, TensorProto.FLOAT)
        self.nodes.append(node("DequantizeLinear", [f"{name}_q", f"{name}_s"], [name]))
        return name

    def rounded(self, source: str) -> str:
        """Add nodes that round a value to steps."""
        scale = self.constant(f"{source}_s", STEP, TensorProto.FLOAT)
        zero = self.constant(f"{source}_z", 100, TensorProto.UINT8)
        self.nodes.append(node("QuantizeLinear", [source, scale, zero], [f"{source}_q"]))
        self.nodes.append(node("DequantizeLinear", [f"{source}_q", scale, zero], [f"{source}_r"]))
        return f"{source}_r"

    def add(self, operator: str, *inputs: str, to: str, **attributes: Any) -> str:
        self.nodes.append(node(operator, inputs, [to], **attributes))
        return to

    def model(self, *shape: int) -> Any:
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *shape])]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)], ir_version=10)


def perceptron(kind: int = TensorProto.INT8, axis: int | None = None, density: float = 0.2, rounds: bool = True) -> Any:
    made = Quantised(kind)
    value = made.rounded("x") if rounds else "x"
    first = made.weights("w1", 30, 40, density=density, axis=axis)
    value = made.add("Relu", made.add("Gemm", value, first, made.bias("b1", 40), to="h"), to="a")
    value = made.rounded(value) if rounds else value
    made.add("MatMul", value, made.weights("w2", 40, 5, density=density, axis=axis), to="y")
    return made.model(30)


def convolutions() -> Any:
    made = Quantised()
    filters = made.weights("w1", 8, 3, 3, 3, density=0.2, axis=0)
    value = made.add("Conv", made.rounded("x"), filters, made.bias("b1", 8), to="h", pads=[1] * 4)
    value = made.rounded(made.add("Relu", value, to="a"))
    value = made.add("Flatten", made.add("GlobalAveragePool", value, to="p"), to="f")
    made.add("Gemm", value, made.weights("w2", 5, 8, density=0.3, axis=0), to="y", transB=1)
    return made.model(3, 6, 6)


def compare(proto: Any, rows: Array, tolerance: float) -> Any:
    """Have a graph give what ONNX Runtime gives, node by node: it rounds more where it fuses products of 4 bits."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    peer = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (want,) = peer.run(None, {"x": rows})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a step of quantisation is no rounding of float32
        network = from_onnx(proto)
    assert not network.needs_float64
    np.testing.assert_allclose(Session(network, device="cpu")(rows), want, rtol=0, atol=tolerance)
    return network


def rows(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal((9, *shape)).astype(np.float32)


KINDS = pytest.mark.parametrize("kind", [TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4])


@KINDS
def test_onnx_runtime_multiplies_by_dequantised_weights_in_float32(kind: int) -> None:
    made = Quantised(kind)
    made.add("MatMul", "x", made.weights("w", 64, 32, density=0.5), to="y")
    network, samples = from_onnx(made.model(64)), rows(64)
    assert network.onnx_graph is not None
    expected = samples @ network.layers[0].weights.to_scipy().toarray()
    np.testing.assert_allclose(ForeignNetwork(network.onnx_graph).run(samples), expected, rtol=0, atol=1e-5)


@KINDS
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_quantised_weights_become_sparse_layers(kind: int, axis: int | None) -> None:
    network = compare(perceptron(kind, axis, rounds=False), rows(30), 1e-5)
    assert [type(layer) for layer in network] == [SparseLinear, SparseLinear]
    assert network.nonzeros < 0.3 * (30 * 40 + 40 * 5)


@KINDS
@pytest.mark.usefixtures("foreign_layers")
def test_values_that_are_quantised_stay_with_onnx_runtime(kind: int) -> None:
    network = compare(perceptron(kind), rows(30), STEP)
    assert [type(layer) for layer in network] == [ForeignLayer, SparseLinear] * 2


@pytest.mark.usefixtures("foreign_layers")
def test_quantised_convolutions() -> None:
    network = compare(convolutions(), rows(3, 6, 6), STEP)
    assert Conv2d in [type(layer) for layer in network]


@pytest.mark.usefixtures("foreign_layers")
def test_dense_graphs_stay_whole() -> None:
    network = compare(perceptron(density=1.0), rows(30), STEP)
    assert [type(layer) for layer in network] == [ForeignLayer]


def test_weights_that_are_quantised_and_dequantised_at_once() -> None:
    """As training with rounded weights leaves them."""
    made = Quantised()
    made.constants.append(numpy_helper.from_array(np.random.default_rng(2).standard_normal((5, 30), np.float32), "w"))
    made.add("Gemm", "x", made.rounded("w"), to="y", transB=1)
    assert [type(layer) for layer in compare(made.model(30), rows(30), 1e-5)] == [Linear]


def test_weights_by_blocks() -> None:
    made = Quantised()
    made.constant("w_q", np.arange(-60, 60).reshape(30, 4), TensorProto.INT8)
    made.constant("w_s", np.linspace(0.01, 0.02, 12).reshape(3, 4), TensorProto.FLOAT)
    made.add("DequantizeLinear", "w_q", "w_s", to="w", axis=0, block_size=10)
    made.add("MatMul", "x", "w", to="y")
    compare(made.model(30), rows(30), 1e-4)


@pytest.mark.usefixtures("foreign_layers")
def test_a_model_says_which_weights_were_quantised(tmp_path: Path) -> None:
    for name, proto, notes in (
        ("weights", perceptron(rounds=False), "3 tensors, dequantised to float32"),
        ("both", perceptron(), "3 tensors, dequantised to float32"),
        ("dense", perceptron(density=1.0), None),
    ):
        onnx.save(proto, tmp_path / f"{name}.onnx")
        assert read_model(tmp_path / f"{name}.onnx").provenance.get("quantised weights") == notes


def test_quantised_values_are_refused_without_foreign_layers() -> None:
    with pytest.raises(InputError, match=r"QuantizeLinear.*arithmetic with quantised values"):
        from_onnx(perceptron(), foreign=False)
