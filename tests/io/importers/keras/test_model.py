"""Models that Keras saved give what they give there; what is hostile, or no chain of known layers, ends in one line."""

from __future__ import annotations

import gzip
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from keras_files import conv2d, dense, flatten, layer, max_pool, write_archive, write_functional, write_legacy

from sparsenn.engine import Session
from sparsenn.errors import FileFormatError, InputError
from sparsenn.io import from_keras, is_model, read_model
from sparsenn.io.importers.keras.model import read_keras

MODELS = Path(__file__).parent / "models"
WRITERS = {"keras": write_archive, "h5": write_legacy}


def saved(name: str, suffix: str, folder: Path) -> Path:
    """A model of real Keras, as it was saved."""
    path = folder / f"{name}.{suffix}"
    archive, legacy = MODELS / f"{name}.keras", MODELS / f"{name}.h5.gz"
    path.write_bytes(archive.read_bytes() if suffix == "keras" else gzip.decompress(legacy.read_bytes()))
    return path


def check(path: Path, name: str, rows: Callable[[Any], Any]) -> Any:
    """Hold a network against what Keras gave, and return it."""
    network = from_keras(path)
    with np.load(MODELS / "expected.npz") as expected:
        inputs, outputs = expected[f"{name} inputs"], expected[f"{name} outputs"]
    session = Session(network, device="reference")
    for given in (rows(inputs).reshape(len(inputs), -1), inputs, [inputs]):
        np.testing.assert_allclose(session(given), outputs, rtol=1e-4, atol=1e-5)
    return network


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("name", ["rows", "images", "sequences", "functional"])
def test_models_that_keras_saved(name: str, suffix: str, tmp_path: Path) -> None:
    check(saved(name, suffix, tmp_path), name, lambda inputs: np.moveaxis(inputs, -1, 1))


KERNEL, BIAS = np.arange(6.0).reshape(2, 3).astype(np.float32), np.ones(3, np.float32)
RELU = layer("ReLU", max_value=None, negative_slope=0.0, threshold=0.0)
PICTURE = (6, 6, 2)
FILTERS, FOUR = np.ones((3, 3, 2, 4), np.float32), np.ones(4, np.float32)
FIRST = conv2d(FILTERS, FOUR, data_format="channels_first")

