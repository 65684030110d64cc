"""Graphs of which ONNX Runtime computes some nodes: outputs are its own, cut into as few subgraphs as there can be."""

from __future__ import annotations

import pickle
from collections import namedtuple
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="computes what no layer does")
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import cast, chain, ints, node, normal, typed
from onnx_graphs import model as graph_of

from sparsenn import Model, Network, Session, from_onnx, read_model, to_onnx, write_model
from sparsenn.backends.foreign import ForeignNetwork
from sparsenn.engine.open_sizes import MOST_SIZES
from sparsenn.errors import FileFormatError, InputError, MatrixError, UsageError
from sparsenn.io.importers.onnx import probing
from sparsenn.io.importers.onnx.graph import Walk
from sparsenn.layers import ForeignLayer, RowTensor

pytestmark = pytest.mark.usefixtures("foreign_layers")

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def weights(*shape: int, density: float = 1.0) -> Any:
    rng = np.random.default_rng(sum(shape))
    return (rng.normal(size=shape) / np.sqrt(shape[0]) * (rng.random(shape) < density)).astype(np.float32)


def proto_weights(proto: Any) -> Any:
    return numpy_helper.to_array(next(each for each in proto.graph.initializer if each.name == "w"))


def graph(nodes: list[Any], sizes: Any, outputs: Any = ("y",), **constants: Any) -> Any:
    return typed(graph_of(nodes, sizes, 20, outputs, **constants), ids=INT64)


def normalised() -> Any:
    nodes = chain("MatMul first", ("LpNormalization", {"axis": -1}), "Relu", "MatMul last")
    return graph(nodes, ["n", 20], first=weights(20, 64, density=0.1), last=weights(64, 5, density=0.3))


def recurrent() -> Any:
    nodes = chain(("LSTM inner hidden", {"hidden_size": 8}), "Squeeze axis", "MatMul w")
    nodes[0].output[:] = ["", nodes[0].output[0], ""]
    constants = {"inner": weights(1, 32, 6), "hidden": weights(1, 32, 8), "w": weights(8, 3, density=0.2)}
    return graph(nodes, [5, "n", 6], axis=ints(0), **constants)


def unet() -> Any:
    padded, halved = {"pads": [1] * 4}, {"kernel_shape": [2, 2], "strides": [2, 2]}
    deep = (("MaxPool", halved), ("Conv deep", padded), ("ConvTranspose up", {"strides": [2, 2]}))
    nodes = [
        *chain(("Conv down", padded), "Relu", to="b"),
        *chain(*deep, ("Concat _ b", {"axis": 1}), "Conv out", x="b"),
    ]
    few = {"down": (8, 3, 3, 3), "deep": (16, 8, 3, 3), "out": (2, 16, 1, 1)}
    constants = {name: weights(*shape, density=0.3) for name, shape in few.items()}
    return graph(nodes, ["n", 3, 16, 16], up=weights(16, 8, 2, 2), **constants)


def attention() -> Any:
    width = 32
    nodes = [
        *(node("MatMul", "x", f"w{name}", to=name) for name in "qkv"),
        node("Transpose", "k", to="t", perm=[0, 2, 1]),
        *chain("MatMul t", ("Softmax", {"axis": -1}), "MatMul v", "Add x", x="q", to="r"),
        node("LayerNormalization", "r", "scale", "shift", to="l", axis=-1),
        *chain("MatMul wide", "Gelu", "MatMul narrow", "Add l", x="l"),
    ]
    square = {f"w{name}": weights(width, width, density=0.2) for name in "qkv"}
    wide = {"wide": weights(width, 4 * width, density=0.2), "narrow": weights(4 * width, width, density=0.2)}
    return graph(nodes, ["n", 10, width], scale=weights(width), shift=weights(width), **square, **wide)


def detector() -> Any:
    nodes = [
        node("Conv", "x", "c", to="a", pads=[1] * 4),
        *chain("Sigmoid", "Mul a _", x="a", to="d"),
        node("Resize", "d", "", "scales", to="e"),
        *(node("Conv", value, "boxes", to=name) for value, name in (("e", "y"), ("d", "z"))),
    ]
    constants = {"c": weights(8, 3, 3, 3, density=0.3), "boxes": weights(2, 8, 1, 1, density=0.3)}
    return graph(nodes, [1, 3, 8, 8], ("y", "z"), scales=np.float32([1, 1, 2, 2]), **constants)


def embedded() -> Any:
    steps = (("Gather table _", {"axis": 0}), ("ReduceMean axis", {"keepdims": 0}), ("Concat _ x", {"axis": 1}))
    constants = {"table": weights(50, 7), "w": weights(19, 4, density=0.3), "b": weights(4), "axis": ints(1)}
    return graph(chain(*steps, "Gemm w b", x="ids"), {"ids": ["n", 3], "x": ["n", 12]}, **constants)


