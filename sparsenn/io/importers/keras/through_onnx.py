"""Models of Keras as ONNX graphs, in which ONNX Runtime computes what has no layer."""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import onnx

from sparsenn.errors import InputError, UsageError
from sparsenn.io.importers.onnx.files import from_onnx
from sparsenn.network import Network
from sparsenn.printable import kind_of, reason_of


def network_through_onnx(model: str | os.PathLike[str] | Any, sparse_below: float) -> Network:
    """Return the network of the ONNX graph that Keras makes of a model, or of one in a file; no code in that is run."""
    try:
        keras = import_module("keras")
    except ImportError as error:
        raise UsageError(f'through="onnx" needs Keras and its backend, PyTorch or TensorFlow ({error})') from error
    is_file = isinstance(model, str | os.PathLike)
    shown = os.fspath(model) if is_file else kind_of(model)
    with TemporaryDirectory(prefix="sparsenn-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "model.onnx")
        try:
            if is_file and not keras.__version__.startswith("2."):
                _refuse_other_slopes(shown)
            loaded: Any = keras.saving.load_model(model, compile=False) if is_file else model
            rows = [keras.ops.zeros((2, *each.shape[1:]), each.dtype) for each in loaded.inputs]
            loaded(rows if len(rows) > 1 else rows[0])  # a model that has never been called is not exported
            loaded.export(path, format="onnx", verbose=False)
            proto = onnx.load(path)
        except Exception as error:  # of any kind: other packages run
            raise InputError(f"Keras cannot make an ONNX graph of {shown}: {reason_of(error)}") from error
    _name_outputs(proto.graph, getattr(loaded, "output_names", ()))  # a sequence of layers has one output
    return from_onnx(proto, sparse_below=sparse_below)


def _refuse_other_slopes(path: str) -> None:
    """Refuse a file of Keras 2 with a hard sigmoid: later versions compute another one."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            version, config = (archive.read(name).decode() for name in ("metadata.json", "config.json"))
        version = json.loads(version)["keras_version"]
    else:
        with h5py.File(path) as file:
            found = (file.attrs.get(name, "") for name in ("keras_version", "model_config"))
            version, config = (each.decode() if isinstance(each, bytes) else str(each) for each in found)
    if version.startswith(("1.", "2.")) and "hard_sigmoid" in config:
        raise InputError(f"Keras {version} saved it, and Keras 3 has another hard_sigmoid: export it with that version")


def _name_outputs(graph: Any, names: Sequence[str]) -> None:
    """Call a graph's outputs as Keras does, where no other value is called so."""
    taken = {value.name for value in graph.input}.union(*(node.output for node in graph.node))
    for value, name in zip(graph.output, names, strict=False):
        if name not in taken:
            graph.node.append(onnx.helper.make_node("Identity", [value.name], [name]))
            value.name = name
