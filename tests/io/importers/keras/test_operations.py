"""Operations of Keras compute what they do there; every argument and key of a configuration is understood, or refused.

Values are NumPy's; where Keras is installed, models that it saves are compared with what it computes itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_files import array, layer, result, write_functional, write_operation

from sparsenn.engine import Session
from sparsenn.errors import FileFormatError, SparseNNError
from sparsenn.io import from_keras
from sparsenn.io.importers.keras.reading import class_of

X = result("input")
ROWS = np.array([[-2.0, 0.5, 3.0], [4.0, -0.25, 0.0]], np.float32)
THREE = np.array([5.0, -7.0, 0.5], np.float32)
NN, ACTIVATIONS = "keras.src.ops.nn", "keras.src.activations.activations"

COMPUTED: dict[str, tuple[str, list[Any], dict[str, Any], Any]] = {
    "x - 0.5": ("Subtract", [X, 0.5], {}, ROWS - 0.5),
    "1 - x": ("Subtract", [1, X], {}, 1 - ROWS),
    "x + array": ("Add", [X, array(THREE)], {}, ROWS + THREE),
    "array + x": ("Add", [array(THREE[None]), X], {}, ROWS + THREE),
    "x - x": ("Subtract", [X, X], {}, 0 * ROWS),
    "array - x": ("Subtract", [array(THREE), X], {}, THREE - ROWS),
    "x * array": ("Multiply", [X, array(THREE)], {}, ROWS * THREE),
    "x * x": ("Multiply", [X, X], {}, ROWS * ROWS),
    "x / array": ("TrueDivide", [X, array(THREE)], {}, ROWS / THREE),
    "x / 255": ("Divide", [X, 255.0], {}, ROWS / 255),
    "-x": ("Negative", [X], {}, -ROWS),
    "maximum": ("Maximum", [X, 0.25], {}, np.maximum(ROWS, 0.25)),
    "minimum": ("Minimum", [0.25, X], {}, np.minimum(ROWS, 0.25)),
    "clip": ("Clip", [X], {"x_min": -1, "x_max": 2}, ROWS.clip(-1, 2)),
    "tanh": ("Tanh", [X], {}, np.tanh(ROWS)),
    "relu": ("Relu", [X], {"module": NN}, np.maximum(ROWS, 0)),
    "relu6": ("Relu6", [X], {"module": NN}, ROWS.clip(0, 6)),
    "sigmoid": ("Sigmoid", [X], {"module": NN}, 1 / (1 + np.exp(-ROWS))),
    "leaky relu": ("LeakyRelu", [X], {"module": NN, "negative_slope": 0.5}, np.maximum(ROWS, ROWS / 2)),
    "relu of activations": ("ReLU", [X], {"module": ACTIVATIONS, "max_value": 0.75}, ROWS.clip(0, 0.75)),
    "softmax": ("Softmax", [X], {"module": NN, "axis": -1}, np.exp(ROWS) / np.exp(ROWS).sum(1, keepdims=True)),
}


@pytest.mark.parametrize(("kind", "args", "config", "expected"), COMPUTED.values(), ids=COMPUTED)
def test_operations(tmp_path: Path, kind: str, args: Any, config: Any, expected: Any) -> None:
    network = from_keras(write_operation(tmp_path / "model.keras", (3,), kind, args, **config))
    found = Session(network, device="reference")(ROWS)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


REFUSED: dict[str, tuple[str, list[Any], dict[str, Any], dict[str, Any], str]] = {
    "average": ("Average", [X], {"weights": None}, {"axis": -1}, r"op \(ops.Average\): has no counterpart"),
    "other axis": ("Concatenate", [[X, X]], {}, {"axis": 0}, "works along axis 0"),
    "more rows": ("Reshape", [X], {}, {"newshape": [-1, 1]}, r"makes \[1\] of rows of 3"),
    "text": ("Add", [X, "a"], {}, {}, "computes with 'a', which is no constant"),
    "largest of two": ("Maximum", [X, X], {}, {}, "combines two results of layers"),
    "quotient": ("TrueDivide", [1.0, X], {}, {}, "divides by numbers that depend on the input"),
    "not finite": ("Add", [X, float("nan")], {}, {}, "a constant that holds NaN or infinity"),
    "unknown argument": ("Negative", [X], {"out": 3}, {}, "takes x, and is given out=3"),
    "threshold": ("ReLU", [X], {}, {"module": ACTIVATIONS, "threshold": 0.5}, "a threshold of 0.5"),
    "softmax": ("Softmax", [X], {}, {"module": NN, "axis": 0}, "a softmax along axis 0"),
    "arguments": ("Add", [], {"x1": 1.0, "x2": 2.0}, {}, r"op \(ops.Add\): takes nothing"),
}


@pytest.mark.parametrize(("kind", "args", "kwargs", "config", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, kind: str, args: Any, kwargs: Any, config: Any, message: str
) -> None:
    path = write_operation(tmp_path / "model.keras", (3,), kind, args, kwargs, **config)
    with pytest.raises(FileFormatError, match=message) as raised:
        from_keras(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("module", "message"),
    [(None, "__main__.ReLU"), ("mine.layers", "mine.layers.ReLU"), ("keras_hub.layers", "keras_hub.layers.ReLU")],
)
def test_classes_of_others_that_are_called_like_those_of_keras(tmp_path: Path, module: Any, message: str) -> None:
    path = write_operation(tmp_path / "model.keras", (3,), "ReLU", [X], module=module, max_value=None)
    with pytest.raises(FileFormatError, match=rf"op \({message}\): has no counterpart"):
        from_keras(path)


NORM = {name: np.ones(3, np.float32) for name in ("gamma", "beta", "moving_mean", "moving_variance")}


@pytest.mark.parametrize("kwargs", [{"training": True}, {"mask": array([[1, 0, 1]])}])
@pytest.mark.parametrize("older", [False, True])
def test_calls_of_layers_with_arguments(tmp_path: Path, kwargs: dict[str, Any], older: bool) -> None:
    """A normalisation in training takes the batch's mean; one that predicts is what it is without the argument."""
    made = layer("BatchNormalization", NORM, axis=-1, epsilon=1e-3, center=True, scale=True)
    path = tmp_path / "model.keras"

    def call(entry: dict[str, Any], given: dict[str, Any]) -> None:
        entry["inbound_nodes"] = [[["input", 0, 0, given]]] if older else [{"args": [X], "kwargs": given}]

    write_functional(path, (3,), [made], [["input"]], lambda listed: call(listed[1], kwargs))
    with pytest.raises(FileFormatError, match=r"l1 \(BatchNormalization\): is called with (training|mask)="):
        from_keras(path)
    write_functional(path, (3,), [made], [["input"]], lambda listed: call(listed[1], {"training": False, "mask": None}))
    assert from_keras(path).sizes[0] == 3


