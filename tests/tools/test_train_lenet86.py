"""tools/train_lenet86.py: what becomes of PyTorch's parameters, which weights go, and what is refused."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from idx_files import write_idx
from scipy.signal import correlate2d

from sparsenn.backends import oracle as reference
from sparsenn.errors import InputError, SparseNNError, UsageError
from sparsenn.formats import from_dense
from sparsenn.io import read_model, write_model
from sparsenn.layers import Linear, Softmax, SparseLinear

SHAPES = {
    "conv1.weight": (4, 1, 7, 7),
    "conv1.bias": (4,),
    "conv2.weight": (16, 4, 7, 7),
    "conv2.bias": (16,),
    "dense1.weight": (32, 4624),
    "dense1.bias": (32,),
    "dense2.weight": (10, 32),
    "dense2.bias": (10,),
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "tools" / "train_lenet86.py"
    spec = importlib.util.spec_from_file_location("train_lenet86", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def parameters() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(86)
    found = {}
    for name, shape in SHAPES.items():
        size = int(np.prod(shape[1:])) if len(shape) > 1 else 100
        found[name] = (rng.normal(size=shape) / np.sqrt(size)).astype(np.float32)
    return found


def halved(maps: np.ndarray) -> np.ndarray:
    """The largest of each 2 × 2 pixels."""
    return np.max([maps[:, down::2, across::2] for down in (0, 1) for across in (0, 1)], axis=0)


def probabilities(parameters: dict[str, np.ndarray], image: np.ndarray) -> np.ndarray:
    """The network for one image in float64, written down once more, in PyTorch's layout."""
    exact = {name: values.astype(np.float64) for name, values in parameters.items()}
    maps = image[None].astype(np.float64)
    for name in ("conv1", "conv2"):
        filters, bias = exact[f"{name}.weight"], exact[f"{name}.bias"]
        sums = [sum(map(lambda m, f: correlate2d(m, f, "valid"), maps, one)) for one in filters]
        maps = halved(np.maximum(np.array(sums) + bias[:, None, None], 0))
    hidden = np.maximum(exact["dense1.weight"] @ maps.reshape(-1) + exact["dense1.bias"], 0)
    scores = np.exp(exact["dense2.weight"] @ hidden + exact["dense2.bias"])
    return scores / scores.sum()


@pytest.mark.parametrize("pruned", [False, True])
def test_exported_network_computes_what_pytorchs_does(
    tool: ModuleType, parameters: dict[str, np.ndarray], tmp_path: Path, pruned: bool
) -> None:
    if pruned:
        for name in ("dense1.weight", "dense2.weight"):
            parameters[name] *= tool.largest(parameters[name], 0.9)
    model = tool.to_model(parameters, {"seed": "1"}, pruned)
    write_model(tmp_path / "model.h5", model)
    found = read_model(tmp_path / "model.h5")
    assert (found.loss, found.classes, found.resize, found.provenance) == (
        "cross_entropy",
        True,
        "bilinear",
        {"seed": "1"},
    )
    assert found.network.shapes == (
        *((1, 86, 86), (4, 80, 80), (4, 40, 40), (16, 34, 34), (16, 17, 17), (4624,), (32,), (10,), (10,)),
    )
    kind = SparseLinear if pruned else Linear
    assert [type(layer) for layer in found.network][-3:] == [kind, kind, Softmax]
    if pruned:
        assert [layer.edges for layer in found.network][-3:-1] == [14_797, 32]
    images = np.random.default_rng(3).random((2, 86, 86)).astype(np.float32)
    outputs = reference.run(found.network, from_dense(images.reshape(2, -1))).toarray()
    expected = np.array([probabilities(parameters, image) for image in images])
    assert np.ptp(expected, axis=1).min() > 0.01
    np.testing.assert_allclose(outputs, expected, rtol=1e-10)


def test_parameters_that_are_none(tool: ModuleType, parameters: dict[str, np.ndarray]) -> None:
    with pytest.raises(InputError, match="layer 6 takes"):
        tool.to_model(parameters | {"dense1.weight": np.ones((32, 4600), np.float32)}, {})
    parameters["conv1.bias"][2] = np.nan
    with pytest.raises(InputError, match="NaN"):
        tool.to_model(parameters, {})


def test_the_largest_weights_are_kept(tool: ModuleType) -> None:
    weights = np.array([[-3.0, 0.5, 0.0], [2.0, -0.25, 0.5]])
    assert tool.largest(weights, 0.0).all()
    assert not tool.largest(weights, 1.0).any()
    np.testing.assert_array_equal(tool.largest(weights, 0.5), [[True, False, False], [True, False, True]])
    rng = np.random.default_rng(0)
    many = rng.normal(size=(37, 53))
    for zeros in (0.1, 0.5, 0.9, 0.999):
        kept = tool.largest(many, zeros)
        assert np.count_nonzero(~kept) == round(zeros * many.size)
        assert np.abs(many[kept]).min() >= np.abs(many[~kept]).max()


