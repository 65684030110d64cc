"""Networks that torch's two exporters and skl2onnx wrote (`make_exported.py`): what they gave, this package gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsenn import Linear, Session, Softmax, SparseLinear, from_onnx, read_model, to_onnx

FOLDER = Path(__file__).parent / "exported"
MODELS = sorted(path.stem for path in FOLDER.glob("*.onnx"))


@pytest.mark.parametrize("name", MODELS)
def test_gives_what_its_maker_gives(name: str, tmp_path: Path) -> None:
    network = from_onnx(FOLDER / f"{name}.onnx")
    with np.load(FOLDER / f"{name}.npz") as kept:
        rows, outputs = kept["rows"].reshape(len(kept["rows"]), -1), kept["outputs"]
    found = Session(network, device="cpu")(rows)
    np.testing.assert_allclose(found, outputs.reshape(found.shape), rtol=2e-5, atol=2e-5)
    to_onnx(network, tmp_path / "again.onnx", sparse=True)
    again = from_onnx(tmp_path / "again.onnx")
    np.testing.assert_allclose(Session(again, device="cpu")(rows), found, rtol=1e-6, atol=1e-6)


def test_there_are_networks_of_many_structures() -> None:
    structures = {name.partition(".")[0] for name in MODELS}
    assert len(structures) >= 30
    assert {name.partition(".")[2] for name in MODELS if "sklearn" not in name} == {"script", "dynamo"}


def test_pruned_layers_are_sparse() -> None:
    network = from_onnx(FOLDER / "mlp-pruned.script.onnx")
    assert all(isinstance(layer, SparseLinear) for layer in network)
    assert network.edges == 60 + 90 + 12


def test_normalisation_and_scaling_leave_no_layer() -> None:
    for name, layers in (("mlp-batchnorm", 2), ("mlp-batchnorm-first", 2), ("mlp-scaled-masked", 2)):
        assert len(from_onnx(FOLDER / f"{name}.dynamo.onnx")) == layers


def test_classes_and_their_labels_are_told() -> None:
    model = read_model(FOLDER / "sklearn-names.onnx")
    assert model.classes
    assert model.provenance["classes"] == "setosa, versicolor, virginica"
    assert isinstance(model.network[-1], Softmax)
    assert read_model(FOLDER / "sklearn-three.onnx").provenance["classes"] == "0, 1, 2"
    two = read_model(FOLDER / "sklearn-two.onnx")
    assert (two.classes, two.network.outputs) == (True, 2)
    regression = read_model(FOLDER / "sklearn-regression.onnx")
    assert not regression.classes
    assert isinstance(regression.network[-1], Linear)
