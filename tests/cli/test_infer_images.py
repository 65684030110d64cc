"""`sparsenn infer` and `sparsenn info` with models of images."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from idx_files import write_idx
from kernel_registry import let_auto_take
from result_files import result_in
from scipy.sparse import csc_array
from typer.testing import Result

from sparsenn import backends
from sparsenn.backends import oracle as reference
from sparsenn.formats import InputLayout, from_dense
from sparsenn.io import write_model
from sparsenn.layers import AvgPool2d, Conv2d, Flatten, Identity, Linear, MaxPool2d, ReLU, Softmax, SparseLinear
from sparsenn.model import Model
from sparsenn.network import Network
from sparsenn.training import resize_bilinear

Run = Callable[..., Result]
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
def infer(run: Run, folder: Path) -> Run:
    """Run the model on the images, on the CPU; options come on top."""

    def invoke(*options: object, name: str = "net.h5", inputs: str = "some-images-idx3-ubyte.gz") -> Result:
        return run("infer", folder / name, "--inputs", folder / inputs, "--device", "cpu", *options)

    return invoke


def record(done: Result) -> dict[str, Any]:
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_summary_and_table(infer: Run) -> None:
    done = infer()
    assert (done.exit_code, done.stderr) == (0, "")
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
    assert "performed edges" not in done.stdout
    assert "performed edges" in infer("--stats").stdout


def test_json_holds_it_all(infer: Run, outputs: np.ndarray, labels: np.ndarray) -> None:
    done = infer("--json", "-")
    found = record(done)
    assert list(found) == [
        *("model", "inputs", "rows", "scaling", "image", "enlarged", "loss", "value", "accuracy", "device", "plan"),
        *("notes", "seconds", "multiply_adds", "per_layer", "class_names", "predicted"),
    ]
    assert "layers" in done.stderr
    assert (found["rows"], found["image"], found["enlarged"]) == (ROWS, [1, 12, 10], True)
    assert found["predicted"] == outputs.argmax(axis=1).tolist()
    assert found["accuracy"] == (outputs.argmax(axis=1) == labels).mean() == 0.75
    assert found["value"] == pytest.approx(-np.log(outputs[np.arange(ROWS), labels]).mean(), rel=1e-4)
    assert [layer["outputs"] for layer in found["per_layer"]] == [list(shape) for shape in network().shapes[1:]]
    assert found["seconds"]["compute"] >= sum(layer["seconds"] for layer in found["per_layer"]) > 0
    assert found["multiply_adds"] == 4 * 9 * 120 + 6 * 24 * 16 + 24 * 9 + 9 * 4


@pytest.mark.parametrize(("softmax", "sparse"), [(False, False), (True, True), (False, True)])
def test_raw_scores_and_sparse_layers(
    infer: Run, folder: Path, images: np.ndarray, labels: np.ndarray, softmax: bool, sparse: bool
) -> None:
    write_model(folder / "other.h5", model(softmax, sparse))
    found = record(infer("--json", "-", name="other.h5"))
    rows = resize_bilinear(images, 12, 10).reshape(ROWS, -1)
    scores = reference.run(network(False, sparse), from_dense(rows)).toarray()
    assert found["predicted"] == scores.argmax(axis=1).tolist()
    assert found["accuracy"] == (scores.argmax(axis=1) == labels).mean()
    exact = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(ROWS), labels]
    assert found["value"] == pytest.approx(exact.mean(), rel=1e-4)


def test_first_rows_only(infer: Run, outputs: np.ndarray) -> None:
    found = record(infer("--json", "-", "--samples", 13))
    assert found["rows"] == 13
    assert found["predicted"] == outputs[:13].argmax(axis=1).tolist()
    assert found["accuracy"] == 9 / 13
    assert record(infer("--json", "-", "--samples", 10**9))["rows"] == ROWS


def test_batches_and_memory(infer: Run) -> None:
    whole = record(infer("--json", "-"))
    batches = record(infer("--json", "-", "--batch-size", 7))
    assert (batches["plan"]["batch_size"], batches["plan"]["batches"]) == (7, 9)
    limited = record(infer("--json", "-", "--memory-limit", 0.0001))
    assert limited["plan"]["memory_limit"] == 100_000
    assert limited["plan"]["batches"] > 1
    for found in (batches, limited):
        assert found["predicted"] == whole["predicted"]
        assert all(layer["rows"] == ROWS for layer in found["per_layer"])


def test_device_and_kernel_are_obeyed(run: Run, infer: Run, folder: Path) -> None:
    images = folder / "some-images-idx3-ubyte.gz"
    found = record(run("infer", folder / "net.h5", "--inputs", images, "--device", "reference", "--json", "-"))
    assert "reference" in found["device"]
    for kernel in ("conv_direct", "conv_sequential"):
        found = record(infer("--json", "-", "--kernel", kernel))
        assert [found["per_layer"][place]["kernel"] for place in (0, 2)] == [kernel] * 2


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of convolutions for the CPU that rounds its factors to half precision, kept for one test."""
    direct = backends.kernel_named("conv2d", "conv_direct", "cpu")

    def rounded(layer: Conv2d, images: np.ndarray) -> Any:
        return direct.launch(replace(layer, weights=to_half(layer.weights)), to_half(images))

    def to_half(numbers: np.ndarray) -> np.ndarray:
        return numbers.astype(np.float16).astype(np.float32)

    kernel = replace(direct, name="rounded", summary="rounded", launch=rounded, run_stack=None, precision="float16")
    let_auto_take(monkeypatch, direct, kernel)


