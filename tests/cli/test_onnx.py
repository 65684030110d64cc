"""ONNX files wherever the program takes a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import Refused, Run
from onnx_graphs import chain, normal
from onnx_graphs import model as graph_of
from scipy.sparse import csc_array

from sparsenn import Identity, Linear, Model, Network, ReLU, Session, Softmax, SparseLinear, read_model, write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model in HDF5: a sparse layer, a dense one and a softmax."""
    rng = np.random.default_rng(1)
    weights = rng.normal(size=(6, 8)) * (rng.random((6, 8)) < 0.3)
    layers = (
        SparseLinear.from_scipy(csc_array(np.float32(weights)), 0.1, ReLU()),
        Linear(rng.normal(size=(8, 3)), None, Identity()),
        Softmax(),
    )
    write_model(tmp_path / "model.h5", Model(Network(layers), "cross_entropy", True))
    return tmp_path / "model.h5"


@pytest.mark.parametrize("suffix", [".onnx", ".onnx.gz"])
@pytest.mark.parametrize("options", [(), ("--sparse",)])
def test_there_and_back(run: Run, model: Path, suffix: str, options: tuple[str, ...]) -> None:
    written, back, rows = (model.with_name(name) for name in (f"n{suffix}", "back.h5", "rows.npy"))
    np.save(rows, np.random.default_rng(2).normal(size=(5, 6)).astype(np.float32))
    for source, target, given in ((model, written, options), (written, back, ())):
        done = run("convert", source, target, *given)
    outputs = []
    for path in (model, written, back):
        done = run("predict", path, rows, "--output", model.with_name("out.npy"), "--device", "cpu")
        outputs.append(np.load(model.with_name("out.npy")))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[0], outputs[2])
    done = run("info", written)
    for fact in ("3 layers, 6 inputs → 3 outputs", "probabilities of classes", "ONNX, opset 17", "sparsenn"):
        assert fact in done.stdout


@pytest.mark.parametrize("verb", [("info",), ("predict", "rows.npy"), ("convert", "x.h5")])
def test_what_is_no_model_is_one_line(refused: Refused, tmp_path: Path, verb: tuple[str, ...]) -> None:
    path = tmp_path / "network.onnx"
    np.save(tmp_path / "rows.npy", np.ones((2, 3), np.float32))
    refused((verb[0], path, *verb[1:]), "no such file")
    path.write_bytes(b"nonsense")
    refused((verb[0], path, *verb[1:]), f"{path}: is not an ONNX model")


def test_options_that_would_do_nothing(refused: Refused, model: Path) -> None:
    refused(("convert", model, "x.h5", "--sparse"), "--sparse goes with ONNX")
    refused(("convert", model, "x.tsv"), "does not name a known file type; use .h5, .hdf5, .onnx, .onnx.gz")


def test_json_names_the_model(run: Run, model: Path) -> None:
    network, rows = model.with_name("network.onnx"), model.with_name("rows.npy")
    np.save(rows, np.ones((2, 6), np.float32))
    run("convert", model, network)
    done = run("predict", network, rows, "--json", "-", "--device", "cpu")
    assert json.loads(done.stdout)["model"] == str(network)


def test_scaling_and_class_names_come_along(run: Run, tmp_path: Path) -> None:
    table, model, network = (tmp_path / name for name in ("flowers.csv", "model.h5", "network.onnx"))
    rng = np.random.default_rng(3)
    rows = [(200 + 10 * number % 7 + rng.normal(), number % 3) for number in range(60)]
    table.write_text("length,kind\n" + "".join(f"{length},{'abc'[kind]}\n" for length, kind in rows))
    run("train", table, "--targets", "kind", "--hidden", 4, "--epochs", 2, "--output", model)
    run("convert", model, network)
    inputs, found = tmp_path / "inputs.csv", []
    inputs.write_text("other,length\n" + "".join(f"x,{length}\n" for length, _ in rows))
    for path in (model, network):
        run("predict", path, inputs, "--output", tmp_path / "classes.csv", "--device", "cpu")
        found.append((tmp_path / "classes.csv").read_text())
    assert found[0] == found[1]
    header, *classes = found[0].split()
    assert header == "class"
    assert set(classes) <= {"a", "b", "c"}


def test_convert_fixes_open_sizes(run: Run, refused: Refused, tmp_path: Path) -> None:
    kinds = {"a": ["n", 2, "length"], "b": ["n", 3]}
    helper = onnx.helper
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMax", ["a"], ["p"], axes=[2], keepdims=0),
            helper.make_node("Concat", ["p", "b"], ["c"], axis=1),
            helper.make_node("MatMul", ["c", "w"], ["y"]),
        ],
        "graph",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in kinds.items()],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.eye(5, 2, dtype=np.float32), "w")],
    )
    source, target = tmp_path / "two.onnx", tmp_path / "two.h5"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), source)
    refused(("convert", source, target), "--shape")
    run("convert", source, target, "--shape", "a=2x4,b=3")
    assert read_model(target).network.named_inputs == {"a": (2, 4), "b": (3,)}
    for text in ("2x4", "2x4,3", "a=2*4", "a=,b=3", "c=3", "a=3x4", ""):
        run("convert", source, target, "--shape", text, code=2)


def test_rows_and_an_option_fix_open_sizes(run: Run, refused: Refused, tmp_path: Path) -> None:
    source, rows, out = tmp_path / "open.onnx", tmp_path / "rows.npz", tmp_path / "out.npy"
    nodes = chain(("Concat _ b", {"axis": 2}), "Flatten", "MatMul w", x="a")
    onnx.save(graph_of(nodes, {"a": ["n", 2, "length"], "b": ["n", 2, 1]}, w=normal(6, 4)), source)
    arrays = {"a": normal(3, 2, 2), "b": normal(3, 2, 1)}
    np.savez(rows, **arrays)
    run("predict", source, rows, "--output", out, "--no-classes", "--device", "cpu")
    np.testing.assert_allclose(np.load(out), Session(source, device="cpu")(arrays), rtol=1e-5, atol=1e-6)
    table = tmp_path / "rows.csv"
    table.write_text("1,2,3,4,5,6\n")
    refused(("predict", source, table), "open sizes")
    for verb in ("info",), ("tune", "--rows", 1), ("benchmark", "--rows", 1, "--seconds", 0.01, "--against", "none"):
        refused((verb[0], source, *verb[1:]), "open sizes")
        run(verb[0], source, *verb[1:], "--shape", "a=2x2")


def test_info_says_that_onnx_runtimes_layers_are_not_counted(run: Run, tmp_path: Path) -> None:
    for name, operator, is_counted in (("own", "Relu", True), ("foreign", "Sin", False)):
        onnx.save(graph_of(chain(operator, "MatMul w"), ["n", 4], w=normal(4, 2)), tmp_path / f"{name}.onnx")
        shown = run("info", tmp_path / f"{name}.onnx").stdout
        assert ("without ONNX Runtime's layers" not in shown) == is_counted