def reshaped() -> Any:
    """The number of rows is computed from a tensor of this package's."""
    rows = (("Shape", {"start": 0, "end": 1}), ("Concat _ rest", {"axis": 0}))
    nodes = [
        node("Conv", "x", "c", to="a", pads=[1] * 4),
        *chain(*rows, x="a", to="target"),
        *chain("InstanceNormalization scale shift", "Reshape target", "MatMul w", x="a"),
    ]
    constants = {"c": weights(4, 3, 3, 3, density=0.3), "scale": weights(4), "shift": weights(4), "w": weights(256, 3)}
    return graph(nodes, ["n", 3, 8, 8], rest=ints(-1), **constants)


def branching() -> Any:
    nodes = [node("MatMul", "x", "first", to="a"), *chain("Sin", "MatMul last", x="a")]
    nodes += chain("Erf", "MatMul last", x="a", to="z")
    constants = {"first": weights(20, 64, density=0.1), "last": weights(64, 5, density=0.2)}
    return graph(nodes, ["n", 20], ("y", "z"), **constants)


def gated() -> Any:
    nodes = chain("MatMul first", ("HardSigmoid", {"alpha": -0.2}), "Mul a _", "MatMul last", x="x", to="y")
    nodes[0].output[:] = nodes[1].input[:] = ["a"]
    return graph(nodes, ["n", 20], first=weights(20, 64, density=0.1), last=weights(64, 5, density=0.2))


def largest() -> Any:
    (made,) = chain("TopK k")
    made.output.append("places")
    return graph([made], ["n", 20], k=ints(3))


GRAPHS = {
    made.__name__: made
    for made in (attention, branching, detector, embedded, gated, largest, normalised, recurrent, reshaped, unet)
}


def inputs_of(model: Any, rows: int) -> dict[str, np.ndarray]:
    rng, found = np.random.default_rng(1), {}
    for value in model.graph.input:
        shape = [size.dim_value or rows for size in value.type.tensor_type.shape.dim]
        drawn = rng.integers(0, 50, shape) if value.name == "ids" else rng.normal(size=shape).astype(np.float32)
        found[value.name] = drawn
    return found


