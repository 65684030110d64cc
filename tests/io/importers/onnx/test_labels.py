"""Classifiers as skl2onnx writes them: a dictionary for each row, and labels that are numbers or texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("onnxruntime", reason="computes classifiers")
import onnx
import onnxruntime
from onnx import TensorProto, helper

from sparsenn import ForeignLayer, Session, from_onnx, read_model
from sparsenn.errors import InputError
from sparsenn.io.importers.onnx.labels import labels_of

pytestmark = pytest.mark.usefixtures("foreign_layers")

ROWS = np.random.default_rng(2).normal(size=(7, 4)).astype(np.float32)


def classifier(labels: list[Any], zips: bool = True, outputs: tuple[str, ...] = ("label", "shares")) -> Any:
    """A linear classifier of three classes; `outputs` are those of the graph."""
    is_text = isinstance(labels[0], str)
    kind = "classlabels_strings" if is_text else "classlabels_ints"
    coefficients = np.random.default_rng(1).normal(size=15).tolist()
    scores = "scores" if zips else "shares"
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["x"],
            ["label", scores],
            domain="ai.onnx.ml",
            coefficients=coefficients[:12],
            intercepts=coefficients[12:],
            post_transform="SOFTMAX",
            **{kind: labels},
        )
    ]
    shares = helper.make_tensor_value_info("shares", TensorProto.FLOAT, ["n", 3])
    if zips:
        key = TensorProto.STRING if is_text else TensorProto.INT64
        own = {"classlabels_strings" if is_text else "classlabels_int64s": labels}
        nodes.append(helper.make_node("ZipMap", ["scores"], ["shares"], domain="ai.onnx.ml", **own))
        number = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
        mapped = helper.make_sequence_type_proto(helper.make_map_type_proto(key, number))
        shares = helper.make_value_info("shares", mapped)
    label = helper.make_tensor_value_info("label", TensorProto.STRING if is_text else TensorProto.INT64, ["n"])
    described = {"label": label, "shares": shares}
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    made = helper.make_graph(nodes, "g", [x], [described[name] for name in outputs])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=8)


def expected(labels: list[Any]) -> list[NDArray[Any]]:
    session = onnxruntime.InferenceSession(classifier(labels, zips=False).SerializeToString())
    return [np.asarray(each) for each in session.run(["label", "shares"], {"x": ROWS})]


@pytest.mark.parametrize("zips", [True, False])
def test_labels_that_are_numbers_are_an_output(zips: bool) -> None:
    found = Session(from_onnx(classifier([3, 5, 9], zips)), device="cpu")(ROWS)
    label, shares = expected([3, 5, 9])
    np.testing.assert_array_equal(found["label"], label)
    np.testing.assert_allclose(found["shares"], shares, rtol=1e-6)


@pytest.mark.parametrize("zips", [True, False])
def test_labels_that_are_texts_are_names_of_classes(zips: bool, tmp_path: Path) -> None:
    names = ["adze", "bolt", "cleat"]
    onnx.save(classifier(names, zips), tmp_path / "model.onnx")
    model = read_model(tmp_path / "model.onnx")
    assert (model.classes, model.class_names) == (True, tuple(names))
    found, (label, shares) = Session(model, device="cpu")(ROWS), expected(names)
    np.testing.assert_allclose(found, shares, rtol=1e-6)
    np.testing.assert_array_equal(np.array(names)[found.argmax(axis=1)], label)


def test_a_map_alone_is_its_numbers() -> None:
    network = from_onnx(classifier([0, 1, 2], outputs=("shares",)))
    assert [type(layer) for layer in network] == [ForeignLayer]
    np.testing.assert_allclose(Session(network, device="cpu")(ROWS), expected([0, 1, 2])[1], rtol=1e-6)


@pytest.mark.parametrize("damaged", [{}, {"type": onnx.AttributeProto.INT, "i": 3}], ids=["empty", "one number"])
def test_labels_that_are_no_list_are_none(damaged: dict[str, int]) -> None:
    node = helper.make_node("LinearClassifier", ["x"], ["label"], domain="ai.onnx.ml")
    node.attribute.add(name="classlabels_ints", **damaged)
    assert labels_of(node, {}) == ()


def test_texts_alone_are_refused() -> None:
    with pytest.raises(InputError, match="LinearClassifier"):
        from_onnx(classifier(["a", "b", "c"], outputs=("label",)))
