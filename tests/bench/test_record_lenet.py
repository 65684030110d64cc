"""The recorded network of images: what is timed is right, and wrong predictions are not recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import image_timing
import numpy as np
import pytest
import record_lenet
from idx_files import write_idx
from kernel_registry import let_auto_take
from results_file import read_results

from sparsenn import backends
from sparsenn.backends import oracle as reference
from sparsenn.formats import from_dense
from sparsenn.io import write_model
from sparsenn.layers import Conv2d, Flatten, Identity, Linear, MaxPool2d, ReLU, Softmax, SparseLinear
from sparsenn.model import Model
from sparsenn.network import Network
from sparsenn.training import resize_bilinear

Record = Callable[..., int]


def networks() -> dict[str, Network]:
    """A small network of 8 × 8 images, and one with sparse layers in place of dense ones."""
    rng = np.random.default_rng(12)
    front = (
        *(Conv2d(rng.normal(size=(3, 1, 3, 3)), rng.normal(size=3)), MaxPool2d(2)),
        *(Conv2d(rng.normal(size=(5, 3, 2, 2)), rng.normal(size=5)), Flatten()),
    )
    weights = rng.normal(size=(20, 12)), rng.normal(size=(12, 4))
    dense = (Linear(weights[0], None, ReLU()), Linear(weights[1], None, Identity()))
    from scipy.sparse import csc_array

    pruned = [csc_array(np.where(np.abs(matrix) > 0.7, matrix, 0)) for matrix in weights]
    sparse = (
        SparseLinear.from_scipy(pruned[0], 0.1, ReLU()),
        SparseLinear.from_scipy(pruned[1], None, Identity()),
    )
    return {
        name: Network((*front, *rest, Softmax()), (1, 8, 8)) for name, rest in (("net", dense), ("net-pruned", sparse))
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models, images, labels, and the classes that the reference predicts."""
    monkeypatch.setattr(
        record_lenet, "results_path", lambda name, folder=None: tmp_path / (folder or "desk") / f"{name}.json"
    )
    monkeypatch.setattr(record_lenet, "torch", None)
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (300, 5, 6)).astype(np.uint8)
    write_idx(tmp_path / "images.idx", images)
    rows = from_dense(resize_bilinear(images, 8, 8).reshape(300, -1))
    classes = {}
    for name, network in networks().items():
        path = tmp_path / f"{name}.h5"
        write_model(path, Model(network, "cross_entropy", True, {}, "bilinear"))
        predicted = reference.run(network, rows).toarray().argmax(axis=1)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        classes[path.name] = {"sha256": digest, "accuracy": 1.0, "classes": predicted.tolist()}
    labels = np.array(classes["net.h5"]["classes"])
    labels[:30] = (labels[:30] + 1) % 4
    write_idx(tmp_path / "labels.idx", labels.astype(np.uint8))
    (tmp_path / "classes.json").write_text(json.dumps(classes))
    return tmp_path


@pytest.fixture
def record(folder: Path) -> Record:
    def run(*arguments: Any) -> int:
        files = [folder / name for name in ("net.h5", "images.idx", "labels.idx")]
        how = ("--device", "cpu", "--batches", 100, 1000, "--runs", 3, "--classes", folder / "classes.json")
        return record_lenet.main([str(part) for part in (*how, *arguments, *files)])

    return run


def test_every_network_has_its_row_for_each_batch(record: Record, folder: Path) -> None:
    assert record("--machine", "lab") == 0
    result = read_results(folder / "lab" / "lenet.json")
    found = [(row["images"], row["network"], row["precision"], row["method"]) for row in result.rows]
    methods = [
        (images, network, "float32", method)
        for images in (100, 300)
        for network, method in (("whole", "sparsenn"), ("pruned", "sparsenn"))
    ]
    assert found == methods
    for row in result.rows:
        assert row["differing"] == 0
        assert 0 < row["first_convolution"] < 1e4
        assert 0 < row["second_convolution"] < 1e4
        assert row["runs"] == 3
        assert row["rate"] == pytest.approx(1e3 * row["images"] / row["milliseconds"])
        layers = [tuple(part["layers"]) for part in row["layer_times"]]
        dense = [(5, 6)] if row["network"] == "whole" else [(5, 5), (6, 6)]
        assert layers == [(1, 1), (2, 2), (3, 3), (4, 4), *dense, (7, 7)]
    whole = [row["accuracy"] for row in result.rows if row["network"] == "whole"]
    assert whole == [0.7, 0.9]
    assert any("in tf32" in note for note in result.notes)
    assert "PyTorch was not there to compare with." in result.notes