def test_zeros_rise_along_a_cubic(tool: ModuleType) -> None:
    shares = [tool.share_of_zeros(step, 10, 0.8) for step in range(13)]
    assert shares[0] == 0
    assert shares[5] == pytest.approx(0.8 * (1 - 0.5**3))
    assert shares[10:] == [0.8] * 3
    assert shares == sorted(shares)
    assert tool.share_of_zeros(0, 0) == 0.9


def put_mnist(folder: Path, images: Any, labels: Any, suffix: str = ".gz") -> None:
    write_idx(folder / f"t10k-images-idx3-ubyte{suffix}", images)
    write_idx(folder / f"t10k-labels-idx1-ubyte{suffix}", labels)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_read(tool: ModuleType, tmp_path: Path, suffix: str) -> None:
    images, labels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4), np.array([9, 0], np.uint8)
    put_mnist(tmp_path, images, labels, suffix)
    found = tool.read_images(tmp_path, "t10k")
    np.testing.assert_array_equal(found[0], images)
    np.testing.assert_array_equal(found[1], labels)
    with pytest.raises(SparseNNError, match="no such file"):
        tool.read_images(tmp_path, "train")


@pytest.mark.parametrize(
    ("images", "labels", "told"),
    [
        (np.zeros((2, 3, 4), np.uint8), np.zeros(3, np.uint8), r"labels uint8 \(3,\)"),
        (np.zeros((2, 3), np.uint8), np.zeros(2, np.uint8), r"images uint8 \(2, 3\)"),
        (np.zeros((2, 3, 4), np.float32), np.zeros(2, np.uint8), "images float32"),
        (np.zeros((2, 3, 4), np.uint8), np.array([0, 10], np.uint8), "a label of 10 or more"),
    ],
)
def test_mnist_that_is_none(tool: ModuleType, tmp_path: Path, images: Any, labels: Any, told: str) -> None:
    put_mnist(tmp_path, images, labels)
    with pytest.raises(UsageError, match=told):
        tool.read_images(tmp_path, "t10k")


def test_classes_are_written_with_the_checksum_of_the_model(tool: ModuleType, tmp_path: Path) -> None:
    model = tmp_path / "a.h5"
    model.write_bytes(b"model")
    tool.write_classes(tmp_path / "classes.json", {model: (0.75, np.array([3, 1, 4, 1]))})
    found = json.loads((tmp_path / "classes.json").read_text())
    digest = hashlib.sha256(b"model").hexdigest()
    assert found == {"a.h5": {"sha256": digest, "accuracy": 0.75, "classes": [3, 1, 4, 1]}}


def test_without_pytorch(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert tool.main([str(tmp_path), "--output", str(tmp_path / "m.h5")]) == 2
    assert "PyTorch is not there" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def refuse_device(size: int, device: str) -> None:
    if device != "cpu":
        raise RuntimeError("no such device\nmore about it")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--device", "abacus"), "--device abacus: no such device\n"),
        (("--epochs", "0"), "--epochs 0 is not positive"),
        (("--pruning-epochs", "-3"), "--pruning-epochs -3 is not positive"),
        (("--seed", "-1"), "--seed -1"),
        (("--pruned-output", "m.h5"), "must be different files"),
        (("--classes", "none/c.json"), "its folder does not exist"),
        ((), "no such file"),
    ],
)
def test_bad_options(
    tool: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(empty=refuse_device))
    monkeypatch.setattr(tool, "run", lambda torch, options: tool.read_images(options.folder, "train"))
    assert tool.main(["mnist", "--output", "m.h5", "--device", "cpu", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "least"), [("lenet86.h5", 0.985), ("lenet86-pruned.h5", 0.97)])
def test_committed_models_are_what_the_classes_file_says(repository: Path, name: str, least: float) -> None:
    path, classes = repository / "datasets" / name, repository / "datasets" / "lenet86-classes.json"
    if not path.is_file():
        pytest.skip(f"the model is not here: no file {path}")
    model, said = read_model(path), json.loads(classes.read_text())[name]
    assert said["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert len(said["classes"]) == int(model.provenance["test images"]) == 10_000
    assert f"{said['accuracy']:.4f}" == model.provenance["test accuracy"]
    assert said["accuracy"] > least
    assert (model.network.image, model.resize) == ((1, 86, 86), "bilinear")
    kind = SparseLinear if "pruned" in name else Linear
    assert [type(layer) for layer in model.network][-3:] == [kind, kind, Softmax]