def as_rows(model: Any, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Inputs side by side, a row flattened."""
    sides = []
    for value in model.graph.input:
        axis = next((place for place, size in enumerate(value.type.tensor_type.shape.dim) if not size.dim_value), 0)
        array = np.moveaxis(inputs[value.name], axis, 0)
        sides.append(array.reshape(len(array), -1).astype(np.float32))
    return np.concatenate(sides, axis=1)


def numbers_of(outputs: Any) -> np.ndarray:
    named = outputs.values() if isinstance(outputs, dict) else [outputs]
    return np.concatenate([np.asarray(each).reshape(len(each), -1) for each in named], axis=1)


def expected(model: Any, inputs: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.concatenate([each.reshape(len(each), -1) for each in session.run(None, inputs)], axis=1)


def close(found: np.ndarray, want: np.ndarray) -> bool:
    return bool(np.abs(found - want).max() <= 1e-5 * max(1.0, np.abs(want).max()))


def assert_same(model: Any) -> Network:
    """Have a graph give what ONNX Runtime gives; return its network."""
    network, inputs = from_onnx(model), inputs_of(model, 4)
    found = Session(network, device="cpu")(inputs if network.named_inputs else inputs["x"])
    assert close(numbers_of(found), expected(model, inputs))
    return network


def foreign_of(network: Network) -> list[ForeignLayer]:
    return [layer for layer in network if isinstance(layer, ForeignLayer)]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"deduplication": False, "merging": False}], ids=str)
def test_outputs_are_those_of_onnx_runtime(name: str, options: dict[str, Any]) -> None:
    model = GRAPHS[name]()
    network = from_onnx(model)
    assert len(foreign_of(network)) == 1
    assert (len(network) > 1) == (name != "largest")
    for rows in (1, 5):
        inputs = inputs_of(model, rows)
        found = Session(network, device="cpu", **options)(as_rows(model, inputs))
        assert close(numbers_of(found), expected(model, inputs))


@pytest.mark.gpu
@pytest.mark.parametrize("name", GRAPHS)
def test_outputs_on_a_gpu_are_those_of_onnx_runtime(name: str) -> None:
    import cupy

    model = GRAPHS[name]()
    inputs = inputs_of(model, 5)
    session, rows = Session(from_onnx(model), device="cuda"), as_rows(model, inputs)
    for _ in range(3):
        assert close(numbers_of(session(rows)), expected(model, inputs))
        assert close(cupy.asnumpy(session.run(cupy.asarray(rows)).dense), expected(model, inputs))


def test_equal_columns_before_a_foreign_layer_are_not_merged_away() -> None:
    model = normalised()
    (first,) = (tensor for tensor in model.graph.initializer if tensor.name == "first")
    matrix = numpy_helper.to_array(first).copy()
    matrix[:, 1::2] = matrix[:, ::2]
    first.CopyFrom(numpy_helper.from_array(matrix, "first"))
    assert_same(model)


def test_inputs_by_name() -> None:
    model = embedded()
    inputs = inputs_of(model, 4)
    assert close(Session(from_onnx(model), device="cpu")(**inputs), expected(model, inputs))


@pytest.mark.parametrize("name", GRAPHS)
def test_files_hold_foreign_layers(name: str, tmp_path: Path) -> None:
    model = GRAPHS[name]()
    network, rows = from_onnx(model), as_rows(model, inputs_of(model, 3))
    want = numbers_of(Session(network, device="cpu")(rows))
    write_model(tmp_path / "model.h5", Model(network, "mse", False))
    copies = [read_model(tmp_path / "model.h5").network, pickle.loads(pickle.dumps(network))]
    to_onnx(network, tmp_path / "model.onnx")
    copies.append(from_onnx(tmp_path / "model.onnx"))
    for copy in copies:
        assert close(numbers_of(Session(copy, device="cpu")(rows)), want)


def test_a_file_with_damaged_tensors_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "model.h5", Model(from_onnx(largest()), "mse", False))
    for numbers in ([0], [0, 0, 1], [0, 5, 1, 20, 0, 1, 3], [0, 0, 1, -20, 0, 1, 3], [0, 0, 9, 20]):
        with h5py.File(tmp_path / "model.h5", "r+") as file:
            del file["layer1/tensors"]
            file["layer1/tensors"] = np.array(numbers, np.int64)
        with pytest.raises(FileFormatError, match="layer1/tensors"):
            read_model(tmp_path / "model.h5")


@pytest.mark.parametrize(
    "model", [b"no model", normalised().SerializeToString().replace(b"Relu", b"Rel\xff")], ids=["none", "not UTF-8"]
)
def test_a_damaged_graph_is_an_input_error_and_prints_nothing(model: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    layer = ForeignLayer(model, (RowTensor((20,)),), (RowTensor((5,)),), operators=("Sin",))
    with pytest.raises(InputError, match="ONNX Runtime does not take"):
        Session(Network((layer,)), device="cpu")(np.ones((1, 20), np.float32))
    assert capfd.readouterr().out == ""


def test_weights_beside_the_file(tmp_path: Path) -> None:
    model = normalised()
    inputs = inputs_of(model, 3)
    want = expected(model, inputs)
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="data.bin", size_threshold=0)
    assert close(Session(from_onnx(tmp_path / "model.onnx"), device="cpu")(inputs["x"]), want)


@pytest.mark.parametrize("operator", ["Relu", "Sin"])
@pytest.mark.parametrize("outputs", [("y", "anchors"), ("anchors", "z", "y")])
def test_outputs_that_depend_on_no_input_are_left_out(operator: str, outputs: tuple[str, ...]) -> None:
    nodes = [node(operator, "x"), node("Tanh", "y", to="z"), node("Neg", "boxes", to="anchors")]
    model, rows = graph(nodes, ["n", 4], outputs=outputs, boxes=normal(3, 2)), normal(5, 4)
    found = Session(model, device="cpu")(rows)
    first = np.maximum(rows, 0) if operator == "Relu" else np.sin(rows)
    if "z" in outputs:
        assert list(found) == ["z", "y"]
        assert close(found["z"], np.tanh(first))
    assert close(found["y"] if "z" in outputs else found, first)


@pytest.mark.parametrize(("operator", "version"), [("Sin", 20), ("Sin", 18), ("Relu", 13)])
def test_functions_of_a_file(operator: str, version: int) -> None:
    """They are inlined, but for those whose operators are others in the graph's opset, as Relu was before 14."""
    opset, only = helper.make_opsetid("", version), node(operator, "a", to="b")
    proto = graph([node("Own", "x", domain="own")], ["n", 4])
    proto.functions.append(helper.make_function("own", "Own", ["a"], ["b"], [only], [opset]))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    rows = inputs_of(proto, 3)["x"]
    expected = np.sin(rows) if operator == "Sin" else np.maximum(rows, 0)
    assert close(Session(from_onnx(proto), device="cpu")(rows), expected)


def quantised(rows: int | str) -> Any:
    first = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"])
    nodes = [first, *chain("MatMulInteger _ w zero", cast(np.float32), "Mul scale", "Mul step", x="q")]
    nodes[1].input[:] = ["q", "w", "zero"]
    whole = np.random.default_rng(0).integers(-99, 99, (64, 8)).astype(np.int8)
    return graph(nodes, [rows, 64], w=whole, step=np.float32(0.01))


def test_a_model_of_one_row_quantises_each_by_itself() -> None:
    model, rows = quantised(1), normal(3, 64) * np.float32([[1], [0.01], [5]])
    session = Session(model, device="cpu")
    for _ in range(3):
        together = session(rows)
        assert np.array_equal(together, np.concatenate([session(row[None]) for row in rows]))


def test_rows_that_differ_by_more_than_a_step_are_quantised_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "_NEAR_QUANTISED", 0.0)
    rows = normal(3, 64) * np.float32([[1], [0.01], [5]])
    alone = Session(quantised(1), device="cpu")(rows)
    session = Session(quantised("n"), device="cpu")
    for _ in range(3):
        assert np.array_equal(session(rows), alone)