def test_the_pruned_network_is_recorded_in_each_precision_that_its_convolutions_have(
    record: Record, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = backends.kernel_named("conv2d", "conv_direct", "cpu")
    let_auto_take(monkeypatch, direct, replace(direct, name="rounded", summary="rounded", precision="tf32"))
    assert record() == 0
    result = read_results(folder / "desk" / "lenet.json")
    pruned = [row for row in result.rows if row["network"] == "pruned" and row["images"] == 100]
    assert [row["precision"] for row in pruned] == ["float32", "tf32"]
    kernels = [[part["kernel"] for part in row["layer_times"]] for row in pruned]
    assert [(names[0], names[2]) for names in kernels] == [("conv_direct", "conv_direct"), ("rounded", "rounded")]
    assert kernels[0][4:6] == kernels[1][4:6]
    notes = [note for note in result.notes if note.startswith("The pruned network in ")]
    assert notes == [
        "The pruned network in float16: convolutions are not multiplied in float16 on cpu; known: float32, tf32."
    ]


def test_wrong_predictions_are_not_recorded(record: Record, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classes = json.loads((folder / "classes.json").read_text())
    classes["net-pruned.h5"]["classes"][7] += 1
    (folder / "classes.json").write_text(json.dumps(classes))
    assert record() == 1
    assert "1 of 100 predictions are wrong" in capsys.readouterr().err
    assert not (folder / "desk").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sha256": "0"}, "holds the classes of another net.h5"),
        ({"classes": [1, 2]}, "holds 2 classes for 300 images"),
    ],
)
def test_classes_of_something_else(
    record: Record, folder: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], told: str
) -> None:
    classes = json.loads((folder / "classes.json").read_text())
    classes["net.h5"] |= change
    (folder / "classes.json").write_text(json.dumps(classes))
    assert record() == 2
    assert told in capsys.readouterr().err


def test_no_model(record: Record, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "net.h5").unlink()
    assert record() == 2
    assert "no such file" in capsys.readouterr().err


def test_steps_give_what_the_network_gives() -> None:
    rows = np.random.default_rng(2).random((70, 64)).astype(np.float32)
    network, values = networks()["net"], rows
    for step in record_lenet.steps_of(network, "cpu", "float32", 70):
        values = step.run(values)
    expected = reference.run(network, from_dense(rows)).toarray()
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.alone
def test_steps_on_a_gpu() -> None:
    rows = np.random.default_rng(2).random((70, 64)).astype(np.float32)
    network, device = networks()["net"], image_timing.Gpu()
    values = device.place_rows(rows, "float32")
    for step in record_lenet.steps_of(network, "cuda", "float32", 70):
        call = lambda step=step, values=values: step.run(values)  # noqa: E731 - kept for this step and its values
        for seconds in (device.seconds(call, 3), device.captured_seconds(call, 3) if step.captures else [0.5]):
            assert seconds is None or all(0 <= second < 1 for second in seconds)
        values = call()
    expected = reference.run(network, from_dense(rows)).toarray()
    np.testing.assert_allclose(device.fetch(values), expected, rtol=1e-3, atol=1e-5)


def test_medians_and_quartiles() -> None:
    assert record_lenet.summary([0.001, 0.004, 0.002, 0.003, 0.005]) == pytest.approx((3.0, 3.0))
    assert record_lenet.summary([0.25]) == pytest.approx((250.0, 0.0))
