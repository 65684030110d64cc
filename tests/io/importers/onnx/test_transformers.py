"""Blocks of transformers with few weights: what is fully connected along the last axis becomes layers here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="computes attention")
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from sparsenn import Model, Network, Session, from_onnx, read_model, to_onnx, write_model
from sparsenn.formats import Array
from sparsenn.layers import Add, ForeignLayer, LayerNorm, PerPosition, SparseLinear
from sparsenn.layers.activation import GELU

pytestmark = pytest.mark.usefixtures("foreign_layers")

LENGTH, WIDTH, HEADS = 10, 32, 4
DENSITY = 0.2


class Block:
    """A block in nodes of ONNX: attention, and a fully connected network with a GELU, each with a residual.

    Parameters
    ----------
    normalises_last : whether sums are normalised, as in BERT, or what is added, as in ViT.
    """

    def __init__(self, normalises_last: bool) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.shape("heads", 0, 0, HEADS, WIDTH // HEADS)
        self.shape("whole", 0, 0, WIDTH)
        self.constant("scale", np.float32((WIDTH // HEADS) ** -0.5))
        source = "x"
        attended = self.attention(source if normalises_last else self.normalised(source, "n1"))
        first = self.node("Add", source, attended)
        first = self.normalised(first, "n1") if normalises_last else first
        hidden = self.node(
            "Gelu", self.linear(first if normalises_last else self.normalised(first, "n2"), "up", 4 * WIDTH)
        )
        last = self.node("Add", first, self.linear(hidden, "down", WIDTH, 4 * WIDTH))
        self.node("Identity", self.normalised(last, "n2") if normalises_last else last, name="y")

    def model(self) -> Any:
        described = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", LENGTH, WIDTH]) for name in ("x", "y")
        ]
        made = helper.make_graph(self.nodes, "block", described[:1], described[1:], self.constants)
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        onnx.checker.check_model(model)
        return model

    def constant(self, name: str, values: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def shape(self, name: str, *sizes: int) -> str:
        return self.constant(name, np.array(sizes, np.int64))

    def vector(self, name: str, size: int, mean: float = 0.0) -> str:
        return self.constant(name, (mean + 0.1 * self.rng.normal(size=size)).astype(np.float32))

    def node(self, operator: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        name = name or f"{operator}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def linear(self, source: str, name: str, outputs: int, inputs: int = WIDTH) -> str:
        weights = self.rng.normal(size=(inputs, outputs)) * (self.rng.random((inputs, outputs)) < DENSITY)
        weights = self.constant(f"{name}/weights", (weights / np.sqrt(DENSITY * inputs)).astype(np.float32))
        return self.node("Add", self.vector(f"{name}/bias", outputs), self.node("MatMul", source, weights))

    def normalised(self, source: str, name: str) -> str:
        scale, shift = self.vector(f"{name}/scale", WIDTH, 1.0), self.vector(f"{name}/shift", WIDTH)
        return self.node("LayerNormalization", source, scale, shift, axis=-1)

    def attention(self, source: str) -> str:
        def heads(name: str, *perm: int) -> str:
            return self.node("Transpose", self.node("Reshape", self.linear(source, name, WIDTH), "heads"), perm=perm)

        scores = self.node("MatMul", heads("q", 0, 2, 1, 3), heads("k", 0, 2, 3, 1))
        shares = self.node("Softmax", self.node("Mul", scores, "scale"), axis=-1)
        mixed = self.node("Transpose", self.node("MatMul", shares, heads("v", 0, 2, 1, 3)), perm=[0, 2, 1, 3])
        return self.linear(self.node("Reshape", mixed, "whole"), "out", WIDTH)


BLOCKS = {"ViT": Block(normalises_last=False).model(), "BERT": Block(normalises_last=True).model()}


def rows_of(count: int) -> Array:
    rows: Array = np.random.default_rng(count).normal(size=(count, LENGTH, WIDTH)).astype(np.float32)
    return rows


def expected(model: Any, rows: Array) -> Array:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs: Array = session.run(None, {"x": rows})[0]
    return outputs


def shared(network: Network) -> list[PerPosition]:
    return [layer for layer in network if isinstance(layer, PerPosition)]


@pytest.mark.parametrize("name", BLOCKS)
def test_all_that_is_fully_connected_is_here(name: str) -> None:
    network = from_onnx(BLOCKS[name])
    assert [layer.layer.outputs for layer in shared(network)] == [WIDTH] * 4 + [4 * WIDTH, WIDTH]
    assert all(layer.positions == LENGTH and isinstance(layer.layer, SparseLinear) for layer in shared(network))
    assert [layer.activation for layer in shared(network)][4] == GELU()
    (attention,) = [layer for layer in network if isinstance(layer, ForeignLayer)]
    assert attention.operators == ("Transpose", "MatMul", "Mul", "Softmax", "Reshape")
    assert attention.weight_bytes < 4 * WIDTH * WIDTH


@pytest.mark.parametrize("name", BLOCKS)
def test_normalisations_and_residual_sums_are_here(name: str) -> None:
    network = from_onnx(BLOCKS[name])
    norms = [layer for layer in network if isinstance(layer, LayerNorm)]
    assert [(layer.width, layer.positions, round(layer.epsilon, 9)) for layer in norms] == [(WIDTH, LENGTH, 1e-5)] * 2
    assert [type(layer) for layer in network].count(Add) == 2


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize(
    "options",
    [
        *({}, {"kernel": "panel"}, {"batch_size": 3}, {"precision": "float64"}, {"device": "reference"}),
        pytest.param({"device": "cuda"}, marks=pytest.mark.gpu),
    ],
    ids=str,
)
def test_outputs_are_those_of_onnx_runtime(name: str, options: dict[str, Any]) -> None:
    model = BLOCKS[name]
    session = Session(from_onnx(model), **{"device": "cpu"} | options)
    for count in (1, 64):
        want = expected(model, rows_of(count))
        for _ in range(2):
            found = session(rows_of(count))
            np.testing.assert_allclose(found.reshape(want.shape), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", BLOCKS)
def test_files_hold_them(name: str, tmp_path: Path) -> None:
    network, rows = from_onnx(BLOCKS[name]), rows_of(3)
    want = Session(network, device="cpu", kernel="panel")(rows)
    write_model(tmp_path / "model.h5", Model(network=network, loss="mse", classes=False))
    read = read_model(tmp_path / "model.h5").network
    np.testing.assert_array_equal(Session(read, device="cpu", kernel="panel")(rows), want)
    for sparse in (False, True):
        to_onnx(network, tmp_path / "again.onnx", sparse=sparse)
        session = onnxruntime.InferenceSession(str(tmp_path / "again.onnx"), providers=["CPUExecutionProvider"])
        (described,) = session.get_inputs()
        (outputs,) = session.run(None, {described.name: rows.reshape(3, *described.shape[1:])})
        np.testing.assert_allclose(outputs.reshape(want.shape), want, rtol=1e-4, atol=1e-4)
        again = from_onnx(tmp_path / "again.onnx")
        assert [layer.layer.edges for layer in shared(again)] == [layer.layer.edges for layer in shared(network)]


def test_weights_that_are_not_sparse_stay_with_onnx_runtime() -> None:
    network = from_onnx(BLOCKS["ViT"], sparse_below=0.1)
    assert [type(layer) for layer in network] == [ForeignLayer]