def test_whole_numbers_that_a_graph_takes() -> None:
    """A place in a table of one, and a number that the graph compares with."""
    one = graph(chain("Gather ids", "Sin", "MatMul w", x="table"), {"ids": [4]}, table=weights(1, 6), w=weights(6, 2))
    assert close(Session(one, device="cpu")(np.zeros((1, 4))), np.tile(np.sin(weights(1, 6)) @ weights(6, 2), 4))
    branches = [
        helper.make_graph([node("Gather", "table", name, to=to)], name, [], [value_of(to)])
        for name, to in (("right", "a"), ("wrong", "b"))
    ]
    nodes = [
        node("Equal", "ids", "rate", to="is_known"),
        helper.make_node("If", ["is_known"], ["t"], then_branch=branches[0], else_branch=branches[1]),
        *chain("Mul x", "Sin", x="t"),
    ]
    constants = {"table": weights(3), "rate": np.int64(8000), "right": np.int64(1), "wrong": np.int64(7)}
    found = Session(graph(nodes, {"x": ["n", 2], "ids": []}, **constants), device="cpu")
    rows = normal(3, 2)
    assert close(found(x=rows, ids=np.full(3, 8000)), np.sin(rows * weights(3)[1]))


def test_labels_that_are_picked_name_the_classes(tmp_path: Path) -> None:
    picked = helper.make_node("ArrayFeatureExtractor", ["labels", "best"], ["label"], domain="ai.onnx.ml")
    nodes = [*chain("Sin", "MatMul w", "Softmax", to="shares"), node("ArgMax", "shares", to="best", axis=1), picked]
    proto = graph(nodes, ["n", 4], ("label", "shares"), w=weights(4, 3), labels=np.array(["a", "b, c", "d"], object))
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    onnx.save(proto, tmp_path / "model.onnx")
    assert read_model(tmp_path / "model.onnx").class_names == ("a", "b, c", "d")


def value_of(name: str) -> Any:
    return helper.make_tensor_value_info(name, FLOAT, None)


def test_subgraphs_read_values_from_outside() -> None:
    branch = [helper.make_graph([node(name, "x", to=name)], name, [], [value_of(name)]) for name in ("Sin", "Cos")]
    nodes = chain(("If", {"then_branch": branch[0], "else_branch": branch[1]}), "MatMul w", x="truth")
    assert_same(graph(nodes, ["n", 4], truth=np.array(True), w=weights(4, 2)))


def test_constants_that_branches_read_are_written(tmp_path: Path) -> None:
    branch = [
        helper.make_graph([node("Mul", "x", name, to=f"{name}x")], name, [], [value_of(f"{name}x")]) for name in "ab"
    ]
    inner = node("If", "truth", to="inner", then_branch=branch[0], else_branch=branch[1])
    outer = helper.make_graph([inner], "outer", [], [value_of("inner")])
    nodes = chain(("If", {"then_branch": outer, "else_branch": branch[1]}), "Sin", x="truth")
    constants = {name: np.array([number] * 4, np.float32) for name, number in (("a", 2), ("b", 3))}
    network = from_onnx(graph(nodes, {"x": ["n", 4]}, truth=np.array(True), **constants))
    to_onnx(network, tmp_path / "again.onnx")
    rows = weights(3, 4)
    assert close(Session(from_onnx(tmp_path / "again.onnx"), device="cpu")(rows), np.sin(2 * rows))


def test_inputs_that_only_branches_read() -> None:
    """As detectors of speech have them, which choose by the sampling rate."""
    branch = [helper.make_graph([node(name, "x", to=name)], name, [], [value_of(name)]) for name in ("Sin", "Cos")]
    nodes = chain("Equal number", ("If", {"then_branch": branch[0], "else_branch": branch[1]}), x="s")
    proto = typed(graph_of(nodes, {"x": ["n", 4], "s": []}, 20, number=np.int64(3)), s=INT64)
    rows = {"x": weights(3, 4), "s": np.array([3, 5, 3])}
    found = Session(from_onnx(proto), device="cpu")(rows)
    assert close(found, np.where(rows["s"][:, None] == 3, np.sin(rows["x"]), np.cos(rows["x"])))