def kin(keras: Any) -> dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]]:
    """Models that are alike and compute different things: input shapes, and what is made of the input."""
    of, ops, three = keras.layers, keras.ops, np.array([5.0, -7.0, 0.5], np.float32)
    activations, norm = keras.activations, keras.layers.LayerNormalization

    def gated(x: Any) -> Any:
        return of.Multiply()([of.Activation("sigmoid")(x), x])

    def twice(x: Any) -> Any:
        inputs = of.Input((4,))
        return 1 - keras.Model(inputs, of.Dense(3)(inputs) * 2.0 - 1.0)(x)

    return {
        "x - 0.5": ((4,), lambda x: of.Dense(2)(x - 0.5)),
        "dense + 1": ((4,), lambda x: of.Dense(2)(x) + 1.0),
        "1 - dense": ((4,), lambda x: 1 - of.Dense(2)(x)),
        "array - dense": ((4,), lambda x: ops.subtract(three, of.Dense(3)(x))),
        "operands by name": ((3,), lambda x: ops.add(x1=of.Dense(3)(x), x2=three)),
        "x / 2": ((4,), lambda x: x / 2),
        "2 / x": ((4,), lambda x: 2 / x),
        "x * x": ((4,), lambda x: x * x),
        "x * dense": ((4,), lambda x: x * of.Dense(4)(x)),
        "x + dense": ((4,), lambda x: x + of.Dense(4)(x)),
        "Subtract": ((4,), lambda x: of.Subtract()([x, of.Dense(4)(x)])),
        "Average": ((4,), lambda x: of.Average()([x, of.Dense(4)(x), x])),
        "average": ((4,), lambda x: ops.average(of.Dense(3)(x), axis=-1)),
        "Multiply": ((4,), lambda x: of.Multiply()([x, of.Dense(4)(x)])),
        "Maximum": ((4,), lambda x: of.Maximum()([x, of.Dense(4)(x)])),
        "maximum": ((4,), lambda x: ops.maximum(of.Dense(4)(x), 0.1)),
        "maximum of two": ((4,), lambda x: ops.maximum(x, of.Dense(4)(x))),
        "clip": ((4,), lambda x: ops.clip(of.Dense(4)(x), -0.1, 0.3)),
        "softmax": ((4,), lambda x: of.Softmax()(ops.softmax(of.Dense(4)(x)))),
        "softmax of rows": ((4,), lambda x: ops.softmax(of.Dense(4)(x), axis=0)),
        "relu": ((4,), lambda x: activations.relu(of.Dense(4)(x), max_value=0.5)),
        "relu, sloping": ((4,), lambda x: activations.relu(of.Dense(4)(x), negative_slope=0.5)),
        "relu, later": ((4,), lambda x: activations.relu(of.Dense(4)(x), threshold=0.5)),
        "gelu": ((4,), lambda x: activations.gelu(of.Dense(4)(x))),
        "layer norm": ((4,), lambda x: norm(epsilon=0.1)(of.Dense(3)(norm(center=False)(x)))),
        "layer norm of tokens": ((6, 4), lambda x: norm(scale=False)(x)),
        "layer norm of channels": ((4, 5, 3), lambda x: norm()(of.Conv2D(4, 2)(x))),
        "layer norm, then a window": ((4, 5, 3), lambda x: of.Conv2D(2, 2)(norm()(x))),
        "layer norm, flattened": ((4, 5, 3), lambda x: of.Dense(2)(of.Flatten()(norm()(of.Conv2D(4, 2)(x))))),
        "layer norm, reshaped": ((4, 3), lambda x: of.Dense(2)(of.Reshape((-1,))(norm()(x)))),
        "layer norm of images": ((4, 5, 3), lambda x: norm([1, 2, 3])(of.Conv2D(4, 2)(x))),
        "layer norm of lines": ((4, 5, 3), lambda x: norm(axis=2)(of.Conv2D(4, 2)(x))),
        "root mean square": ((4,), lambda x: of.RMSNormalization()(of.Dense(4)(x))),
        "x * sigmoid(x)": ((4,), lambda x: (lambda y: y * ops.sigmoid(y))(of.Dense(4)(x))),
        "Multiply, gated": ((4,), lambda x: gated(of.Dense(4)(x))),
        "reshape": ((4,), lambda x: ops.reshape(of.Dense(4)(x), (-1, 4))),
        "model in model": ((4,), twice),
        "training": ((4,), lambda x: of.BatchNormalization()(x, training=True)),
        "predicting": ((4,), lambda x: of.BatchNormalization()(x, training=False)),
        "image - array": ((4, 5, 3), lambda x: of.Conv2D(2, 3)(x - three)),
        "image, flattened": ((4, 5, 3), lambda x: of.Dense(2)(of.Flatten()(of.Conv2D(4, 2)(x)))),
        "flattened, first": (
            (4, 5, 3),
            lambda x: of.Dense(2)(of.Flatten(data_format="channels_first")(of.Conv2D(4, 2)(x))),
        ),
        "images beside": ((5, 4, 2), lambda x: ops.concatenate([of.Conv2D(3, 2)(x), of.Conv2D(3, 2)(x)], axis=2)),
        "channels": ((5, 4, 2), lambda x: of.Flatten()(ops.concatenate([of.Conv2D(3, 2)(x), of.Conv2D(1, 2)(x)], 3))),
        "Rescaling": ((4, 5, 3), lambda x: of.Conv2D(2, 2)(of.Rescaling([1.0, 2.0, 3.0], [0.0, 1.0, 2.0])(x))),
        "sequence": ((12, 2), lambda x: of.Flatten()(of.Conv1D(2, 3)(of.LeakyReLU(negative_slope=0.2)(x)))),
        "sequence, added": ((12, 2), lambda x: of.Flatten()(x + of.Conv1D(2, 3, padding="same")(x))),
        "pixels of a line": ((1, 3, 3), lambda x: of.BatchNormalization(axis=2)(of.Conv2D(3, 1)(x))),
        "transposed": ((4, 5, 3), lambda x: of.Flatten()(ops.transpose(x, (0, 3, 1, 2)))),
    }


