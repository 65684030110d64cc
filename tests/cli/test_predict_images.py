"""`sparsenn predict` and `sparsenn info` with models of images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Refused, Run
from idx_files import write_idx
from scipy.sparse import csc_array
from typer.testing import Result

from sparsenn.backends import oracle as reference
from sparsenn.formats import InputLayout, from_dense
from sparsenn.io import read_idx, write_model
from sparsenn.layers import AvgPool2d, Conv2d, Flatten, Identity, Linear, MaxPool2d, ReLU, Softmax, SparseLinear
from sparsenn.model import Model
from sparsenn.network import Network
from sparsenn.training import resize_bilinear

ROWS, CLASSES = 60, 4


def network(softmax: bool = True, sparse: bool = False) -> Network:
    """Of 1 × 12 × 10 pixels."""
    rng = np.random.default_rng(31)
    weights = [rng.normal(size=(24, 9)) / 4, rng.normal(size=(9, CLASSES)) / 4]
    dense: list[Any] = [Linear(weights[0], None, ReLU()), Linear(weights[1], rng.normal(size=CLASSES), Identity())]
    if sparse:
        kept = [csc_array(np.where(np.abs(matrix) > 0.1, matrix, 0)) for matrix in weights]
        activations = (ReLU(), Identity())
        dense = [SparseLinear.from_scipy(kept[number], 0.25, activations[number]) for number in (0, 1)]
    layers = (
        *(Conv2d(rng.normal(size=(4, 1, 3, 3)), rng.normal(size=4), padding=1), MaxPool2d(2)),
        *(Conv2d(rng.normal(size=(6, 4, 3, 2)), None, ReLU()), AvgPool2d(2), Flatten(), *dense),
    )
    return Network((*layers, Softmax()) if softmax else layers, (1, 12, 10))


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(32).integers(0, 256, (ROWS, 6, 5)).astype(np.uint8)


@pytest.fixture
def outputs(images: np.ndarray) -> np.ndarray:
    """The float64 probabilities of the dense network."""
    rows = resize_bilinear(images, 12, 10).reshape(ROWS, -1)
    return np.asarray(reference.run(network(), from_dense(rows)).toarray())


@pytest.fixture
def labels(outputs: np.ndarray) -> np.ndarray:
    """What the network says, but for every fourth row."""
    found = outputs.argmax(axis=1)
    found[::4] = (found[::4] + 1) % CLASSES
    return found.astype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path, images: np.ndarray, labels: np.ndarray) -> Path:
    """Images and labels as MNIST names them, and the model."""
    write_idx(tmp_path / "some-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "some-labels-idx1-ubyte.gz", labels)
    write_model(tmp_path / "net.h5", model())
    return tmp_path


def model(softmax: bool = True, sparse: bool = False, resize: str | None = "bilinear") -> Model:
    return Model(network(softmax, sparse), "cross_entropy", True, {"data": "noise"}, resize)


@pytest.fixture
def predict(run: Run, folder: Path) -> Run:
    """Run the model on the images, on the CPU; options come on top."""

    def invoke(*options: object, name: str = "net.h5", inputs: str = "some-images-idx3-ubyte.gz") -> Result:
        return run("predict", folder / name, folder / inputs, "--device", "cpu", *options)

    return invoke


def test_summary_and_table(predict: Run) -> None:
    done = predict("--stats")
    text = " ".join(done.stdout.split())
    for fragment in (
        "model net.h5",
        "network 1 × 12 × 10 → 4 × 12 × 10 → 4 × 6 × 5 → 6 × 4 × 4 → 6 × 2 × 2 → 24 → 9 → 4 → 4;",
        "some-images-idx3-ubyte.gz, 60 rows, enlarged to 1 × 12 × 10",
        "plan 60 samples",
        "accuracy 75.00 %, over 60 rows",
        "cross_entropy",
        "rows/s",
        "layer ┃ what ┃ kernel ┃ outputs ┃ time (ms)",
    ):
        assert fragment in text
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    assert [row[:2] for row in rows] == [
        ["1", "convolution 3 × 3, padding 1 × 1"],
        ["2", "max-pool 2 × 2"],
        ["3", "convolution 3 × 2"],
        ["4", "average pool 2 × 2"],
        ["5", "flatten"],
        ["6", "dense"],
        ["7", "dense"],
        ["8", "softmax"],
    ]
    assert [row[3] for row in rows] == ["4 × 12 × 10", "4 × 6 × 5", "6 × 4 × 4", "6 × 2 × 2", "24", "9", "4", "4"]
    assert all(float(row[4].replace(",", "")) >= 0 for row in rows)  # a second or more where it is compiled first
    assert "layer ┃ what" not in predict().stdout


def test_json_holds_it_all(predict: Run, outputs: np.ndarray, labels: np.ndarray) -> None:
    done = predict("--json", "-")
    found = json.loads(done.stdout)
    assert list(found) == [
        *("model", "inputs", "rows", "scaling", "image", "enlarged", "loss", "value", "accuracy", "device", "plan"),
        *("notes", "seconds", "multiply_adds", "per_layer", "class_names", "predicted"),
    ]
    assert "plan" in done.stderr
    assert (found["rows"], found["image"], found["enlarged"]) == (ROWS, [1, 12, 10], True)
    assert found["predicted"] == outputs.argmax(axis=1).tolist()
    assert found["accuracy"] == (outputs.argmax(axis=1) == labels).mean() == 0.75
    assert found["value"] == pytest.approx(-np.log(outputs[np.arange(ROWS), labels]).mean(), rel=1e-4)
    assert [layer["outputs"] for layer in found["per_layer"]] == [list(shape) for shape in network().shapes[1:]]
    assert found["seconds"]["compute"] >= sum(layer["seconds"] for layer in found["per_layer"]) > 0
    assert found["multiply_adds"] == 4 * 9 * 120 + 6 * 24 * 16 + 24 * 9 + 9 * 4


@pytest.mark.parametrize(("softmax", "sparse"), [(False, False), (True, True), (False, True)])
def test_raw_scores_and_sparse_layers(
    predict: Run, folder: Path, images: np.ndarray, labels: np.ndarray, softmax: bool, sparse: bool
) -> None:
    write_model(folder / "other.h5", model(softmax, sparse))
    found = json.loads(predict("--json", "-", name="other.h5").stdout)
    rows = resize_bilinear(images, 12, 10).reshape(ROWS, -1)
    scores = reference.run(network(False, sparse), from_dense(rows)).toarray()
    assert found["predicted"] == scores.argmax(axis=1).tolist()
    assert found["accuracy"] == (scores.argmax(axis=1) == labels).mean()
    exact = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(ROWS), labels]
    assert found["value"] == pytest.approx(exact.mean(), rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_pruned_networks_take_lower_precisions_on_a_gpu(run: Run, folder: Path, precision: str) -> None:
    write_model(folder / "pruned.h5", model(sparse=True))
    inputs = folder / "some-images-idx3-ubyte.gz"
    how = (inputs, "--device", "cuda", "--json", "-")
    exact = json.loads(run("predict", folder / "pruned.h5", *how).stdout)
    found = json.loads(run("predict", folder / "pruned.h5", *how, "--precision", precision).stdout)
    assert {layer["precision"] for layer in found["per_layer"]} <= {"float32", precision, None}
    assert found["value"] == pytest.approx(exact["value"], rel=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("sparse", [False, True])
def test_on_a_gpu(run: Run, folder: Path, images: np.ndarray, sparse: bool) -> None:
    write_model(folder / "other.h5", model(sparse=sparse))
    inputs = folder / "some-images-idx3-ubyte.gz"
    done = run("predict", folder / "other.h5", inputs, "--device", "cuda", "--json", "-")
    rows = from_dense(resize_bilinear(images, 12, 10).reshape(ROWS, -1))
    expected = reference.run(network(sparse=sparse), rows).toarray()
    found = json.loads(done.stdout)
    assert found["predicted"] == expected.argmax(axis=1).tolist()
    assert [layer["rows"] for layer in found["per_layer"]][:2] == [ROWS, ROWS]


@pytest.mark.parametrize(
    ("options", "name", "message"),
    [
        ((), "cut.h5", "cut.h5"),
        (("--precision", "float16"), "net.h5", "float16"),
        (("--memory-limit", "100"), "net.h5", "does not hold one row"),
        (("--output", "r.txt"), "net.h5", "use .csv, .tsv, .parquet"),
    ],
)
def test_what_is_refused(refused: Refused, folder: Path, options: tuple[str, ...], name: str, message: str) -> None:
    (folder / "cut.h5").write_bytes((folder / "net.h5").read_bytes()[:-100])
    inputs = "some-images-idx3-ubyte.gz"
    refused(("predict", name, inputs, "--device", "cpu", "--output", "r.tsv", *options), message)


def first_images(path: Path, folder: Path, count: int) -> Path:
    """The first images of a file as MNIST names them, and their labels, in files of their own."""
    for kind in ("images-idx3", "labels-idx1"):
        name = path.name.replace("images-idx3", kind)
        write_idx(folder / name, read_idx(path.with_name(name))[:count])
    return folder / path.name


@pytest.mark.parametrize("name", ["lenet86.h5", "lenet86-pruned.h5"])
def test_committed_model_predicts_what_pytorch_did(
    run: Run, repository: Path, mnist_folder: Path, tmp_path: Path, name: str
) -> None:
    path, classes = repository / "datasets" / name, repository / "datasets" / "lenet86-classes.json"
    if not path.is_file():
        pytest.skip(f"the model is not here: no file {path}")
    inputs = mnist_folder / "t10k-images-idx3-ubyte.gz"
    found = json.loads(
        run("predict", path, first_images(inputs, tmp_path, 500), "--device", "cpu", "--json", "-").stdout
    )
    said = json.loads(classes.read_text())[name]["classes"]
    assert found["predicted"] == said[:500]
    assert found["accuracy"] > 0.95


def test_channels_that_are_last_as_the_model_has_them(predict: Run, tmp_path: Path) -> None:
    images = np.random.default_rng(34).random((7, 3, 4, 2)).astype(np.float32)
    layers = Conv2d(np.arange(6.0).reshape(2, 3, 1, 1), activation=Identity()), Flatten()
    network = Network(layers, (3, 4, 2), input_layout=InputLayout((4, 2, 3), channels_last=True))
    write_model(tmp_path / "net.h5", Model(network, "mse", False))
    results = []
    for given in (images, np.moveaxis(images, 1, -1)):
        np.save(tmp_path / "images.npy", given)
        options = ("--mean", "0.1,0.2,0.3", "--output", tmp_path / "outputs.npy")
        predict(*options, name=tmp_path / "net.h5", inputs=tmp_path / "images.npy")
        results.append(np.load(tmp_path / "outputs.npy"))
    np.testing.assert_array_equal(*results)
