"""Operators whose form changed between opsets, in each form: networks compute what ONNX Runtime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_graphs import helper, model, node, normal

from sparsenn import Session, from_onnx
from sparsenn.errors import SparseNNError

runtime = pytest.importorskip("onnxruntime", reason="says what is expected")

OPSETS = (7, 8, 9, 10, 11, 12, 13, 14, 15, 18, 19, 21, 22)
"""Those that changed one of the operators below, and the first and last of those tested."""

NUMBERS: dict[str, Any] = {
    "low": np.float32(0), "high": np.float32(0.5), "axes": np.array([1]), "pixels": np.array([2, 3]),
    "ratio": np.float32(0.9), "off": np.array(False), "on": np.array(True), "W": normal(5, 3), "b": normal(3),
    "scale": np.float32([1, 2, 3]), "shift": np.float32([1, 0, -1]), "mean": np.float32([0.5, 0, 2]),
    "variance": np.float32([1, 4, 9]), "shape": np.array([0, 2, 3]), "pads": np.array([0, 0, 1, 0, 0, 0, 0, 2]),
    "rows": np.array([0, 1, 0, 1]), "channels": np.array([0, 1, 0, 0, 0, 0, 0, 0]),
}  # fmt: skip
VECTOR, MATRIX, IMAGE = ("n", 5), ("n", 2, 3), ("n", 3, 7, 7)
WINDOWS: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2]}


def normalised(**attributes: Any) -> Any:
    return node("BatchNormalization", "x", "scale", "shift", "mean", "variance", **attributes)


def trained() -> Any:
    made = normalised(training_mode=1)
    made.output.extend(["new mean", "new variance"])
    return made


def cast(kind: int) -> list[Any]:
    """Nodes that cast to a type and back."""
    return [
        node("Relu", "x", to="a"),
        helper.make_node("Cast", ["a"], ["c"], to=kind),
        helper.make_node("Cast", ["c"], ["y"], to=1),
    ]


def activated(operator: str, *inputs: str, **attributes: Any) -> list[Any]:
    return [node(operator, *inputs, to="a", **attributes), node("Relu", "a")]


def at(first: int, last: int, size: tuple[Any, ...], *graphs: Any) -> list[Any]:
    """Graphs that opsets have from the first to the last: a node each, or several."""
    return [(first, last, size, each if isinstance(each, list) else [each]) for each in graphs]


COMPUTED = [
    *at(7, 10, VECTOR, node("Clip", "x", min=0.0, max=0.5), node("Clip", "x", min=0.0)),
    *at(11, 22, VECTOR, node("Clip", "x", "low", "high"), node("Clip", "x", "", "high")),
    *at(7, 12, ("n", 1, 5), *(activated(name, "x", axes=[1]) for name in ("Squeeze", "Unsqueeze"))),
    *at(7, 12, ("n", 1, 5), activated("Squeeze", "x")),
    *at(13, 22, ("n", 1, 5), *(activated(name, "x", "axes") for name in ("Squeeze", "Unsqueeze"))),
    *at(7, 11, VECTOR, activated("Dropout", "x", ratio=0.9)),
    *at(12, 22, VECTOR, activated("Dropout", "x"), activated("Dropout", "x", "ratio")),
    *at(12, 22, VECTOR, activated("Dropout", "x", "ratio", "off"), activated("Dropout", "x", "", "off")),
    *at(7, 22, IMAGE, normalised(), normalised(momentum=0.1)),
    *at(7, 8, IMAGE, normalised(spatial=1)),
    *at(14, 22, IMAGE, normalised(training_mode=0)),
    *at(7, 22, VECTOR, node("Gemm", "x", "W", "b")),
    *at(11, 22, VECTOR, node("Gemm", "x", "W")),
    *at(7, 12, MATRIX, node("Softmax", "x"), node("Softmax", "x", axis=1)),
    *at(13, 22, ("n", 6), node("Softmax", "x"), node("Softmax", "x", axis=1)),
    *at(7, 17, IMAGE, *(node("ReduceMean", "x", axes=[2, 3], keepdims=kept) for kept in (0, 1))),
    *at(11, 17, IMAGE, node("ReduceMean", "x", axes=[-1, -2])),
    *at(18, 22, IMAGE, *(node("ReduceMean", "x", "pixels", keepdims=kept) for kept in (0, 1))),
    *at(7, 22, ("n", 6), activated("Reshape", "x", "shape")),
    *at(7, 22, VECTOR, cast(1), cast(10), cast(11)),
    *(case for name in ("MaxPool", "AveragePool") for case in at(7, 22, IMAGE, node(name, "x", **WINDOWS))),
    *(
        case
        for name in ("MaxPool", "AveragePool")
        for case in at(10, 22, IMAGE, node(name, "x", ceil_mode=1, **WINDOWS))
    ),
    *at(7, 22, IMAGE, node("GlobalMaxPool", "x"), node("GlobalAveragePool", "x")),
    *at(7, 22, IMAGE, *(node("AveragePool", "x", **WINDOWS, pads=[1] * 4, count_include_pad=each) for each in (0, 1))),
    *at(7, 10, IMAGE, node("Pad", "x", pads=[0, 0, 1, 0, 0, 0, 0, 2])),
    *at(11, 22, IMAGE, node("Pad", "x", "pads")),
]
"""The first and last opset, the size of the input, and the nodes."""


def refused(reason: str, *case: Any) -> list[Any]:
    return [(reason, each) for each in at(*case)]


REFUSED = [
    *refused("node 1 [(]Clip[)]: .*min", 11, 22, VECTOR, node("Clip", "x", min=0.0)),
    *refused("node 1 [(]Squeeze[)]: ", 13, 22, ("n", 1, 5), node("Squeeze", "x", axes=[1])),
    *refused("node 1 [(]Unsqueeze[)]: ", 13, 22, ("n", 1, 5), node("Unsqueeze", "x", axes=[1])),
    *refused("node 1 [(]Dropout[)]: it drops", 12, 22, VECTOR, node("Dropout", "x", "ratio", "on")),
    *refused("it normalises pixel by pixel", 7, 8, IMAGE, normalised(spatial=0)),
    *refused("it normalises by the batch", 14, 22, IMAGE, trained()),
    *refused("node 1 [(]Gemm[)]: ", 7, 10, VECTOR, node("Gemm", "x", "W")),
    *refused("node 1 [(]Softmax", 7, 12, MATRIX, *(node("Softmax", "x", axis=axis) for axis in (0, 2))),
    *refused("node 1 [(]Softmax", 13, 22, MATRIX, *(node("Softmax", "x", axis=axis) for axis in (-1, 0, 1))),
    *refused("node 1 [(]ReduceMean", 18, 22, IMAGE, node("ReduceMean", "x", axes=[2, 3])),
    *refused("node 1 [(]ReduceMean", 18, 22, IMAGE, node("ReduceMean", "x", noop_with_empty_axes=1)),
    *refused("allowzero", 7, 13, ("n", 6), node("Reshape", "x", "shape", allowzero=1)),
    *refused("without numbers", 14, 22, ("n", 6), node("Reshape", "x", "shape", allowzero=1)),
    *refused("node 2 [(]Cast[)]: ", 7, 22, VECTOR, cast(6)),
    *refused("ceil_mode", 7, 9, IMAGE, node("MaxPool", "x", ceil_mode=1, **WINDOWS)),
    *refused("node 1 [(]MaxPool", 7, 22, IMAGE, node("MaxPool", "x", dilations=[2, 2], **WINDOWS)),
    *refused("takes images", 11, 22, VECTOR, node("Pad", "x", "rows")),
    *refused("along rows or channels", 11, 22, IMAGE, node("Pad", "x", "channels")),
    *refused("mode edge", 11, 22, IMAGE, node("Pad", "x", "pads", mode="edge")),
    *refused("7", 6, 6, VECTOR, node("Relu", "x")),
]


def protos(case: Any) -> Any:
    """Yield a case's graph at each of its opsets."""
    first, last, size, nodes = case
    read = {name: NUMBERS[name] for each in nodes for name in each.input if name in NUMBERS}
    for opset in (each for each in (6, *OPSETS) if first <= each <= last):
        yield model(nodes, size, opset, **read)


@pytest.mark.parametrize("case", COMPUTED, ids=lambda case: f"{case[3][0].op_type} from {case[0]} to {case[1]}")
def test_networks_compute_what_onnx_runtime_does(case: Any) -> None:
    rows = normal(4, *case[2][1:])
    for proto in protos(case):
        (want,) = runtime.InferenceSession(proto.SerializeToString()).run(None, {"x": rows})
        found = Session(from_onnx(proto), device="cpu")(rows.reshape(4, -1))
        np.testing.assert_allclose(found, want.reshape(4, -1), rtol=1e-3, atol=1e-3)  # halves are not rounded


@pytest.mark.parametrize(("reason", "case"), REFUSED, ids=lambda part: part if isinstance(part, str) else "")
def test_other_forms_are_refused(reason: str, case: Any) -> None:
    for proto in protos(case):
        with pytest.raises(SparseNNError, match=reason):
            from_onnx(proto)
