"""Graphs as exporters write them, whose outputs are those of ONNX Runtime, or that are refused as mixing rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="computes what no layer does")
import onnxruntime
from onnx import TensorProto, helper
from onnx_graphs import cast, chain, model, node, normal, typed

from sparsenn import Session, from_onnx
from sparsenn.errors import InputError

pytestmark = pytest.mark.usefixtures("foreign_layers")

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
RNG = np.random.default_rng(62)


def sparse(*shape: int) -> Any:
    return normal(*shape) * (RNG.random(shape) < 0.3)


def several(operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return helper.make_node(operator, inputs, outputs, **attributes)


W, V, FILTERS = sparse(6, 8), sparse(8, 3), sparse(4, 3, 3, 3)
PRODUCT = node("MatMul", "x", "w", to="a")


def masked() -> Any:
    nodes = chain("MatMul w", "Where mask _ low", "Softmax")
    return typed(model(nodes, {"x": ["n", 6], "mask": ["n", 8]}, w=W, low=np.float32(-1e9)), mask=BOOL)


def with_classes(*outputs: str) -> Any:
    nodes = [PRODUCT, node("MatMul", "a", "v", to="b"), node("Softmax", "a", to="p")]
    nodes += [node("ArgMax", "a", to="i", axis=1, keepdims=0), node("ReduceMax", "a", to="m", axes=[1])]
    return typed(model(nodes, ["n", 6], outputs=outputs, w=W, v=V), i=INT64)


def indexed() -> Any:
    pooling = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [node("Conv", "x", "w", to="a"), several("MaxPool", ["a"], ["b", "places"], **pooling)]
    return model([*nodes, node("MaxUnpool", "b", "places", **pooling)], ["n", 3, 6, 6], w=FILTERS)


def dropping() -> Any:
    nodes = [PRODUCT, several("Dropout", ["a"], ["b", "mask"]), node("Relu", "b")]
    return typed(model(nodes, ["n", 6], outputs=["y", "mask"], w=W), mask=BOOL)


def at_opset(opset: int) -> Any:
    return model(chain("Conv w", "Relu", "GlobalAveragePool"), ["n", 3, 6, 6], opset, w=FILTERS)


def of_labels() -> Any:
    """As skl2onnx writes classifiers of texts: of version 1, for no operator but those of scikit-learn's."""
    numbers = {"coefficients": normal(18).tolist(), "intercepts": normal(3).tolist()}
    made = several("LinearClassifier", ["x"], ["label", "y"], classlabels_strings=["a", "b", "c"], **numbers)
    made.domain = "ai.onnx.ml"
    return typed(model([made], ["n", 6], 1, ["label", "y"], ml=True), label=TensorProto.STRING)


def sequence() -> Any:
    nodes = [PRODUCT, node("Sin", "a", to="s"), several("SequenceConstruct", ["a", "s"], ["y"])]
    proto = model(nodes, ["n", 6], w=W)
    tensors = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    proto.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(tensors))
    return proto


def quantised() -> Any:
    nodes = [
        several("DynamicQuantizeLinear", ["x"], ["q", "step", "zero"]),
        *chain("MatMulInteger w zero", cast(np.float32), "Mul step", x="q"),
    ]
    return model(nodes, ["n", 6], w=RNG.integers(-127, 127, (6, 8)).astype(np.int8))


def beside(shape: list[int], kind: int = TensorProto.FLOAT) -> Any:
    """Rows, and an input that is the same for all."""
    nodes = [PRODUCT, *chain(cast(np.float32), "Mul a _", x="t")]
    return typed(model(nodes, {"x": ["n", 6], "t": shape}, w=W), t=kind)


GRAPHS = {
    "a mask of bool": masked(),
    "a class beside other outputs": with_classes("b", "p", "i"),
    "a class of what is no output": with_classes("m", "i"),
    "places of the largest": indexed(),
    "a mask of dropout": dropping(),
    "opset 6": at_opset(6),
    "labels at opset 1": of_labels(),
    "a sequence": sequence(),
    "dynamic quantisation": quantised(),
    "a number beside rows": beside([]),
    "a vector beside rows": beside([1], INT64),
    "a row beside rows": beside([1, 8]),
}


def inputs_of(proto: Any, rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs for ONNX Runtime, and for a session: one that is the same for all rows is in each of them."""
    inputs, of_rows = {}, {}
    for value in proto.graph.input:
        sizes = value.type.tensor_type.shape.dim
        shape, kind = [size.dim_value or rows for size in sizes], value.type.tensor_type.elem_type
        numbers = RNG.normal(size=shape) if kind == TensorProto.FLOAT else RNG.integers(0, 2, shape)
        inputs[value.name] = np.asarray(numbers, helper.tensor_dtype_to_np_dtype(kind))
        is_of_rows = any(size.dim_param for size in sizes)
        of_rows[value.name] = inputs[value.name] if is_of_rows else np.stack([inputs[value.name]] * rows)
    return inputs, of_rows


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("rows", [1, 7])
def test_outputs_are_those_of_onnx_runtime(name: str, rows: int) -> None:
    proto = GRAPHS[name]
    runtime = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs, of_rows = inputs_of(proto, rows)
    wanted = dict(zip((output.name for output in proto.graph.output), runtime.run(None, inputs), strict=True))
    if isinstance(wanted.get("y"), list):
        wanted = dict(zip(("a", "s"), wanted["y"], strict=True))
    numbers = {key: value for key, value in wanted.items() if value.dtype.kind != "O"}
    found = Session(replace(from_onnx(proto)), device="cpu")(of_rows if len(of_rows) > 1 else of_rows["x"])
    named = found if isinstance(found, dict) else {"y": found}
    assert named.keys() == numbers.keys()
    for key, want in numbers.items():
        np.testing.assert_allclose(np.reshape(named[key], (rows, -1)), want.reshape(rows, -1), rtol=1e-4, atol=1e-5)


MIXING = {
    "outputs of training": several("BatchNormalization", ["a", *"smmv"], ["y", "m1", "v1", "m2", "v2"]),
    "a mean beside a number": node("ReduceMean", "a", axes=[0]),
}


@pytest.mark.parametrize("name", MIXING)
def test_rows_that_change_each_other_are_refused(name: str) -> None:
    sizes: Any = {"x": ["n", 6], "t": [1]} if "beside" in name else ["n", 6]
    nodes = [node("MatMul", "x", "w", to="z"), node("Mul", "z", "t" if "beside" in name else "s", to="a"), MIXING[name]]
    numbers = {"s": normal(8), "m": normal(8), "v": normal(8) ** 2}
    with pytest.raises(InputError, match="each row by itself"):
        from_onnx(model(nodes, sizes, 9, w=W, **numbers))
