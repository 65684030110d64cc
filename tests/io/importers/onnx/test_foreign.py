"""Graphs of which ONNX Runtime computes some nodes: outputs are its own, cut into as few subgraphs as there can be."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="computes what no layer does")
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from sparsenn import Model, Network, Session, from_onnx, read_model, to_onnx, write_model
from sparsenn.errors import FileFormatError, InputError
from sparsenn.io.importers.onnx.graph import Walk
from sparsenn.layers import ForeignLayer, RowTensor

pytestmark = pytest.mark.usefixtures("foreign_layers")

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def weights(name: str, *shape: int, density: float = 1.0) -> Any:
    rng = np.random.default_rng(len(name) + sum(shape))
    drawn = rng.normal(size=shape) / np.sqrt(shape[0]) * (rng.random(shape) < density)
    return numpy_helper.from_array(drawn.astype(np.float32), name)


def whole(name: str, *numbers: int) -> Any:
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def graph(
    nodes: list[Any], constants: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], functions: Any = ()
) -> Any:
    def described(values: dict[str, Any]) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, INT64 if name == "ids" else FLOAT, shape)
            for name, shape in values.items()
        ]

    made = helper.make_graph(nodes, "g", described(inputs), described(outputs), constants)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=10, functions=list(functions))
    onnx.checker.check_model(model)
    return model


def normalised() -> Any:
    nodes = [
        node("MatMul", ["x", "first"], ["a"]),
        node("LpNormalization", ["a"], ["b"], axis=-1),
        node("Relu", ["b"], ["c"]),
        node("MatMul", ["c", "last"], ["y"]),
    ]
    constants = [weights("first", 20, 64, density=0.1), weights("last", 64, 5, density=0.3)]
    return graph(nodes, constants, {"x": ["n", 20]}, {"y": ["n", 5]})


def recurrent() -> Any:
    nodes = [
        node("LSTM", ["x", "inner", "hidden"], ["", "h", ""], hidden_size=8),
        node("Squeeze", ["h", "axis"], ["s"]),
        node("MatMul", ["s", "w"], ["y"]),
    ]
    constants = [weights("inner", 1, 32, 6), weights("hidden", 1, 32, 8), weights("w", 8, 3, density=0.2)]
    return graph(nodes, [*constants, whole("axis", 0)], {"x": [5, "n", 6]}, {"y": ["n", 3]})


def unet() -> Any:
    nodes = [
        node("Conv", ["x", "down"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["c", "deep"], ["d"], pads=[1, 1, 1, 1]),
        node("ConvTranspose", ["d", "up"], ["e"], strides=[2, 2]),
        node("Concat", ["e", "b"], ["f"], axis=1),
        node("Conv", ["f", "out"], ["y"]),
    ]
    constants = [
        weights("down", 8, 3, 3, 3, density=0.3),
        weights("deep", 16, 8, 3, 3, density=0.3),
        weights("up", 16, 8, 2, 2),
    ]
    return graph(
        nodes, [*constants, weights("out", 2, 16, 1, 1, density=0.3)], {"x": ["n", 3, 16, 16]}, {"y": ["n", 2, 16, 16]}
    )


def attention() -> Any:
    width = 32
    nodes = [
        *(node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"),
        node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["q", "t"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o"]),
        node("Add", ["o", "x"], ["r"]),
        node("LayerNormalization", ["r", "scale", "shift"], ["l"], axis=-1),
        node("MatMul", ["l", "wide"], ["f"]),
        node("Gelu", ["f"], ["g"]),
        node("MatMul", ["g", "narrow"], ["h"]),
        node("Add", ["h", "l"], ["y"]),
    ]
    square = [weights(f"w{name}", width, width, density=0.2) for name in "qkv"]
    others = [weights("wide", width, 4 * width, density=0.2), weights("narrow", 4 * width, width, density=0.2)]
    constants = [*square, *others, weights("scale", width), weights("shift", width)]
    return graph(nodes, constants, {"x": ["n", 10, width]}, {"y": ["n", 10, width]})


def detector() -> Any:
    nodes = [
        node("Conv", ["x", "c"], ["a"], pads=[1, 1, 1, 1]),
        node("Sigmoid", ["a"], ["b"]),
        node("Mul", ["a", "b"], ["d"]),
        node("Resize", ["d", "", "sizes"], ["e"]),
        node("Conv", ["e", "boxes"], ["y"]),
        node("Conv", ["d", "boxes"], ["z"]),
    ]
    sizes = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "sizes")
    constants = [weights("c", 8, 3, 3, 3, density=0.3), weights("boxes", 2, 8, 1, 1, density=0.3), sizes]
    return graph(nodes, constants, {"x": [1, 3, 8, 8]}, {"y": [1, 2, 16, 16], "z": [1, 2, 8, 8]})


def embedded() -> Any:
    nodes = [
        node("Gather", ["table", "ids"], ["e"], axis=0),
        node("ReduceMean", ["e", "axis"], ["m"], keepdims=0),
        node("Concat", ["m", "x"], ["c"], axis=1),
        node("Gemm", ["c", "w", "b"], ["y"]),
    ]
    constants = [weights("table", 50, 7), weights("w", 19, 4, density=0.3), weights("b", 4), whole("axis", 1)]
    return graph(nodes, constants, {"ids": ["n", 3], "x": ["n", 12]}, {"y": ["n", 4]})


def reshaped() -> Any:
    """The number of rows is computed from a tensor of this package's."""
    nodes = [
        node("Conv", ["x", "c"], ["a"], pads=[1, 1, 1, 1]),
        node("Shape", ["a"], ["shape"], start=0, end=1),
        node("Concat", ["shape", "rest"], ["target"], axis=0),
        node("InstanceNormalization", ["a", "scale", "shift"], ["i"]),
        node("Reshape", ["i", "target"], ["f"]),
        node("MatMul", ["f", "w"], ["y"]),
    ]
    constants = [weights("c", 4, 3, 3, 3, density=0.3), weights("scale", 4), weights("shift", 4), weights("w", 256, 3)]
    return graph(nodes, [*constants, whole("rest", -1)], {"x": ["n", 3, 8, 8]}, {"y": ["n", 3]})


