"""datasets/lenet86*.h5, which tools/train_lenet86.py writes: what they hold is what the file of classes says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from sparsenn.io import read_model
from sparsenn.layers import Linear, Softmax, SparseLinear


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