@pytest.mark.parametrize("by_name", [False, True])
def test_integers_that_float32_rounds_are_refused(by_name: bool) -> None:
    nodes = [node("Mod", "ids", "seven", to="places"), node("Gather", "table", "places", to="found")]
    nodes += chain("Add s", x="found") if by_name else chain("Sin", x="found")
    sizes: dict[str, Any] = {"ids": ["n", 2], **({"s": ["n", 2]} if by_name else {})}
    session = Session(from_onnx(graph(nodes, sizes, seven=np.int64(7), table=np.arange(7.0, dtype=np.float32))))

    def call(largest: int) -> Any:
        ids = np.array([[largest, 3]])
        return session(ids=ids, s=np.zeros((1, 2))) if by_name else session(ids)

    for largest in (5, (1 << 24) - 1, 6):
        expected = np.array([[largest % 7, 3]])
        assert close(call(largest), expected if by_name else np.sin(expected))
        for _ in range(2):
            with pytest.raises(MatrixError, match="beyond 16,777,215"):
                call((1 << 24) + 1)


def test_large_numbers_that_a_graph_makes_integers_of_itself_are_taken() -> None:
    nodes = chain(cast(np.int64), "Mod seven", cast(np.float32))
    session = Session(from_onnx(graph(nodes, ["n", 2], seven=np.int64(7))), device="cpu")
    rows = np.array([[1 << 25, 3]])
    assert close(session(rows), rows % 7)
    assert close(session(rows > 5), (rows > 5) % 7)


def test_an_input_that_is_read_as_images_and_as_rows() -> None:
    steps = "Pad sides", ("Transpose", {"perm": [0, 3, 1, 2]}), ("Conv w", {"group": 2}), "Relu"
    nodes = [*chain("Div each", to="scaled"), *chain("Max scaled", x="scaled", to="z"), *chain(*steps, x="scaled")]
    kernel = np.array([0, 1, 0, 0, 1, 0, 0, 0], np.float32).reshape(4, 1, 2, 1)
    constants = {"each": np.array([1, 2], np.float32), "sides": ints(0, 1, 1, 0, 0, 0, 2, 0), "w": kernel}
    assert_same(graph(nodes, ["n", 10, 9, 2], ("y", "z"), **constants))


def test_one_of_several_inputs_beside_what_is_made_of_it() -> None:
    nodes = [*chain(("LogSoftmax", {"axis": 2}), "Mul x"), *chain("Sin", x="s", to="z")]
    assert_same(graph(nodes, {"s": ["n", 2], "x": ["n", 1, 3]}, ("z", "y")))


def test_numbers_without_axes_pass_from_one_subgraph_to_another() -> None:
    nodes = [*chain("Sin", x="s", to="t"), *chain("Sin", "Mul t", "MatMul w", "Sin", "Mul t")]
    proto = graph(nodes, {"x": ["n", 64], "s": []}, w=weights(64, 64, density=0.1))
    rows = {"x": weights(3, 64), "s": np.full(3, 0.7, np.float32)}
    network = from_onnx(proto)
    assert sum(isinstance(layer, ForeignLayer) for layer in network) == 2
    middle = np.sin(np.sin(rows["x"]) * np.sin(0.7) @ proto_weights(proto))
    assert close(Session(network, device="cpu")(rows), middle * np.sin(0.7))


def test_states_come_out_as_they_go_in() -> None:
    """Rows are along the second axis of a state, and computed one by one as the scale is each row's own."""
    nodes = [*chain("Sin", "Mul s", x="state", to="next"), *chain("ReduceSum first", "Add x", x="next")]
    nodes[-2].attribute.append(helper.make_attribute("keepdims", 0))
    sizes: dict[str, Any] = {"x": ["n", 4], "state": [2, "n", 4], "s": []}
    network = from_onnx(graph(nodes, sizes, ("y", "next"), first=ints(0)))
    assert network.named_inputs == {"x": (4,), "state": (2, 4), "s": ()}
    assert network.named_outputs == {"y": (4,), "next": (2, 4)}
    rows = {"x": weights(3, 4), "state": weights(3, 2, 4), "s": np.array([1, 2, 3], np.float32)}
    found = Session(network, device="cpu")(rows)
    state = np.sin(rows["state"]) * rows["s"][:, None, None]
    assert close(found["next"], state)
    assert close(found["y"], rows["x"] + state.sum(axis=1))


def test_a_graph_without_an_axis_of_rows_may_be_run_as_it_is() -> None:
    nodes = [*chain("Sin", ("Softmax", {"axis": 0}), to="p"), *chain(("ReduceMax", {"keepdims": 0}), x="p", to="m")]
    network = from_onnx(graph(nodes, [6], ("p", "m")))
    assert network.onnx_graph is not None
    rows = weights(2, 6)
    powers = np.exp(np.sin(rows))
    shares = powers / powers.sum(axis=1, keepdims=True)
    found = ForeignNetwork(network.onnx_graph).run(rows)
    assert close(found, np.column_stack([shares, shares.max(axis=1)]))