NOT_COMPUTED = {
    *("2 / x", "average", "Maximum", "maximum of two", "softmax of rows"),
    *("layer norm of lines", "root mean square"),
    *("relu, later", "gelu", "training", "images beside", "pixels of a line", "transposed"),
}
"""Those that no layer of sparsenn computes."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_what_keras_saves_is_what_it_computes_or_is_refused(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("torch")
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", minversion="3")
    random = np.random.default_rng(3)
    refused = set()
    for name, (shape, made) in kin(keras).items():
        inputs = keras.layers.Input(shape)
        model = keras.Model(inputs, made(inputs))
        for weight in model.weights:
            values = random.uniform(-1, 1, weight.shape)
            weight.assign(np.abs(values) + 0.3 if "variance" in weight.path else values)
        path = tmp_path / f"model.{suffix}"
        model.save(path)
        rows = random.standard_normal((3, *shape)).astype(np.float32)
        try:
            network = from_keras(path)
        except SparseNNError:
            refused.add(name)
            continue
        if name in ("x * sigmoid(x)", "Multiply, gated"):
            assert [str(layer.activation) for layer in network] == ["silu"]
        expected = np.asarray(model.predict_on_batch(rows))
        given = np.moveaxis(rows, -1, 1) if network.image else rows
        found = Session(network, device="reference")(np.ascontiguousarray(given).reshape(3, -1))
        expected = np.moveaxis(expected, -1, 1).reshape(3, -1)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4, err_msg=name)
    assert refused == NOT_COMPUTED


def test_layers_and_operations_of_hdf5_files() -> None:
    """In which Keras 3 says of no operation whether it is trainable, nor of a SpatialDropout."""
    nodes, config = [{"args": [], "kwargs": {}}], {"name": "last"}
    for kind, known in (("Add", "ops.Add"), ("SpatialDropout2D", "SpatialDropout2D")):
        assert class_of({"class_name": kind, "config": config, "inbound_nodes": nodes}) == known
    assert class_of({"class_name": "Add", "config": config | {"trainable": True}, "inbound_nodes": nodes}) == "Add"