REFUSED: dict[str, tuple[Any, list[Any], str]] = {
    "unknown layer": ((2,), [layer("LSTM")], r"l1 \(LSTM\): has no counterpart in sparsenn"),
    "width": ((3,), [dense(KERNEL, BIAS)], r"l1 \(Dense\): takes rows of 2, but is given 3"),
    "not flattened": (PICTURE, [dense(KERNEL, BIAS), RELU, max_pool(1)], "a flattening between them makes 72"),
    "not finite": ((2,), [dense(KERNEL * np.nan, BIAS)], r"l1 \(Dense\): the weights hold NaN"),
    "threshold": ((2,), [layer("ReLU", max_value=None, negative_slope=0, threshold=1)], "a threshold of 1"),
    "both formats": (PICTURE, [conv2d(FILTERS, FOUR), FIRST], "some layers hold images with the channels first"),
    "channels": (PICTURE, [conv2d(np.ones((3, 3, 1, 4)), FOUR)], r"l1 \(Conv2D\): .* do not fit 2 channels"),
    "unknown size": ((None, None, 2), [conv2d(FILTERS, FOUR)], "all sizes but the first are needed"),
    "padding": (PICTURE, [conv2d(FILTERS, FOUR, padding="wide")], "no valid configuration .*padding 'wide'"),
    "nothing": ((2,), [layer("Dropout")], "no layer that computes anything"),
}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize(("shape", "layers", "message"), REFUSED.values(), ids=REFUSED)
def test_what_no_layer_computes_is_refused(tmp_path: Path, suffix: str, shape: Any, layers: Any, message: str) -> None:
    path = WRITERS[suffix](tmp_path / f"model.{suffix}", shape, layers)
    with pytest.raises(FileFormatError, match=message) as raised:
        from_keras(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_cropped_images(tmp_path: Path, rng: np.random.Generator) -> None:
    images = rng.standard_normal((4, 5, 6, 2)).astype(np.float32)
    crop = layer("Cropping2D", cropping=((1, 0), (2, 1)), data_format="channels_last")
    network = from_keras(write_archive(tmp_path / "model.keras", (5, 6, 2), [crop]))
    expected = np.moveaxis(images[:, 1:, 2:-1], -1, 1).reshape(4, -1)
    np.testing.assert_array_equal(Session(network, device="cpu")(images), expected)
    network = from_keras(write_archive(tmp_path / "model.keras", (6, 2), [layer("Cropping1D", cropping=(0, 2))]))
    expected = np.moveaxis(images[:, 0, :-2], -1, 1).reshape(4, -1)
    np.testing.assert_array_equal(Session(network, device="cpu")(images[:, 0]), expected)
    with pytest.raises(FileFormatError, match="crops 2 axes"):
        from_keras(write_archive(tmp_path / "model.keras", (6, 2), [crop]))


@pytest.mark.parametrize(("kind", "reduced"), [("MaxPooling2D", np.nanmax), ("AveragePooling2D", np.nanmean)])
def test_pools_of_padded_images(tmp_path: Path, kind: str, reduced: Any, rng: np.random.Generator) -> None:
    """One line and one column after the image, which no mean counts."""
    pool = layer(kind, pool_size=(2, 2), strides=(2, 2), padding="same", data_format="channels_last")
    network = from_keras(write_archive(tmp_path / "model.keras", (5, 5, 1), [pool]))
    images = rng.standard_normal((4, 5, 5)).astype(np.float32)
    padded = np.pad(images, ((0, 0), (0, 1), (0, 1)), constant_values=np.nan).reshape(4, 3, 2, 3, 2)
    found = Session(network, device="cpu")(images.reshape(4, 25))
    np.testing.assert_allclose(found, reduced(padded, axis=(2, 4)).reshape(4, 9), rtol=1e-6)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_sizes_below_one_are_refused(tmp_path: Path, padding: str) -> None:
    pool = layer("MaxPooling2D", pool_size=(2, 2), strides=(2, 0), padding=padding, data_format="channels_last")
    with pytest.raises(FileFormatError, match="at least 1"):
        from_keras(write_archive(tmp_path / "model.keras", (5, 5, 1), [pool]))


@pytest.mark.parametrize("writer", [write_archive, write_legacy])
def test_what_changes_images_in_training_alone(writer: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    changed = [
        layer("RandomFlip", mode="horizontal", seed=1, data_format="channels_last"),
        layer("RandomRotation", factor=0.1, fill_mode="reflect", interpolation="bilinear", fill_value=0.0),
        layer("RandomZoom", height_factor=0.1, width_factor=None),
        layer("RandomContrast", factor=0.1, value_range=(0, 255)),
    ]
    kernel, images = rng.standard_normal((12, 2)).astype(np.float32), rng.random((3, 2, 3, 2), np.float32)
    layers = [*changed, flatten(), dense(kernel, np.zeros(2))]
    network = from_keras(writer(tmp_path / f"model.{'h5' if writer is write_legacy else 'keras'}", (2, 3, 2), layers))
    found = Session(network, device="reference")(images)
    np.testing.assert_allclose(found, images.reshape(3, 12) @ kernel, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_hard_sigmoids_of_keras_2_are_not_made_by_another_version(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(__version__="3.9.0"))
    path, layers = tmp_path / f"model.{suffix}", [dense(np.ones((2, 1)), np.zeros(1), "hard_sigmoid")]
    if suffix == "h5":
        write_legacy(path, (2,), layers)
        with h5py.File(path, "a") as file:
            file.attrs["keras_version"] = np.bytes_("2.15.0")
    else:
        write_archive(path, (2,), layers)
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (members | {"metadata.json": b'{"keras_version": "2.15.0"}'}).items():
                archive.writestr(name, content)
    with pytest.raises(InputError, match=r"Keras 2.* another hard_sigmoid"):
        from_keras(path, through="onnx")


def test_branches_are_joined(tmp_path: Path, rng: np.random.Generator) -> None:
    """A residual sum, a difference, a mean and channels put together, held against NumPy."""
    one, other = rng.standard_normal((2, 2, 2)).astype(np.float32)
    none = np.zeros(2, np.float32)
    layers = [
        conv2d(one[None, None], none, activation="relu"),
        layer("Add"),
        conv2d(other[None, None], none),
        layer("Subtract"),
        layer("Average"),
        layer("Concatenate", axis=-1),
        layer("ZeroPadding2D", padding=((1, 0), (0, 2)), data_format="channels_last"),
    ]
    taken = [["input"], ["l1", "input"], ["l2"], ["l3", "l2"], ["l1", "l4", "input"], ["l5", "l3"], ["l6"]]
    network = from_keras(write_functional(tmp_path / "model.keras", (4, 3, 2), layers, taken))
    assert network.onnx_graph is not None
    images = rng.standard_normal((5, 4, 3, 2)).astype(np.float32)
    first = np.maximum(images @ one, 0)
    added = first + images
    second = added @ other
    mean = (first + (second - added) + images) / 3
    expected = np.pad(np.concatenate([mean, second], -1), ((0, 0), (1, 0), (0, 2), (0, 0)))
    for given in (np.moveaxis(images, -1, 1).reshape(5, -1), images):
        found = Session(network, device="reference")(given)
        np.testing.assert_allclose(found, np.moveaxis(expected, -1, 1).reshape(5, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2), (4, 3, 1)])
@pytest.mark.parametrize("reshapes", [False, True])
def test_inputs_that_are_flattened_first_keep_their_order(
    tmp_path: Path, reshapes: bool, shape: tuple[int, ...]
) -> None:
    width = int(np.prod(shape))
    first = layer("Reshape", target_shape=(width,)) if reshapes else flatten()
    kernel = np.arange(2.0 * width).reshape(width, 2).astype(np.float32)
    network = from_keras(write_archive(tmp_path / "model.keras", shape, [first, dense(kernel, np.zeros(2))]))
    inputs = np.arange(5.0 * width).reshape(5, *shape).astype(np.float32)
    for given in (inputs, inputs.reshape(5, width)):
        np.testing.assert_array_equal(Session(network, device="reference")(given), inputs.reshape(5, width) @ kernel)


def test_hdf5_files_of_keras_are_models(tmp_path: Path) -> None:
    path = write_legacy(tmp_path / "model.h5", (2,), [dense(KERNEL[:, :1], BIAS[:1])])
    assert is_model(path)
    model = read_model(path)
    assert (model.network.sizes, model.classes) == ((2, 1), False)


@pytest.mark.parametrize(
    ("compiled", "classes"),
    [
        ({}, True),
        ({"compile_config": {"loss": "sparse_categorical_crossentropy"}}, True),
        ({"compile_config": {"loss": {"class_name": "CategoricalCrossentropy"}}}, True),
        ({"compile_config": {"loss": "mse"}}, False),
    ],
)
def test_several_outputs_are_scores_of_classes_unless_told_otherwise(
    tmp_path: Path, compiled: dict[str, Any], classes: bool
) -> None:
    path = write_archive(tmp_path / "sound.keras", (2,), [dense(KERNEL, BIAS), RELU])
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(tmp_path / "changed.keras", "w") as target:
        target.writestr("config.json", json.dumps(json.loads(source.read("config.json")) | compiled))
        target.writestr("model.weights.h5", source.read("model.weights.h5"))
    model = read_keras(tmp_path / "changed.keras")
    assert (model.classes, model.evaluation_loss) == (classes, "cross_entropy" if classes else "mse")
    assert model.provenance == {"source": "Keras"}