def test_branches_and_rows_along_another_axis_are_not_run_as_they_are() -> None:
    """ONNX Runtime moves a transposition that is put before them past theirs, and ends the process."""
    branch = [helper.make_graph([node(name, "t", to=name)], name, [], [value_of(name)]) for name in ("Sin", "Cos")]
    nodes = [node("Transpose", "x", to="t", perm=[1, 0, 2])]
    nodes += chain(("If", {"then_branch": branch[0], "else_branch": branch[1]}), x="truth")
    assert from_onnx(graph(nodes, [2, "n", 3], truth=np.array(True))).onnx_graph is None


def test_a_fixed_axis_before_that_of_rows() -> None:
    nodes = [*chain(("ReduceSum zero", {"keepdims": 0}), x="state", to="s"), node("Add", "x", "s")]
    proto = graph(nodes, {"x": ["n", "m"], "state": [2, "n", 4]}, zero=np.array([0]))
    network = from_onnx(proto, shape={"x": (4,), "state": (2, 4)})
    assert network.named_inputs == {"x": (4,), "state": (2, 4)}
    rows = {"x": weights(3, 4), "state": weights(3, 2, 4)}
    found = Session(network, device="cpu")(rows)
    assert close(found, rows["x"] + rows["state"].sum(axis=1))


def test_the_error_of_a_size_that_does_not_fit_is_that_of_onnx_runtime() -> None:
    proto = GRAPHS["unet"]()
    width = proto.graph.input[0].type.tensor_type.shape.dim[-1]
    width.dim_value += 1
    with pytest.raises(InputError, match=r"nor does ONNX Runtime compute it: .*Concat"):
        from_onnx(proto)


def test_the_error_says_how_to_have_rows_taken_as_one() -> None:
    proto = graph(chain(("Softmax", {"axis": 0}), "MatMul w"), ["n", 3], w=weights(3, 2))
    with pytest.raises(InputError, match=r"each row by itself\. .*shape=\(1, 3\)"):
        from_onnx(proto)
    assert from_onnx(proto, shape=(1, 3)).inputs == 3
    proto = graph(chain(("Softmax", {"axis": 1}), "MatMul w"), [2, "n"], w=weights(3, 2))
    with pytest.raises(InputError, match=r"shape=\(2, rows\)"):
        from_onnx(proto)


NUMBERED = (("Shape", {"start": 0, "end": 1}), "Squeeze", "Range zero _ one", cast(np.float32), "Unsqueeze ones")
DEPENDENT = {
    "compared": chain(("Softmax", {"axis": 0}), x="a"),
    "summed up": chain("CumSum zero", x="a"),
    "the first": chain(("Gather zeros", {"axis": 0}), "Sub a _", x="a"),
    "numbered": chain(*NUMBERED, "Add a _", x="a"),
    "the largest": chain(("ReduceMax", {"keepdims": 0}), "Sub a _", x="a"),
    "random": chain("RandomNormalLike", x="a"),
    "rarely": [
        *chain(("ReduceMean zeros", {"keepdims": 1}), x="a", to="m"),
        *chain("Abs", "Sub limit", "Relu", "Mul m", "Sin", x="a"),
    ],
}


@pytest.mark.parametrize("nodes", DEPENDENT.values(), ids=DEPENDENT)
def test_rows_that_change_each_other_are_refused(nodes: list[Any]) -> None:
    numbers = {"zero": np.int64(0), "one": np.int64(1), "zeros": ints(0), "ones": ints(1), "limit": np.float32(20)}
    made = [node("MatMul", "x", "w", to="a"), *nodes]
    read = {name: number for name, number in numbers.items() if any(name in each.input for each in made)}
    with pytest.raises(InputError, match="each row by itself"):
        from_onnx(graph(made, ["n", 4], w=weights(4, 4), **read))


def test_a_mean_over_rows_of_integers_is_refused() -> None:
    nodes = [*chain(cast(np.float32), x="ids", to="a"), *chain("ReduceMean zeros", "Sub a _", x="a")]
    with pytest.raises(InputError, match="each row by itself"):
        from_onnx(graph(nodes, {"ids": ["n", 4]}, zeros=ints(0)))


@pytest.mark.parametrize("shape", [[16], [1, 16]])
def test_values_without_an_axis_of_rows(shape: list[int]) -> None:
    nodes = chain("Reshape square", "Sin", "Slice zeros ends ones", "Reshape flat", "MatMul w")
    constants = {"square": ints(4, 4), "zeros": ints(0), "ends": ints(2), "ones": ints(1), "flat": ints(1, 8)}
    proto = graph(nodes, shape, w=weights(8, 5, density=0.3), **constants)
    rows = np.random.default_rng(1).normal(size=(1, 16)).astype(np.float32)
    found = Session(from_onnx(proto), device="cpu")(rows)
    assert close(found, expected(proto, {"x": rows.reshape(shape)}))