def branching() -> Any:
    nodes = [
        node("MatMul", ["x", "first"], ["a"]),
        node("Sin", ["a"], ["s"]),
        node("Erf", ["a"], ["e"]),
        node("MatMul", ["s", "last"], ["y"]),
        node("MatMul", ["e", "last"], ["z"]),
    ]
    constants = [weights("first", 20, 64, density=0.1), weights("last", 64, 5, density=0.2)]
    return graph(nodes, constants, {"x": ["n", 20]}, {"y": ["n", 5], "z": ["n", 5]})


def largest() -> Any:
    return graph([node("TopK", ["x", "k"], ["y", "places"])], [whole("k", 3)], {"x": ["n", 20]}, {"y": ["n", 3]})


GRAPHS = {
    made.__name__: made
    for made in (attention, branching, detector, embedded, largest, normalised, recurrent, reshaped, unet)
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
    inputs = inputs_of(model, 6)
    assert close(Session(from_onnx(model), device="cpu")(inputs["x"]), expected(model, inputs))


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
    h5py = pytest.importorskip("h5py")
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


def test_functions_of_a_file_are_inlined() -> None:
    sine = helper.make_function("own", "Sine", ["a"], ["b"], [node("Sin", ["a"], ["b"])], [helper.make_opsetid("", 20)])
    model = graph([node("Sine", ["x"], ["y"], domain="own")], [], {"x": ["n", 4]}, {"y": ["n", 4]}, [sine])
    rows = inputs_of(model, 3)["x"]
    assert close(Session(from_onnx(model), device="cpu")(rows), np.sin(rows))


def test_subgraphs_read_values_from_outside() -> None:
    branch = [
        helper.make_graph([node(name, ["x"], [name])], name, [], [helper.make_tensor_value_info(name, FLOAT, None)])
        for name in ("Sin", "Cos")
    ]
    truth = numpy_helper.from_array(np.array(True), "truth")
    nodes = [
        node("If", ["truth"], ["a"], then_branch=branch[0], else_branch=branch[1]),
        node("MatMul", ["a", "w"], ["y"]),
    ]
    model = graph(nodes, [truth, weights("w", 4, 2)], {"x": ["n", 4]}, {"y": ["n", 2]})
    inputs = inputs_of(model, 3)
    assert close(Session(from_onnx(model), device="cpu")(inputs["x"]), expected(model, inputs))


DEPENDENT = {
    "compared": [node("Softmax", ["a"], ["y"], axis=0)],
    "summed up": [node("CumSum", ["a", "zero"], ["y"])],
    "the first": [node("Gather", ["a", "zeros"], ["f"], axis=0), node("Sub", ["a", "f"], ["y"])],
    "numbered": [
        node("Shape", ["a"], ["s"], start=0, end=1),
        node("Squeeze", ["s"], ["n"]),
        node("Range", ["zero", "n", "one"], ["r"]),
        node("Cast", ["r"], ["f"], to=FLOAT),
        node("Unsqueeze", ["f", "ones"], ["c"]),
        node("Add", ["a", "c"], ["y"]),
    ],
    "the largest": [node("ReduceMax", ["a"], ["m"], keepdims=0), node("Sub", ["a", "m"], ["y"])],
    "random": [node("RandomNormalLike", ["a"], ["y"])],
    "rarely": [
        node("Abs", ["a"], ["b"]),
        node("Sub", ["b", "limit"], ["c"]),
        node("Relu", ["c"], ["d"]),
        node("ReduceMean", ["a", "zeros"], ["m"], keepdims=1),
        node("Mul", ["d", "m"], ["e"]),
        node("Sin", ["e"], ["y"]),
    ],
}


@pytest.mark.parametrize("nodes", DEPENDENT.values(), ids=DEPENDENT)
def test_rows_that_change_each_other_are_refused(nodes: list[Any]) -> None:
    scalars = [numpy_helper.from_array(np.array(number, np.int64), name) for name, number in (("zero", 0), ("one", 1))]
    limit = numpy_helper.from_array(np.array(20, np.float32), "limit")
    constants = [*scalars, whole("zeros", 0), whole("ones", 1), limit, weights("w", 4, 4)]
    model = graph([node("MatMul", ["x", "w"], ["a"]), *nodes], constants, {"x": ["n", 4]}, {"y": ["n", 4]})
    with pytest.raises(InputError, match="each row by itself"):
        from_onnx(model)


def test_a_mean_over_rows_of_integers_is_refused() -> None:
    nodes = [
        node("Cast", ["ids"], ["a"], to=FLOAT),
        node("ReduceMean", ["a", "zeros"], ["m"]),
        node("Sub", ["a", "m"], ["y"]),
    ]
    with pytest.raises(InputError, match="each row by itself"):
        from_onnx(graph(nodes, [whole("zeros", 0)], {"ids": ["n", 4]}, {"y": ["n", 4]}))


@pytest.mark.parametrize("shape", [[16], [1, 16]])
def test_values_without_an_axis_of_rows(shape: list[int]) -> None:
    nodes = [
        node("Reshape", ["x", "square"], ["r"]),
        node("Sin", ["r"], ["a"]),
        node("Slice", ["a", "zeros", "ends", "ones"], ["c"]),
        node("Reshape", ["c", "flat"], ["d"]),
        node("MatMul", ["d", "w"], ["y"]),
    ]
    constants = [whole("square", 4, 4), whole("zeros", 0), whole("ends", 2), whole("ones", 1), whole("flat", 1, 8)]
    model = graph(nodes, [*constants, weights("w", 8, 5, density=0.3)], {"x": shape}, {"y": [1, 5]})
    rows = np.random.default_rng(1).normal(size=(1, 16)).astype(np.float32)
    found = Session(from_onnx(model), device="cpu")(rows)
    assert close(found, expected(model, {"x": rows.reshape(shape)}))


def test_a_squeeze_of_whatever_axes_is_refused() -> None:
    nodes = [node("Sin", ["x"], ["a"]), node("Squeeze", ["a"], ["y"])]
    with pytest.raises(InputError, match="each row by itself"):
        from_onnx(graph(nodes, [], {"x": [5, "n", 6]}, {"y": [5, "n", 6]}))


def test_outputs_of_another_shape_are_refused() -> None:
    """As a model file may hold them."""
    model = graph([node("Squeeze", ["x"], ["y"])], [], {"x": [5, "n", 6]}, {"y": ["m", "k"]})
    rows = RowTensor((5, 6), 1)
    network = Network((ForeignLayer(model.SerializeToString(), (rows,), (rows,), operators=("Squeeze",)),))
    with pytest.raises(InputError, match=r"the shape \(5, 6\)"):
        Session(network, device="cpu")(np.ones((1, 30), np.float32))


def test_large_integers_are_not_rounded_between_subgraphs() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Floor", ["a"], ["b"]),
        node("Cast", ["b"], ["c"], to=INT64),
        node("Add", ["c", "big"], ["d"]),
        node("MatMul", ["b", "last"], ["e"]),
        node("Floor", ["e"], ["f"]),
        node("Cast", ["f"], ["g"], to=INT64),
        node("Add", ["d", "g"], ["h"]),
        node("Mod", ["h", "seven"], ["k"]),
        node("Cast", ["k"], ["y"], to=FLOAT),
    ]
    few = [numpy_helper.from_array((np.arange(each).reshape(size) % 5 == 0).astype(np.float32), name)
           for name, size, each in (("w", (20, 8), 160), ("last", (8, 8), 64))]  # fmt: skip
    constants = [*few, whole("big", 1234567890123), whole("seven", 7)]
    model = graph(nodes, constants, {"x": ["n", 20]}, {"y": ["n", 8]})
    rows = np.random.default_rng(2).integers(-9, 9, (5, 20)).astype(np.float32)
    assert np.array_equal(Session(from_onnx(model), device="cpu")(rows), expected(model, {"x": rows}))


