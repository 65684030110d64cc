"""Models of Keras that become ONNX graphs on their way to a network."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="computes what Keras asks for")
pytest.importorskip("onnxruntime", reason="computes what no layer does")
os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", minversion="3.8")

from sparsenn import Session, from_keras  # noqa: E402
from sparsenn.errors import InputError, UsageError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
layers = keras.layers

MODELS: dict[str, tuple[tuple[int, ...], str, Callable[[], list[Any]]]] = {
    "recurrent": ((5, 3), "float32", lambda: [layers.Bidirectional(layers.LSTM(4)), layers.Dense(2)]),
    "embedded": ((5,), "int32", lambda: [layers.Embedding(9, 4), layers.GlobalAveragePooling1D(), layers.Dense(2)]),
    "transposed": ((4, 4, 3), "float32", lambda: [layers.Conv2DTranspose(2, 3, 2), layers.Permute((3, 1, 2))]),
    "along time": ((5, 3), "float32", lambda: [layers.TimeDistributed(layers.Dense(4, "hard_sigmoid"))]),
}


def rows_of(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(1)
    return rng.integers(0, 9, (3, *shape)) if dtype == "int32" else rng.normal(size=(3, *shape)).astype(np.float32)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("suffix", ["keras", "h5", None])
def test_outputs_are_those_of_keras(name: str, suffix: str | None, tmp_path: Path) -> None:
    shape, dtype, made = MODELS[name]
    model = keras.Sequential([layers.Input(shape, dtype=dtype), *made()])
    source: Any = model
    if suffix is not None:
        source = tmp_path / f"model.{suffix}"
        model.save(source)
        with pytest.raises(InputError, match="through='onnx'"):
            from_keras(source)
    rows = rows_of(shape, dtype)
    found = Session(from_keras(source, through="onnx"), device="cpu")(rows)
    np.testing.assert_allclose(found.reshape(3, -1), model.predict_on_batch(rows).reshape(3, -1), atol=1e-5)


def test_inputs_and_outputs_have_their_names() -> None:
    one, other = layers.Input((3,), name="one"), layers.Input((5, 2), name="other")
    both = layers.Concatenate()([one, layers.GRU(4)(other)])
    model = keras.Model([one, other], [layers.Dense(2, name="score")(both), layers.Dense(1, name="value")(both)])
    rows = {"one": rows_of((3,), "float32"), "other": rows_of((5, 2), "float32")}
    found = Session(from_keras(model, through="onnx"), device="cpu")(rows)
    for name, want in zip(("score", "value"), model.predict_on_batch([*rows.values()]), strict=True):
        np.testing.assert_allclose(found[name], want, atol=1e-5)


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="onnx"):
        from_keras(tmp_path / "model.keras", through="tflite")
    with pytest.raises(InputError, match=r"Keras cannot make an ONNX graph of .*model\.keras"):
        from_keras(tmp_path / "model.keras", through="onnx")