def test_a_squeeze_of_whatever_axes_is_refused() -> None:
    with pytest.raises(InputError, match="each row by itself"):
        from_onnx(graph(chain("Sin", "Squeeze"), [5, "n", 6]))


def test_outputs_of_another_shape_are_refused() -> None:
    """As a model file may hold them."""
    proto = graph(chain("Squeeze"), [5, "n", 6])
    rows = RowTensor((5, 6), 1)
    network = Network((ForeignLayer(proto.SerializeToString(), (rows,), (rows,), operators=("Squeeze",)),))
    with pytest.raises(InputError, match=r"the shape \(5, 6\)"):
        Session(network, device="cpu")(np.ones((1, 30), np.float32))


def test_large_integers_are_not_rounded_between_subgraphs() -> None:
    nodes = [
        *chain("MatMul w", "Floor", to="b"),
        *chain(cast(np.int64), "Add big", x="b", to="d"),
        *chain("MatMul last", "Floor", cast(np.int64), "Add d _", "Mod seven", cast(np.float32), x="b"),
    ]
    few = {name: np.float32(np.arange(8 * rows).reshape(rows, 8) % 5 == 0) for name, rows in (("w", 20), ("last", 8))}
    proto = graph(nodes, ["n", 20], big=ints(1234567890123), seven=ints(7), **few)
    rows = np.random.default_rng(2).integers(-9, 9, (5, 20)).astype(np.float32)
    assert np.array_equal(Session(from_onnx(proto), device="cpu")(rows), expected(proto, {"x": rows}))


def test_outputs_of_texts_are_refused() -> None:
    nodes, table = chain("MatMul w", "Sin", ("ArgMax", {"axis": 1}), "Gather table _"), np.array([*"abcd"], object)
    proto = typed(graph(nodes, ["n", 6], w=weights(6, 4, density=0.3), table=table), y=TensorProto.STRING)
    with pytest.raises(InputError, match="each row by itself"):
        from_onnx(proto)


def test_sizes_that_are_computed_change_nothing() -> None:
    nodes = [node("MatMul", "x", "w", to="a")]
    nodes += chain(("Shape", {"start": 1, "end": 2}), "Expand bias _", "Add a _", "Softmax", x="a")
    proto = graph(nodes, ["n", 20], w=weights(20, 8), bias=weights(1))
    assert [type(layer) for layer in from_onnx(proto)] == [type(layer) for layer in from_onnx(proto, foreign=False)]


def test_inputs_that_nothing_reads_are_left_out() -> None:
    nodes = [*chain("MatMul w", "Sin"), node("Cos", "z", to="dead")]
    assert_same(graph(nodes, {"x": ["n", 20], "z": ["n", 3]}, w=weights(20, 8, density=0.2)))


def test_a_graph_without_zeros_stays_whole() -> None:
    proto = normalised()
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(1), tensor.name))
    assert [type(layer) for layer in assert_same(proto)] == [ForeignLayer]


def test_foreign_layers_can_be_refused() -> None:
    with pytest.raises(InputError, match="LpNormalization"):
        from_onnx(normalised(), foreign=False)


def test_without_onnx_runtime_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(InputError, match="need the package onnxruntime"):
        from_onnx(normalised())


def test_errors_of_onnx_runtime_are_a_line() -> None:
    nodes = [node("Gather", "table", "ids", axis=0)]
    network = from_onnx(graph(nodes, {"ids": ["n", 3]}, table=weights(50, 7)))
    with pytest.raises(InputError, match="ONNX Runtime cannot compute Gather") as found:
        Session(network, device="cpu")(np.full((2, 3), 99.0, np.float32))
    assert "\n" not in str(found.value)


def test_a_node_that_its_layer_refuses_after_all_is_onnx_runtimes(monkeypatch: pytest.MonkeyPatch) -> None:
    made, add_outputs, met = normalised(), Walk.add_outputs, list[int]()

    def refusing(self: Walk, place: int, values: Any) -> None:
        met.append(place)
        if place == 3 and met.count(3) > 1:  # in the order of numbers that it would read in the end
            raise InputError("it reads numbers in another order")
        add_outputs(self, place, values)

    monkeypatch.setattr(Walk, "add_outputs", refusing)
    assert isinstance(assert_same(made)[-1], ForeignLayer)


def test_a_constant_that_several_nodes_read_connects_none() -> None:
    """The index of a selection between foreign nodes, and of one before a sparse layer, is the same constant."""
    normal, first = ("LpNormalization", {"axis": -1}), ("Gather zero", {"axis": 1})
    nodes = [node("Constant", to="zero", value_int=0), *chain(normal, first, normal, first, "Flatten", "MatMul w")]
    assert len(foreign_of(from_onnx(graph(nodes, ["n", 3, 6, 5], w=weights(5, 4, density=0.2))))) == 1


