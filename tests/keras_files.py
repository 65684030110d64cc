"""Models as Keras writes them, from layers and arrays, without Keras."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

__all__ = [
    "array",
    "conv2d",
    "dense",
    "described",
    "flatten",
    "layer",
    "max_pool",
    "result",
    "write_archive",
    "write_functional",
    "write_legacy",
    "write_operation",
]

Layer = tuple[str, dict[str, Any], dict[str, Any]]
"""A layer's class, configuration and arrays, in Keras's order."""


def layer(kind: str, arrays: dict[str, Any] | None = None, **config: Any) -> Layer:
    return kind, config, arrays or {}


def result(name: str) -> dict[str, Any]:
    """What stands for the result of a layer among the arguments of a call."""
    return {"class_name": "__keras_tensor__", "config": {"keras_history": [name, 0, 0]}}


def array(values: Any) -> dict[str, Any]:
    """What stands for an array among the arguments of a call."""
    return {"class_name": "__numpy__", "config": {"value": np.asarray(values).tolist(), "dtype": "float32"}}


def write_operation(
    path: Path, shape: Sequence[int | None], kind: str, args: Sequence[Any], kwargs: Any = None, **config: Any
) -> Path:
    """Write an archive of a functional model that is one operation, called `op`."""
    module = config.pop("module", "keras.src.ops.numpy")
    inputs = described(shape, [])["config"]["layers"][0] | {"name": "input"}
    made = {
        "module": module,
        "class_name": kind,
        "registered_name": kind,
        "config": {"name": "op", **config},
        "name": "op",
        "inbound_nodes": [{"args": list(args), "kwargs": kwargs or {}}],
    }
    inner = {"name": "functional", "layers": [inputs, made], "output_layers": [["op", 0, 0]]}
    return _write(path, {"class_name": "Functional", "config": inner}, [])


def dense(kernel: Any, bias: Any, activation: str = "linear") -> Layer:
    return layer("Dense", {"kernel": kernel, "bias": bias}, units=len(bias), activation=activation, use_bias=True)


def conv2d(kernel: Any, bias: Any, **config: Any) -> Layer:
    defaults = {
        "filters": len(bias),
        "kernel_size": kernel.shape[:2],
        "strides": (1, 1),
        "padding": "valid",
        "groups": 1,
        "data_format": "channels_last",
        "dilation_rate": (1, 1),
        "activation": "linear",
        "use_bias": True,
    }
    return layer("Conv2D", {"kernel": kernel, "bias": bias}, **{**defaults, **config})


def max_pool(size: int) -> Layer:
    config = {"pool_size": (size, size), "strides": (size, size), "padding": "valid", "data_format": "channels_last"}
    return layer("MaxPooling2D", **config)


def flatten() -> Layer:
    return layer("Flatten", data_format="channels_last")


def described(shape: Sequence[int | None], layers: Sequence[Layer]) -> dict[str, Any]:
    """What Keras says of a Sequential model; layers are called `l1`, `l2` and so on."""
    inputs = {"class_name": "InputLayer", "config": {"batch_shape": [None, *shape], "name": "input"}}
    listed = [
        {
            "module": "keras.layers",
            "class_name": kind,
            "config": {"name": f"l{number}", **config},
            "registered_name": None,
        }
        for number, (kind, config, _) in enumerate(layers, start=1)
    ]
    return {"class_name": "Sequential", "config": {"name": "sequential", "layers": [inputs, *listed]}}


def write_functional(
    path: Path,
    shape: Sequence[int | None] | Mapping[str, Sequence[int | None]],
    layers: Sequence[Layer],
    taken: Sequence[Sequence[str]],
    change: Callable[[list[dict[str, Any]]], Any] = lambda listed: None,
    **ends: Any,
) -> Path:
    """Write an archive of a functional model: `taken` says for each layer what it takes, `input`, `l1` and so on.

    Several inputs have names, and `ends` says what the model lists as its inputs and outputs. What it says of its
    layers may be changed.
    """
    shapes = shape if isinstance(shape, Mapping) else {"input": shape}
    listed = described((), layers)["config"]["layers"][1:]
    inputs = [
        {"class_name": "InputLayer", "config": {"batch_shape": [None, *each], "name": name}}
        for name, each in shapes.items()
    ]
    for entry, names in zip(listed, taken, strict=True):
        histories = [result(name) for name in names]
        entry["inbound_nodes"] = [{"args": [histories if len(names) > 1 else histories[0]], "kwargs": {}}]
    for entry in (*inputs, *listed):
        entry["name"] = entry["config"]["name"]
    change([*inputs, *listed])
    ends = {"input_layers": [[name, 0, 0] for name in shapes], "output_layers": [[f"l{len(layers)}", 0, 0]]} | ends
    inner = {"name": "functional", "layers": [*inputs, *listed], **ends}
    return _write(path, {"class_name": "Functional", "config": inner}, layers)


def write_archive(path: Path, shape: Sequence[int | None], layers: Sequence[Layer]) -> Path:
    return _write(path, described(shape, layers), layers)


def _write(path: Path, config: dict[str, Any], layers: Sequence[Layer]) -> Path:
    weights = io.BytesIO()
    counted: Counter[str] = Counter()
    with h5py.File(weights, "w") as file:
        for kind, _, arrays in layers:
            name = re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", kind)).lower()
            folder = f"layers/{name}_{counted[name]}" if counted[name] else f"layers/{name}"
            counted[name] += 1
            file.create_group(f"{folder}/vars")
            for number, array in enumerate(arrays.values()):
                file[f"{folder}/vars/{number}"] = np.asarray(array)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": "3.0.0"}))
        archive.writestr("config.json", json.dumps({"module": "keras", **config}))
        archive.writestr("model.weights.h5", weights.getvalue())
    return path


def write_legacy(path: Path, shape: Sequence[int | None], layers: Sequence[Layer]) -> Path:
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = json.dumps(described(shape, layers))
        for number, (_, _, arrays) in enumerate(layers, start=1):
            group = file.create_group(f"model_weights/l{number}")
            for name, array in arrays.items():
                group[f"l{number}/{name}:0"] = np.asarray(array)
    return path
