"""tools/train_lenet86.py: what becomes of PyTorch's parameters, which weights go, and what is refused."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.signal import correlate2d

from sparsenn.backends import oracle as reference
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