@pytest.mark.parametrize("axes", [["t", "n", 6], ["t", 3, 6]])
def test_rows_that_a_graph_mixes_are_one_sample_of_the_sizes_that_a_call_has(axes: list[Any]) -> None:
    nodes = chain(("LSTM inner hidden", {"hidden_size": 8}), "Squeeze axis", "MatMul w")
    nodes[0].output[:] = [nodes[0].output[0]]
    constants = {"inner": weights(1, 32, 6), "hidden": weights(1, 32, 8), "w": weights(8, 3, density=0.2)}
    proto = graph(nodes, axes, axis=ints(1), **constants)
    session = Session(proto, device="cpu")
    for steps in (5, 7, 5):
        inputs = {"x": normal(steps, 3, 6)}
        want = expected(proto, inputs)
        assert close(session(inputs["x"]), want.reshape(1, -1))
        assert session.network.input_layout.shape == (steps, 3, 6)
    with pytest.raises(InputError, match=r"each row by itself|'x'"):
        session(normal(5, 3, 4))


def test_operators_of_another_domain_are_written_again(tmp_path: Path) -> None:
    nodes = chain("MatMul w", "Sin", "FastGelu")
    nodes[-1].domain = "com.microsoft"
    proto, rows = graph(nodes, ["n", 4], w=weights(4, 3)), normal(5, 4)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    to_onnx(from_onnx(proto), tmp_path / "again.onnx")
    assert close(Session(tmp_path / "again.onnx", device="cpu")(rows), expected(proto, {"x": rows}))


@pytest.mark.parametrize("outputs", [("y",), ("y", "z")])
def test_sizes_beyond_the_cached_ones_are_onnx_runtimes(outputs: tuple[str, ...], monkeypatch: Any) -> None:
    nodes = [*chain("Conv w", "GlobalMaxPool", "Flatten", "MatMul v"), node("Sin", "y", to="z")]
    proto = graph(nodes[: 3 + len(outputs)], ["n", 3, "h", "w"], outputs, w=weights(4, 3, 2, 2), v=weights(4, 2))
    session: Any = Session(proto, device="cpu")

    def assert_right(rows: Any) -> None:
        found = session({"x": rows})
        wanted = expected(proto, {"x": np.float32(rows)})
        assert close(np.hstack([*found.values()]) if isinstance(found, dict) else found, wanted.reshape(len(rows), -1))
        assert np.array_equal(numbers_of(session(rows)), numbers_of(found))

    for width in range(3, 3 + MOST_SIZES + 1):
        assert_right(normal(2, 3, 4, width))
    for rows, error in (np.nan, InputError), ("text", InputError), (1j, MatrixError):
        with pytest.raises(error):
            session(np.full((2, 3, 9, 9), rows))
    nothing = session(np.zeros((0, 3, 9, 9)))
    assert {each.shape for each in (nothing.values() if isinstance(nothing, dict) else [nothing])} == {(0, 2)}
    monkeypatch.setattr("sparsenn.engine.open_sizes.network_of", None)  # no other is made
    monkeypatch.setattr("sparsenn.engine.open_sizes.read_with_sizes", None)
    for rows in normal(2, 3, 5, 5), normal(7, 3, 30, 2), normal(2, 3, 4, 3), np.float64(normal(1, 3, 3, 3)):
        assert_right(rows)
    session.close()
    assert session._graph is False
    with pytest.raises(UsageError, match="closed"):
        session(normal(2, 3, 5, 5))


def test_further_sizes_of_a_named_tuple_go_by_its_names() -> None:
    nodes = chain(("Sub _ b", {}), "ReduceSum axes", x="a")
    session = Session(graph(nodes, {"a": ["n", "w"], "b": ["n", "w"]}, axes=ints(1)), device="cpu")
    for width in range(1, MOST_SIZES + 3):
        a, b = normal(2, width), normal(2, width)
        found = session(namedtuple("batch", "b a")(b, a))
        assert close(found, (a - b).sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
    "options",
    [
        *({"reproducible": True}, {"batch_size": 2}, {"memory_limit": "1G"}),
        *({"precision": "float64"}, {"device": "reference"}),
    ],
)
def test_sizes_beyond_the_cached_ones_are_those_of_kernels_by_option(options: dict[str, Any]) -> None:
    proto = graph(chain("GlobalMaxPool", "Flatten", "MatMul v"), ["n", 3, "h", "w"], v=weights(3, 2))
    session: Any = Session(proto, **{"device": "cpu", **options})
    for width in range(1, MOST_SIZES + 3):
        rows = normal(2, 3, 4, width)
        assert close(session(rows), expected(proto, {"x": rows}))
    assert len(session._sessions) == MOST_SIZES
    assert session._graph is False