@pytest.mark.usefixtures("half")
def test_sparse_layers_beside_convolutions_of_half_precision(infer: Run, folder: Path) -> None:
    write_model(folder / "pruned.h5", model(sparse=True))
    exact = record(infer("--json", "-", name="pruned.h5"))
    done = infer("--json", "-", "--precision", "float16", name="pruned.h5")
    found = record(done)
    assert "Layers multiplied in float16: 1, 3; in float32: 6–7." in " ".join(done.stderr.split())
    multiplied = ["float16", None, "float16", None, None, "float32", "float32", None]
    assert [layer["precision"] for layer in found["per_layer"]] == found["plan"]["precisions"] == multiplied
    assert [layer["precision"] for layer in exact["per_layer"]] == [name and "float32" for name in multiplied]
    assert [found["per_layer"][place]["kernel"] for place in (0, 2)] == ["rounded"] * 2
    assert 0 < abs(found["value"] - exact["value"]) < 1e-2 * exact["value"]


@pytest.mark.parametrize("precision", ["tf32", "float16"])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_pruned_and_whole_networks_are_refused_alike(run: Run, folder: Path, precision: str, device: str) -> None:
    write_model(folder / "pruned.h5", model(sparse=True))
    inputs = folder / "some-images-idx3-ubyte.gz"
    for name in ("net.h5", "pruned.h5"):
        done = run("infer", folder / name, "--inputs", inputs, "--device", device, "--precision", precision)
        assert (done.exit_code, done.stdout) == (2, "")
        told = f"convolutions are not multiplied in {precision} on {device}; known: float32"
        assert told in " ".join(done.stderr.split())


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_pruned_networks_take_lower_precisions_on_a_gpu(run: Run, folder: Path, precision: str) -> None:
    write_model(folder / "pruned.h5", model(sparse=True))
    inputs = folder / "some-images-idx3-ubyte.gz"
    how = ("--inputs", inputs, "--device", "cuda", "--json", "-")
    exact = record(run("infer", folder / "pruned.h5", *how))
    found = record(run("infer", folder / "pruned.h5", *how, "--precision", precision))
    assert {layer["precision"] for layer in found["per_layer"]} <= {"float32", precision, None}
    assert found["value"] == pytest.approx(exact["value"], rel=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("sparse", [False, True])
def test_on_a_gpu(run: Run, folder: Path, images: np.ndarray, sparse: bool) -> None:
    write_model(folder / "other.h5", model(sparse=sparse))
    inputs = folder / "some-images-idx3-ubyte.gz"
    done = run("infer", folder / "other.h5", "--inputs", inputs, "--device", "cuda", "--json", "-", "--batch-size", 50)
    rows = from_dense(resize_bilinear(images, 12, 10).reshape(ROWS, -1))
    expected = reference.run(network(sparse=sparse), rows).toarray()
    found = record(done)
    assert found["predicted"] == expected.argmax(axis=1).tolist()
    assert [layer["rows"] for layer in found["per_layer"]][:2] == [ROWS, ROWS]


def test_labels_named_by_hand(infer: Run, folder: Path, labels: np.ndarray) -> None:
    write_idx(folder / "truth.idx", (labels + 1) % CLASSES)
    assert record(infer("--json", "-", "--labels", folder / "truth.idx"))["accuracy"] < 0.75


@pytest.mark.parametrize("kind", ["h5", "csv", "idx"])
def test_rows_of_the_models_width(
    infer: Run, folder: Path, images: np.ndarray, outputs: np.ndarray, labels: np.ndarray, kind: str
) -> None:
    rows = resize_bilinear(images, 12, 10)
    name = f"rows.{kind}"
    if kind == "h5":
        with h5py.File(folder / name, "w") as file:
            file["inputs"], file["labels"] = rows.reshape(ROWS, -1), labels
    elif kind == "csv":
        lines = (
            ",".join(map(repr, row)) + f",{label}\n"
            for row, label in zip(rows.reshape(ROWS, -1).astype(float).tolist(), labels, strict=True)
        )
        (folder / name).write_text("".join(lines))
    else:
        write_idx(folder / name, rows)
    labelled = {"idx": ("--labels", folder / "some-labels-idx1-ubyte.gz"), "csv": ("--targets", 1)}
    options = labelled.get(kind, ())
    found = record(infer("--json", "-", *options, inputs=name))
    assert not found["enlarged"]
    assert found["predicted"] == outputs.argmax(axis=1).tolist()
    assert found["accuracy"] == 0.75


def test_files(infer: Run, folder: Path, outputs: np.ndarray) -> None:
    files = {option: folder / name for option, name in (("--json", "r.json"), ("--plot", "r.svg"))}
    assert infer("--output", folder / "r.h5", *(part for pair in files.items() for part in pair)).exit_code == 0
    found, categories, notes = result_in(folder / "r.h5")
    np.testing.assert_allclose(found.to_scipy().toarray(), outputs, rtol=1e-4, atol=1e-7)
    assert categories.tolist() == list(range(ROWS))
    assert notes["model"] == "net.h5"
    assert json.loads(files["--json"].read_text())["accuracy"] == 0.75
    assert "<svg" in files["--plot"].read_text()
    assert infer("--output", folder / "r.tsv").exit_code == 0
    assert (folder / "r.tsv").read_text().split("\n") == [*map(str, outputs.argmax(axis=1)), ""]


def test_outputs_that_are_no_classes(infer: Run, folder: Path, images: np.ndarray) -> None:
    write_model(folder / "numbers.h5", Model(network(softmax=False), "mse", False))
    rows = resize_bilinear(images, 12, 10).reshape(ROWS, -1)
    scores = np.asarray(reference.run(network(softmax=False), from_dense(rows)).toarray())
    with h5py.File(folder / "rows.h5", "w") as file:
        file["inputs"], file["targets"] = rows, scores
    found = record(infer("--json", "-", "--output", folder / "r.tsv", name="numbers.h5", inputs="rows.h5"))
    assert (found["predicted"], found["accuracy"]) == (None, None)
    assert 0 <= found["value"] < 1e-8
    np.testing.assert_allclose(np.loadtxt(folder / "r.tsv", delimiter="\t"), scores, rtol=1e-4, atol=1e-5)


def write_bad(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Files that do not fit, one for each way."""
    write_idx(folder / "short.idx", labels[:-1])
    write_idx(folder / "high.idx", labels + 10)
    write_idx(folder / "floats.idx", labels.astype(np.float32))
    write_idx(folder / "large.idx", np.zeros((ROWS, 13, 5), np.uint8))
    write_idx(folder / "colours.idx", np.zeros((ROWS, 3, 5, 5), np.uint8))
    write_idx(folder / "none.idx", np.zeros((0, 6, 5), np.uint8))
    pixels = images.astype(np.float32)
    pixels[7, 2, 3] = np.nan
    write_idx(folder / "nan.idx", pixels)
    with h5py.File(folder / "narrow.h5", "w") as file:
        file["inputs"], file["labels"] = images.reshape(ROWS, -1), labels
    write_model(folder / "fixed.h5", model(resize=None))
    (folder / "cut.h5").write_bytes((folder / "net.h5").read_bytes()[:-100])


@pytest.mark.parametrize(
    ("options", "files", "told"),
    [
        (
            ("--labels", "short.idx"),
            {},
            "short.idx: holds uint8 of shape (59,); a label for each of 60 images is needed",
        ),
        (("--labels", "high.idx"), {}, "labels are whole numbers from 0 to 3"),
        (("--labels", "floats.idx"), {}, "floats.idx: holds float32"),
        (("--labels", "absent.idx"), {}, "absent.idx: no such file"),
        ((), {"inputs": "absent-images-idx3-ubyte"}, "no such file"),
        ((), {"inputs": "nan.idx"}, "row 8 of the inputs holds a number that is not finite"),
        (("--labels", "some-labels-idx1-ubyte.gz"), {"inputs": "nan.idx"}, "row 8 of the inputs holds a number that"),
        (("--labels", "some-labels-idx1-ubyte.gz"), {"inputs": "large.idx"}, "1 channel of 13 × 5 pixels; the model"),
        (("--labels", "some-labels-idx1-ubyte.gz"), {"inputs": "colours.idx"}, "3 channels of 5 × 5 pixels"),
        (("--labels", "some-labels-idx1-ubyte.gz"), {"inputs": "none.idx"}, "a label for each of 0 images is needed"),
        ((), {"inputs": "narrow.h5"}, "narrow.h5 does not fit"),
        ((), {"inputs": "narrow.h5"}, "the rows hold 30 numbers; the model takes rows of 120, images of 1 channel of"),
        ((), {"name": "fixed.h5"}, "the model takes 1 channel of 12 × 10 pixels, and does not enlarge images"),
        ((), {"name": "cut.h5"}, "cut.h5"),
        (("--kernel", "conjured"), {}, "conjured"),
        (("--precision", "float16"), {}, "float16"),
        (("--precision", "int8"), {}, "unknown precision 'int8'"),
        (("--device", "abacus"), {}, "unknown device 'abacus'"),
        (("--batch-size", "0"), {}, "--batch-size"),
        (("--samples", "0"), {}, "--samples"),
        (("--memory-limit", "nan"), {}, "--memory-limit nan"),
        (("--memory-limit", "0.0000001"), {}, "does not hold one row"),
        (("--output", "r.txt"), {}, "use .tsv, .csv, .npy, .npz, .h5, .hdf5"),
        (("--json", "none/r.json"), {}, "the folder none does not exist"),
        (("--neurons", "120"), {}, "--neurons goes with a dataset"),
        (("--bias", "1"), {}, "--bias goes with a dataset"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_what_is_refused(
    infer: Run,
    folder: Path,
    images: np.ndarray,
    labels: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    files: dict[str, str],
    told: str,
) -> None:
    write_bad(folder, images, labels)
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    done = infer("--output", "r.tsv", *options, **files)
    assert (done.exit_code, done.stdout) == (2, "")
    assert told in " ".join(done.stderr.replace("│", " ").split())
    assert sorted(folder.iterdir()) == before


def test_info(run: Run, folder: Path) -> None:
    write_model(folder / "pruned.h5", model(sparse=True))
    done = run("info", folder / "pruned.h5")
    assert (done.exit_code, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    stored = [layer.edges for layer in network(sparse=True) if isinstance(layer, SparseLinear)]
    for fragment in (
        "model pruned.h5 network 8 layers, 120 inputs → 4 outputs",
        "images 1 × 12 × 10 (channels × height × width); smaller ones are enlarged: bilinear",
        f"multiply-adds {4 * 9 * 120 + 6 * 24 * 16 + sum(stored):,} per sample",
        "probabilities of classes; loss: cross_entropy",
        "data: noise",
        "│ inputs │ 1 × 12 × 10 │",
        "│ 1 │ convolution 3 × 3, padding 1 × 1 │ 4 × 12 × 10 │ 40 │ 4,320 │ relu │",
        "│ 2 │ max-pool 2 × 2 │ 4 × 6 × 5 │ – │ – │ – │",
        f"│ {stored[0] + 9:,} │ {stored[0]:,} │ relu │",
        f"│ {stored[1] + 4:,} │ {stored[1]:,} │ identity │",
    ):
        assert fragment in text


@pytest.mark.usefixtures("half")
def test_committed_pruned_model_in_half_precision(run: Run, repository: Path, mnist_folder: Path) -> None:
    path, classes = repository / "datasets" / "lenet86-pruned.h5", repository / "datasets" / "lenet86-classes.json"
    if not path.is_file():
        pytest.skip(f"the model is not here: no file {path}")
    inputs = mnist_folder / "t10k-images-idx3-ubyte.gz"
    how = ("--device", "cpu", "--precision", "float16", "--samples", 100, "--json", "-")
    found = record(run("infer", path, "--inputs", inputs, *how))
    assert found["predicted"] == json.loads(classes.read_text())[path.name]["classes"][:100]
    assert [layer["precision"] for layer in found["per_layer"]][5:7] == ["float32"] * 2


@pytest.mark.parametrize("name", ["lenet86.h5", "lenet86-pruned.h5"])
def test_committed_model_predicts_what_pytorch_did(run: Run, repository: Path, mnist_folder: Path, name: str) -> None:
    path, classes = repository / "datasets" / name, repository / "datasets" / "lenet86-classes.json"
    if not path.is_file():
        pytest.skip(f"the model is not here: no file {path}")
    inputs = mnist_folder / "t10k-images-idx3-ubyte.gz"
    found = record(run("infer", path, "--inputs", inputs, "--device", "cpu", "--samples", 500, "--json", "-"))
    said = json.loads(classes.read_text())[name]["classes"]
    assert found["predicted"] == said[:500]
    assert found["accuracy"] > 0.95


def test_a_pruned_model_runs_and_the_summary_says_what_that_means(infer: Run, folder: Path) -> None:
    found = record(infer("--prune", 0.25, "--json", "-"))
    pruned = network().pruned(0.25)
    told = f"{network().nonzeros - pruned.nonzeros:,} of {network().nonzeros:,} weights were set to zero"
    assert any(told in note and "loses accuracy" in note for note in found["notes"])
    assert [layer["what"].split(",")[0] for layer in found["per_layer"][5:7]] == ["sparse", "sparse"]
    summary = infer("--prune", 0.25, "--output", folder / "found.h5")
    assert summary.exit_code == 0
    assert told in " ".join(summary.stdout.split())
    assert told.encode() in (folder / "found.h5").read_bytes()
    untouched = record(infer("--json", "-"))
    assert not any("set to zero" in note for note in untouched["notes"])


@pytest.mark.parametrize("shape", [(ROWS, 12, 10, 1), (ROWS, 1, 12, 10), (ROWS, 12, 10)])
def test_images_of_one_channel_in_any_shape(run: Run, infer: Run, tmp_path: Path, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(33).random((ROWS, 120)).astype(np.float32)
    write_model(tmp_path / "net.h5", model(resize=None))
    results = []
    for given in (pixels, pixels.reshape(shape)):
        np.save(tmp_path / "pixels.npy", given)
        done = infer("--output", tmp_path / "outputs.npy", name=tmp_path / "net.h5", inputs=tmp_path / "pixels.npy")
        assert done.exit_code == 0, done.output
        results.append(np.load(tmp_path / "outputs.npy"))
    np.testing.assert_array_equal(*results)


def test_channels_that_are_last_as_the_model_has_them(infer: Run, tmp_path: Path) -> None:
    images = np.random.default_rng(34).random((7, 3, 4, 2)).astype(np.float32)
    layers = Conv2d(np.arange(6.0).reshape(2, 3, 1, 1), activation=Identity()), Flatten()
    network = Network(layers, (3, 4, 2), input_layout=InputLayout((4, 2, 3), channels_last=True))
    write_model(tmp_path / "net.h5", Model(network, "mse", False))
    results = []
    for given in (images, np.moveaxis(images, 1, -1)):
        np.save(tmp_path / "images.npy", given)
        options = ("--mean", "0.1,0.2,0.3", "--output", tmp_path / "outputs.npy")
        done = infer(*options, name=tmp_path / "net.h5", inputs=tmp_path / "images.npy")
        assert done.exit_code == 0, done.output
        results.append(np.load(tmp_path / "outputs.npy"))
    np.testing.assert_array_equal(*results)


def test_a_model_given_as_its_inputs_is_told(infer: Run, tmp_path: Path) -> None:
    write_model(tmp_path / "net.h5", model(resize=None))
    np.save(tmp_path / "rows.npy", np.ones((2, 120)))
    done = infer(name=tmp_path / "rows.npy", inputs=tmp_path / "net.h5")
    assert done.exit_code == 2
    assert "net.h5 is a model and" in done.stderr
    assert "give the model first, and --inputs" in done.stderr