def test_outputs_of_texts_are_refused() -> None:
    table = numpy_helper.from_array(np.array(["a", "b", "c", "d"], object), "table")
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Sin", ["a"], ["s"]),
        node("ArgMax", ["s"], ["m"], axis=1),
        node("Gather", ["table", "m"], ["y"]),
    ]
    model = graph(nodes, [weights("w", 6, 4, density=0.3), table], {"x": ["n", 6]}, {"y": ["n", 1]})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(InputError, match="each row by itself"):
        from_onnx(model)


def test_sizes_that_are_computed_change_nothing() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Shape", ["a"], ["s"], start=1, end=2),
        node("Expand", ["bias", "s"], ["e"]),
        node("Add", ["a", "e"], ["b"]),
        node("Softmax", ["b"], ["y"]),
    ]
    model = graph(nodes, [weights("w", 20, 8), weights("bias", 1)], {"x": ["n", 20]}, {"y": ["n", 8]})
    assert [type(layer) for layer in from_onnx(model)] == [type(layer) for layer in from_onnx(model, foreign=False)]


def test_inputs_that_nothing_reads_are_left_out() -> None:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Sin", ["a"], ["y"]), node("Cos", ["z"], ["dead"])]
    model = graph(nodes, [weights("w", 20, 8, density=0.2)], {"x": ["n", 20], "z": ["n", 3]}, {"y": ["n", 8]})
    inputs = inputs_of(model, 4)
    assert close(Session(from_onnx(model), device="cpu")(inputs["x"]), expected(model, inputs))


