"""Models in ONNX files: scaling becomes nodes, and class names and columns are metadata that are read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx_graphs import model as graph
from onnx_graphs import node, normal

from sparsenn import InputLayout, Model, Network, Session, from_onnx, read_model, to_onnx, write_model
from sparsenn.errors import FileFormatError, UsageError
from sparsenn.formats import Column, Scaling, TableEncoding
from sparsenn.layers import Conv2d, Flatten, Identity, Linear, ReLU, Softmax

NAMES = ("setosa", "versi, color", "vírginica")
COLUMNS = TableEncoding((Column("length"), Column("width", fill=2.5), Column("age"), Column("a b")), ("kind",), True)
STANDARD = Scaling(np.ones(1), [5.0, -2, 3, 100], [0.5, 2, 1, 30])


def of_rows(**parts: Any) -> Model:
    network = Network((Linear(normal(4, 6), normal(6), ReLU()), Linear(normal(6, 3), None, Identity()), Softmax()))
    return Model(network, "cross_entropy", True, **parts)


def of_images(scaling: Scaling) -> Model:
    layers = (Conv2d(normal(2, 3, 3, 3), normal(2), padding=1), Flatten(), Linear(normal(24, 2), None, Identity()))
    return Model(Network(layers, image=(3, 4, 3)), "mse", False, scaling=scaling)


def reference(path: Path, rows: Any) -> Any:
    (found,) = onnx.reference.ReferenceEvaluator(str(path)).run(None, {"input": rows})
    return found


def runtime(path: Path, rows: Any) -> Any:
    library = pytest.importorskip("onnxruntime", reason="runs what is written")
    (found,) = library.InferenceSession(path).run(None, {"input": rows})
    return found


@pytest.mark.parametrize("run", [reference, runtime])
@pytest.mark.parametrize(
    "given",
    [
        of_rows(scaling=STANDARD),
        of_rows(scaling=Scaling(1 / 255, 0, 1)),
        of_images(Scaling(1 / 255, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4])),
        of_images(Scaling(2, np.arange(36), 1)),
        of_images(Scaling(1, 0, 1)),
    ],
    ids=["columns", "factor", "channels", "pixels", "nothing"],
)
def test_scaling_becomes_nodes(run: Any, given: Model, tmp_path: Path) -> None:
    path, network = tmp_path / "model.onnx", given.network
    to_onnx(given, path)
    onnx.checker.check_model(str(path), full_check=True)
    rows = np.float32(normal(7, network.inputs) * 50)
    expected = Session(network, device="reference")(given.scaling.apply(rows, network.image))
    found = run(path, rows.reshape(7, *network.shapes[0]))
    np.testing.assert_allclose(found.reshape(7, -1), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_scaling_is_read_back_as_part_of_the_first_layer(tmp_path: Path) -> None:
    given, path = of_rows(scaling=STANDARD), tmp_path / "model.onnx"
    to_onnx(given, path)
    again = read_model(path)
    assert again.scaling is None
    assert [type(layer) for layer in again.network] == [Linear, Linear, Softmax]
    rows = np.float32(normal(7, 4) * 50)
    expected = Session(given.network, device="reference")(STANDARD.apply(rows))
    np.testing.assert_allclose(Session(again.network, device="reference")(rows), expected, atol=1e-4)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.gz"])
def test_what_a_model_tells_is_read_back(name: str, tmp_path: Path) -> None:
    for given in (of_rows(class_names=NAMES, encoding=COLUMNS), of_images(Scaling(1, 0, 1))):
        to_onnx(given, tmp_path / name)
        again = read_model(tmp_path / name)
        for what in ("loss", "classes", "class_names", "encoding"):
            assert getattr(again, what) == getattr(given, what)


def test_labels_of_other_programs_are_class_names(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x", "W", to="z"), onnx.helper.make_node("ZipMap", ["z"], ["y"], domain="ai.onnx.ml")]
    for labels, names in ((["b", "a"], ("b", "a")), (["b", "b"], None), (["b"], None)):
        nodes[1].ClearField("attribute")
        nodes[1].attribute.append(onnx.helper.make_attribute("classlabels_strings", labels))
        proto = graph(nodes, ["n", 4], W=normal(4, 2))
        proto.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 1))
        (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
        assert read_model(tmp_path / "model.onnx").class_names == names


def test_what_files_cannot_hold_is_refused(tmp_path: Path) -> None:
    texts = TableEncoding((Column("size"), Column("colour", ("blue", "red", "white"))), ("kind",), True)
    with pytest.raises(UsageError, match=r"several inputs of the texts in the column 'colour' .*model\.network"):
        to_onnx(of_rows(encoding=texts), tmp_path / "model.onnx")
    resized = Model(of_images(Scaling(1, 0, 1)).network, "mse", False, resize="bilinear")
    with pytest.raises(UsageError, match="resizes images before the first layer"):
        to_onnx(resized, tmp_path / "model.onnx")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        "3",
        "{}",
        json.dumps({"loss": ["mse"], "classes": True}),
        json.dumps({"loss": "mse", "classes": 1}),
        json.dumps({"loss": "mse", "classes": True, "class_names": ["a", "b"]}),
        json.dumps({"loss": "mse", "classes": True, "class_names": ["a", "b", "b"]}),
        json.dumps({"loss": "mse", "classes": True, "table": {"columns": [{}]}}),
    ],
    ids=range(10),
)
def test_metadata_that_are_not_sound_are_refused_in_a_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    to_onnx(of_rows(), path)
    proto = onnx.load(path)
    proto.metadata_props[0].value = text
    onnx.save(proto, path)
    with pytest.raises(FileFormatError, match="its metadata 'sparsenn' are invalid") as caught:
        read_model(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_model_in_hdf5_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    write_model(path, Model(Network((Linear(np.eye(2)),)), "mse", False))
    with pytest.raises(FileFormatError, match="is HDF5, not ONNX"):
        from_onnx(path)


def test_the_layout_of_inputs_comes_back(tmp_path: Path) -> None:
    layout = InputLayout((2, 1), channels_last=True)
    to_onnx(Model(Network((Linear(np.eye(2)),), input_layout=layout), "mse", False), tmp_path / "m.onnx")
    assert read_model(tmp_path / "m.onnx").network.input_layout == layout
