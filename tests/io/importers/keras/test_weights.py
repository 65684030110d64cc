"""Weights of Keras's models are found by whichever names its versions gave them, and with a description beside them."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from keras_files import dense, described, layer, write_archive, write_legacy

from sparsenn.engine import Session
from sparsenn.errors import FileFormatError
from sparsenn.io import from_keras

RNG = np.random.default_rng(1)
FIRST, SECOND, THIRD = (RNG.standard_normal((3, 3)).astype(np.float32) for _ in range(3))
BIASES = RNG.standard_normal((3, 3)).astype(np.float32)
LAYERS = [
    dense(FIRST, BIASES[0], "relu"),
    layer("Dropout", rate=0.5),
    dense(SECOND, BIASES[1]),
    dense(THIRD, BIASES[2]),
]
ROWS = RNG.standard_normal((4, 3)).astype(np.float32)
EXPECTED = (np.maximum(ROWS @ FIRST + BIASES[0], 0) @ SECOND + BIASES[1]) @ THIRD + BIASES[2]


def check(path: Path, **options: Any) -> None:
    found = Session(from_keras(path, **options), device="reference")(ROWS)
    np.testing.assert_allclose(found, EXPECTED, rtol=1e-4, atol=1e-5)


def write_groups(path: Path, groups: Sequence[str], config: dict[str, Any] | None = None) -> Path:
    """An archive whose three fully connected layers have their weights in these groups."""
    weights = io.BytesIO()
    with h5py.File(weights, "w") as file:
        for group, kernel, bias in zip(groups, (FIRST, SECOND, THIRD), BIASES, strict=True):
            made = file.create_group(group).create_group("vars")
            made["0"], made["1"] = kernel, bias
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(config or described((3,), LAYERS)))
        archive.writestr("model.weights.h5", weights.getvalue())
    return path


@pytest.mark.parametrize("separator", ["/", "\\"])
@pytest.mark.parametrize("numbers", [["", "_1", "_2"], ["", "_2", "_4"]])
@pytest.mark.parametrize("folder", ["layers", "_layer_checkpoint_dependencies"])
def test_groups_of_archives(tmp_path: Path, separator: str, folder: str, numbers: list[str]) -> None:
    """Windows has backslashes in them; versions 2.12 and 2.13 another name, and may count layers with weights twice."""
    path = write_groups(tmp_path / "model.keras", [f"{folder}{separator}dense{number}" for number in numbers])
    if folder == "layers" and numbers[1] == "_2":  # the second layer's weights are not there
        with pytest.raises(FileFormatError, match=r"l3 \(Dense\): .* kernel, bias"):
            from_keras(path)
    else:
        check(path)


def renamed(path: Path, rename: Callable[[str], str], listed: bool) -> Path:
    """A file in which arrays have other names: in each layer's group, and in the list of them if there is one."""
    with h5py.File(path, "a") as file:
        for name, group in file["model_weights"].items():
            names = []
            for array in ("kernel", "bias") if name != "l2" else ():
                names.append(rename(f"{name}/{array}:0"))
                file.move(f"model_weights/{name}/{name}/{array}:0", f"model_weights/{name}/{names[-1]}")
            if listed and names:
                group.attrs["weight_names"] = np.asarray(names, "S")
            elif names:  # of variable length, as h5py writes a list of texts
                group.attrs["weight_names"] = [each.encode() for each in names]
    return path


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name,
        lambda name: name.replace("/", "_1/"),
        lambda name: f"model_4/{name}",
        lambda name: f"another/{name.partition('/')[2]}",
        lambda name: name.partition("/")[2],
    ],
)
def test_arrays_that_are_not_called_like_their_layer(tmp_path: Path, rename: Any, listed: bool) -> None:
    check(renamed(write_legacy(tmp_path / "model.h5", (3,), LAYERS), rename, listed))


def weights_alone(path: Path, kind: str) -> Path:
    """A file of the weights alone, as versions before 2.12 wrote it, or later ones."""
    if kind == "numbered":
        archive = write_archive(path.with_suffix(".keras"), (3,), LAYERS)
        with zipfile.ZipFile(archive) as given:
            path.write_bytes(given.read("model.weights.h5"))
    else:
        with h5py.File(write_legacy(path.with_suffix(".whole"), (3,), LAYERS)) as whole, h5py.File(path, "w") as file:
            for name in whole["model_weights"]:
                whole.copy(f"model_weights/{name}", file)
            file.attrs["layer_names"] = np.asarray(list(file), "S")
    return path


@pytest.mark.parametrize("kind", ["numbered", "named"])
def test_weights_alone_with_a_description_beside_them(tmp_path: Path, kind: str) -> None:
    path, text = weights_alone(tmp_path / "model.weights.h5", kind), json.dumps(described((3,), LAYERS))
    beside = tmp_path / "model.json"
    beside.write_text(text)
    for architecture in (text, f"  {text}", beside, str(beside)):
        check(path, architecture=architecture)
    with pytest.raises(FileFormatError, match=r"holds no model_config, only weights; .*model\.to_json\(\)"):
        from_keras(path)
    wrong = json.dumps(described((3,), LAYERS[:1] * 9))
    with pytest.raises(FileFormatError, match=r"(has 0 arrays; 2|has the arrays none; kernel, bias) are needed"):
        from_keras(path, architecture=wrong)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_weights_that_keras_saves_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", minversion="3")
    of = keras.layers
    inner = keras.Sequential([of.Dense(3, activation="relu"), of.BatchNormalization(), of.Dense(2)])
    model = keras.Sequential([of.Input((3,)), of.Dense(4), inner, of.Dense(3)])
    model.save_weights(tmp_path / "model.weights.h5")
    network = from_keras(tmp_path / "model.weights.h5", architecture=model.to_json())
    found = Session(network, device="reference")(ROWS)
    np.testing.assert_allclose(found, np.asarray(model.predict_on_batch(ROWS)), rtol=1e-4, atol=1e-5)
