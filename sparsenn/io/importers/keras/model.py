"""Models that Keras saved: `.keras` archives, and `.h5` files of versions before; neither Keras nor any code is run.

::

    NAME.keras          a zip archive: config.json; and model.weights.h5 with layers/<class>[_number]/vars/0, 1, ...
    NAME.h5             attribute model_config (JSON); model_weights/<layer>/.../<layer>/<array>
    NAME.weights.h5     what model.weights.h5 holds, or what model_weights does; the description is in another file
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sparsenn.errors import FileFormatError, InputError, UsageError, prefix_errors
from sparsenn.formats import InputLayout
from sparsenn.io.bounded import open_plain, reading
from sparsenn.io.hdf5.heap import heap_texts
from sparsenn.io.hdf5.model import KERAS_DESCRIPTION
from sparsenn.io.hdf5.reading import Hdf5Source, opened
from sparsenn.io.importers.combinations import network_between, slices_of_inputs
from sparsenn.io.importers.keras.graph import Source, placed_layers
from sparsenn.io.importers.keras.layers import LAYERS, dimensions_of
from sparsenn.io.importers.keras.operations import operated
from sparsenn.io.importers.keras.reading import OPERATION, Layer
from sparsenn.io.importers.keras.weights import KerasWeights, stored_weights
from sparsenn.io.importers.rounding import check_rounding
from sparsenn.io.importers.signal import Signal, inputs
from sparsenn.layers.sparse_or_dense import SPARSE_BELOW
from sparsenn.model import Model, imported_model
from sparsenn.network import Network
from sparsenn.printable import kind_of, reason_of
from sparsenn.runtime.memory import check_memory
from sparsenn.structure.onnx_graph import with_own_graph

_LONGEST_CONFIG = 1 << 26  # bytes of a model's description

_SIGNATURES = {b"PK\x03\x04": "zip", b"\x89HDF": "hdf5"}


def from_keras(
    path: str | os.PathLike[str] | Any,
    *,
    architecture: str | os.PathLike[str] | None = None,
    sparse_below: float = SPARSE_BELOW,
    through: str | None = None,
) -> Network:
    """Return the network of a model of Keras, or of one that Keras saved: a `Sequential`, or a functional one.

    Images are rows channel by channel here, whichever way Keras held them: one of shape (height, width, channels) is
    given as (channels, height, width). Several inputs and outputs have the names of their layers.

    Parameters
    ----------
    path : str, path-like or keras.Model
        A `.keras` archive, an `.h5` file with the model's description, or one of weights alone, as `save_weights`
        writes it; or a model, which is saved to a temporary file.
    architecture : str or path-like, optional
        For a file of weights alone: the model's description, which `model.to_json()` returns, or a file that holds it.
    sparse_below : float, default 0.5
        A fully connected layer in which a smaller share of weights is not zero becomes sparse.
    through : {"onnx"}, optional
        Have Keras, with PyTorch or TensorFlow behind it, make an ONNX graph of any model, and read that as `from_onnx`
        does: what has no layer here, ONNX Runtime computes. Images are then rows as Keras holds them.

    Returns
    -------
    Network
        Its `image` is (channels, height, width) where it takes images.

    Raises
    ------
    FileFormatError
        The file is damaged, or no model of Keras; or the model computes something that no layer here does; the message
        names the layer.
    InputError, ResourceError
        The file is not there, cannot be read, or is larger than memory; or Keras cannot save the model, or as above.
    UsageError
        There is an architecture for a file that has its own, or the argument is neither a path nor a model; there is no
        other format of that name, or Keras is not installed.
    """
    if through is not None:
        if through != "onnx" or architecture is not None:
            raise UsageError(f'through is {through!r}; give "onnx", and a whole model, without an architecture')
        from sparsenn.io.importers.keras.through_onnx import network_through_onnx

        return network_through_onnx(path, sparse_below)
    if isinstance(path, str | os.PathLike):
        return _read(path, sparse_below, architecture)[0]
    if not hasattr(path, "save"):
        raise UsageError(f"{kind_of(path)} is no model of Keras, and no path of one")
    with TemporaryDirectory(prefix="sparsenn-") as folder:
        saved = Path(folder, "model.keras")
        try:
            path.save(saved)
        except Exception as error:  # of any kind: the model's own code runs
            raise InputError(f"Keras cannot save {kind_of(path)}: {reason_of(error)}") from error
        try:
            return _read(saved, sparse_below, architecture)[0]
        except FileFormatError as error:
            raise InputError(f"{kind_of(path)}: {error.message}") from error


def read_keras(path: str | os.PathLike[str]) -> Model:
    """Read such a file as a model; errors are those of `from_keras`.

    Several outputs are taken for scores of classes, unless the file names a loss that has nothing to do with classes.
    """
    network, config = _read(path, SPARSE_BELOW)
    trained = config.get("compile_config")
    loss = trained.get("loss") if isinstance(trained, dict) else None
    classes = "crossentropy" in loss if isinstance(loss, str) else None
    return imported_model(network, {"source": "Keras"}, None if classes else classes)


def _read(
    path: str | os.PathLike[str], sparse_below: float, architecture: str | os.PathLike[str] | None = None
) -> tuple[Network, dict[str, Any]]:
    """Return the network of a file, and what it says of the model."""
    with open_plain(path) as file, reading(path):
        kind = _SIGNATURES.get(file.read(4))
    if kind is None:
        raise FileFormatError(path, "is neither a .keras archive nor an .h5 file of Keras")
    try:
        if kind == "zip":
            _check_needed(path, architecture)
            with _archive(path) as (config, source):
                return _network(config, stored_weights(source), sparse_below), config
        with opened(path) as source:
            config = _config(path, source, architecture)
            return _network(config, stored_weights(source), sparse_below), config
    except FileFormatError:
        raise
    except InputError as error:
        raise FileFormatError(path, str(error)) from error
    except RecursionError as error:
        raise FileFormatError(path, "the model's description is nested too deeply; the file is damaged") from error


def _check_needed(path: str | os.PathLike[str], architecture: str | os.PathLike[str] | None) -> None:
    if architecture is not None:
        raise UsageError(f"{os.fspath(path)}: describes its model itself; leave out architecture")


@contextmanager
def _archive(path: str | os.PathLike[str]) -> Iterator[tuple[dict[str, Any], Hdf5Source]]:
    """Yield what a `.keras` archive says of the model, and its weights."""
    try:
        with open_plain(path) as plain, reading(path), zipfile.ZipFile(plain) as archive:
            text = _member(path, archive, "config.json", _LONGEST_CONFIG)
            weights = _member(path, archive, "model.weights.h5", None)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise FileFormatError(path, f"not a .keras archive, or damaged ({error}); fetch or make it again") from error
    with opened(path, io.BytesIO(weights)) as source:
        yield _json(path, text), source


def _member(path: str | os.PathLike[str], archive: zipfile.ZipFile, name: str, most: int | None) -> bytes:
    if name not in archive.namelist():
        raise FileFormatError(path, f"holds no {name}; save the model with model.save(NAME)")
    member = archive.getinfo(name)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise NotImplementedError(f"{name} is compressed in a way that Keras does not write")
    if most is not None and member.file_size > most:
        raise FileFormatError(path, f"{name} has {member.file_size:,} bytes; {most:,} are the most")
    check_memory(2 * member.file_size, f"{os.fspath(path)}: {name}")
    return archive.read(member)


def _config(
    path: str | os.PathLike[str], source: Hdf5Source, architecture: str | os.PathLike[str] | None
) -> dict[str, Any]:
    """Return what an `.h5` file says of the model, or what is said of it elsewhere."""
    if not source.has_attribute(KERAS_DESCRIPTION):
        if architecture is not None:
            return _architecture(architecture)
        raise FileFormatError(
            path,
            "holds no model_config, only weights; save the whole model with model.save(NAME), or give the model's "
            "description, model.to_json(), to sparsenn.from_keras as its architecture",
        )
    _check_needed(path, architecture)
    text = source.attribute(KERAS_DESCRIPTION)
    if isinstance(text, str):
        return _json(path, text.encode())
    for found in heap_texts(path, _LONGEST_CONFIG):
        if found.startswith(b"{") and b'"class_name"' in found[:_LONGEST_CONFIG]:
            config = _json(path, found)
            if "class_name" in config:
                return config
    raise FileFormatError(path, "it has no model_config; the file is damaged")


def _architecture(source: str | os.PathLike[str]) -> dict[str, Any]:
    if not isinstance(source, str | os.PathLike):
        raise UsageError(f"architecture is {type(source).__name__}; the JSON text, or the path of a file, is needed")
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return _json("architecture", source.encode())
    with open_plain(source) as file, reading(source):
        text = file.read(_LONGEST_CONFIG + 1)
    if len(text) > _LONGEST_CONFIG:
        raise FileFormatError(source, f"is longer than {_LONGEST_CONFIG:,} bytes, the most for a description")
    return _json(source, text)


def _json(path: str | os.PathLike[str], text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(path, f"the model's description is not JSON ({error}); the file is damaged") from error
    if not isinstance(found, dict):
        raise FileFormatError(path, "the model's description is not a JSON object; the file is damaged")
    return found


def _network(config: Any, store: KerasWeights, sparse_below: float) -> Network:
    layers, outputs = placed_layers(config, store)
    formats = {
        placed.config["data_format"]
        for placed in layers
        if dimensions_of(placed.kind) > 0 and isinstance(placed.config.get("data_format"), str)
    }
    if len(formats) > 1:
        raise InputError("some layers hold images with the channels first, and some with the channels last")
    channels_last = formats != {"channels_first"}
    shapes = {placed.name: placed.config for placed in layers if placed.kind == "InputLayer" and not placed.args}
    entering = slices_of_inputs(
        {
            name: _entering(_input_shape(config, layer), channels_last, sparse_below)
            for name, layer in (shapes or {"": layers[0].config if layers else {}}).items()
        }
    )
    signals = dict(entering)
    for name, kind, own, path, args, kwargs in layers:
        values = [_value(value, signals) for value in args]
        if kind == "InputLayer":
            if values:
                signals[name] = values[0]
            continue
        with prefix_errors(f"{name} ({kind})"):
            layer = Layer(kind, own, partial(store.weights, path, name), channels_last)
            if kind.startswith(OPERATION):
                signals[name] = operated(layer, values, {key: _value(value, signals) for key, value in kwargs.items()})
            else:
                signals[name] = layer.read(LAYERS[kind], *values)
    made = {name: signals[source.name] for name, source in outputs.items()}
    if len(entering) == len(made) == 1:
        (signal,) = made.values()
        return with_own_graph(check_rounding(signal.network(), signal.entering))
    network, scaling = network_between(entering, made)
    if len(entering) > 1 and channels_last:
        network = replace(network, input_layout=InputLayout(channels_last=True))
    return with_own_graph(check_rounding(network, scaling))


def _entering(sizes: tuple[int, ...] | None, channels_last: bool, sparse_below: float) -> Signal:
    """Return an input of a shape, as Keras holds it."""
    first = (sizes[-1], *sizes[:-1]) if sizes is not None and channels_last else sizes
    layout = InputLayout(sizes, channels_last) if sizes is not None and len(sizes) > 1 else None
    signal = inputs(first, "have the model begin with an Input", sparse_below)
    # A sequence has two axes, not those of an image of one line, so that axes are counted as Keras does.
    return signal if first is None else replace(signal, shape=first, layout=layout)


def _value(value: Any, signals: Mapping[str, Signal]) -> Any:
    if isinstance(value, Source):
        return signals[value.name]
    return [_value(each, signals) for each in value] if isinstance(value, list) else value


def _input_shape(config: Mapping[str, Any], first: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the shape of one input, as Keras holds it; None if neither the first layer nor the model has one."""
    inner = config["config"]
    outer = inner.get("build_input_shape") if isinstance(inner, dict) else None
    shape = first.get("batch_shape") or first.get("batch_input_shape") or outer
    if shape is None:
        return None
    if not isinstance(shape, list) or not 2 <= len(shape) <= 4:
        raise InputError(f"inputs have the shape {shape}; rows and images are supported")
    sizes = shape[1:]
    if any(type(size) is not int or not 1 <= size < 1 << 31 for size in sizes):
        if sizes == [None]:
            return None
        raise InputError(f"inputs have the shape {shape}; all sizes but the first are needed")
    return tuple(sizes)
