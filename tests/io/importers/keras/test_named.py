"""Functional models of Keras with several inputs and outputs, and models within them that take several results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_files import conv2d, dense, flatten, layer, write_functional

from sparsenn import Session, from_keras, read_model
from sparsenn.errors import FileFormatError

RNG = np.random.default_rng(4)
KERNEL, BIAS = RNG.standard_normal((2, 3)).astype(np.float32), np.float32([0.5, -1, 0])
FILTERS = RNG.standard_normal((1, 1, 3, 2)).astype(np.float32)
LAST = RNG.standard_normal((43, 2)).astype(np.float32)
SHAPES = {"image": (4, 5, 3), "obs": (2,)}
LAYERS = [
    dense(KERNEL, BIAS),
    conv2d(FILTERS, BIAS[:2]),
    flatten(),
    layer("Concatenate", axis=-1),
    dense(LAST, BIAS[:2]),
]
TAKEN = [["obs"], ["image"], ["l2"], ["l1", "l3"], ["l4"]]
INPUTS = {
    "obs": RNG.standard_normal((6, 2)).astype(np.float32),
    "image": RNG.standard_normal((6, 4, 5, 3)).astype(np.float32),
}


def policy(path: Path, **ends: Any) -> Path:
    return write_functional(path, SHAPES, LAYERS, TAKEN, **ends)


def expected() -> dict[str, Any]:
    first, pixels = INPUTS["obs"] @ KERNEL + BIAS, INPUTS["image"] @ FILTERS[0, 0] + BIAS[:2]
    return {"l1": first, "l2": pixels, "l5": np.concatenate([first, pixels.reshape(6, -1)], 1) @ LAST + BIAS[:2]}


@pytest.mark.parametrize("last", [False, True])
def test_several_inputs_by_name_with_channels_last_or_first(tmp_path: Path, last: bool) -> None:
    session = Session(policy(tmp_path / "model.keras"), device="cpu")
    assert session.network.named_inputs == {"image": (3, 4, 5), "obs": (2,)}
    image = INPUTS["image"] if last else np.moveaxis(INPUTS["image"], -1, 1)
    found = session(image=image, obs=INPUTS["obs"])
    np.testing.assert_allclose(found, expected()["l5"], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(session({"image": image[0], "obs": INPUTS["obs"][0]}), found[:1])
    row = np.moveaxis(INPUTS["image"], -1, 1)[0].ravel()
    np.testing.assert_array_equal(session({"image": row, "obs": INPUTS["obs"][0]}), found[:1])


@pytest.mark.parametrize("last", [False, True])
def test_an_image_beside_another_input_may_be_flattened_first(tmp_path: Path, last: bool) -> None:
    layers = [flatten(), layer("Concatenate", axis=-1), dense(np.resize(LAST, (62, 2)), BIAS[:2])]
    path = write_functional(tmp_path / "model.keras", SHAPES, layers, [["image"], ["l1", "obs"], ["l2"]])
    image = INPUTS["image"] if last else np.moveaxis(INPUTS["image"], -1, 1)
    found = Session(path, device="cpu")(image=image, obs=INPUTS["obs"])
    rows = np.concatenate([INPUTS["image"].reshape(6, -1), INPUTS["obs"]], 1)
    np.testing.assert_allclose(found, rows @ np.resize(LAST, (62, 2)) + BIAS[:2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_that_is_flattened_first_beside_the_image(tmp_path: Path, channels: int) -> None:
    kernel, image = np.resize(LAST, (20 * channels, 2)), INPUTS["image"][..., :channels]
    layers = [flatten(), dense(kernel, BIAS[:2]), layer("Rescaling", scale=2.0, offset=0.0)]
    taken, listed = [["input"], ["l1"], ["input"]], [["l2", 0, 0], ["l3", 0, 0]]
    path = write_functional(tmp_path / "model.keras", image.shape[1:], layers, taken, output_layers=listed)
    if channels > 1:  # the first reads rows of numbers in Keras's order, the second images with the channels first
        with pytest.raises(FileFormatError, match="combines images with rows of features made from the same inputs"):
            from_keras(path)
        return
    found = Session(path, device="cpu")(image)
    np.testing.assert_allclose(found["l2"], image.reshape(6, -1) @ kernel + BIAS[:2], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["l3"], 2 * np.moveaxis(image, -1, 1))


@pytest.mark.parametrize(
    ("listed", "names"),
    [([["l5", 0, 0], ["l2", 0, 0]], ["l5", "l2"]), ({"value": ["l5", 0, 0], "map": ["l2", 0, 0]}, ["value", "map"])],
)
def test_several_outputs_by_name(tmp_path: Path, listed: Any, names: list[str]) -> None:
    model = read_model(policy(tmp_path / "model.keras", output_layers=listed))
    assert not model.classes
    found = Session(model, device="cpu")(INPUTS)
    assert list(found) == names
    np.testing.assert_allclose(found[names[0]], expected()["l5"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[names[1]], np.moveaxis(expected()["l2"], -1, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_models_that_keras_saves(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    of = keras.layers
    obs, image = keras.Input((5,), name="obs"), keras.Input((6, 7, 3), name="image")
    pixels = of.Conv2D(4, 3, padding="same", activation="relu")(image)
    pixels = of.Add()([of.Conv2D(4, 3, padding="same")(pixels), pixels])
    hidden = of.Concatenate()([of.Dense(8, activation="relu")(obs), of.GlobalAveragePooling2D()(pixels)])
    hidden = of.Add()([of.Dense(12, activation="silu")(hidden), hidden])
    model = keras.Model([image, obs], [of.Dense(1, name="value")(hidden), of.Dense(3, name="action")(hidden)])
    rows = {"obs": RNG.standard_normal((9, 5), np.float32), "image": RNG.standard_normal((9, 6, 7, 3), np.float32)}
    value, action = model.predict(rows, verbose=0)
    for name in ("model.keras", "model.h5"):
        model.save(tmp_path / name)
        found = Session(tmp_path / name, device="cpu")(rows)
        np.testing.assert_allclose(found["value"], value, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["action"], action, rtol=1e-4, atol=1e-5)