def test_a_graph_without_zeros_stays_whole() -> None:
    model = normalised()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(1), tensor.name))
    network = from_onnx(model)
    assert [type(layer) for layer in network] == [ForeignLayer]
    inputs = inputs_of(model, 4)
    assert close(Session(network, device="cpu")(inputs["x"]), expected(model, inputs))


def test_foreign_layers_can_be_refused() -> None:
    with pytest.raises(InputError, match="LpNormalization"):
        from_onnx(normalised(), foreign=False)


def test_without_onnx_runtime_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(InputError, match="need the package onnxruntime"):
        from_onnx(normalised())


def test_errors_of_onnx_runtime_are_a_line() -> None:
    nodes = [node("Gather", ["table", "ids"], ["y"], axis=0)]
    network = from_onnx(graph(nodes, [weights("table", 50, 7)], {"ids": ["n", 3]}, {"y": ["n", 3, 7]}))
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
    network = from_onnx(made)
    assert isinstance(network[-1], ForeignLayer)
    rows = np.random.default_rng(0).normal(size=(3, 20)).astype(np.float32)
    runtime = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = runtime.run(None, {"x": rows})[0]
    np.testing.assert_allclose(Session(network, device="cpu")(rows), expected, atol=1e-5)


def test_a_constant_that_several_nodes_read_connects_none() -> None:
    """The index of a selection between foreign nodes, and of one before a sparse layer, is the same constant."""
    nodes = [
        node("Constant", [], ["zero"], value_int=0),
        node("LpNormalization", ["x"], ["a"], axis=-1),
        node("Gather", ["a", "zero"], ["b"], axis=1),
        node("LpNormalization", ["b"], ["c"], axis=-1),
        node("Gather", ["c", "zero"], ["d"], axis=1),
        node("Flatten", ["d"], ["e"]),
        node("MatMul", ["e", "w"], ["y"]),
    ]
    model = graph(nodes, [weights("w", 5, 4, density=0.2)], {"x": ["n", 3, 6, 5]}, {"y": ["n", 4]})
    network = from_onnx(model)
    assert [type(layer).__name__ for layer in network if isinstance(layer, ForeignLayer)] == ["ForeignLayer"]
