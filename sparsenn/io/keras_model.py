"""Models that Keras saved: `.keras` archives, and `.h5` files of versions before; neither Keras nor any code is run.

::

    NAME.keras          a zip archive: config.json; and model.weights.h5 with layers/<class>[_number]/vars/0, 1, ...
    NAME.h5             attribute model_config (JSON); model_weights/<layer>/.../<layer>/<array>
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import IO, Any, NamedTuple

from sparsenn.errors import FileFormatError, InputError
from sparsenn.formats import Array, InputLayout
from sparsenn.io.bounded import open_plain, reading
from sparsenn.io.hdf5_heap import heap_texts
from sparsenn.io.hdf5_source import Hdf5Source, opened
from sparsenn.io.imported_model import imported_model
from sparsenn.io.keras_layers import JOINS, Layer, dimensions_of
from sparsenn.io.model import KERAS_DESCRIPTION, Model
from sparsenn.io.rounding import check_rounding
from sparsenn.io.signal import inputs, named
from sparsenn.layers.sparse_or_dense import SPARSE_BELOW
from sparsenn.memory import check_memory
from sparsenn.network import Network

__all__ = ["from_keras", "read_keras"]

_LONGEST_CONFIG = 1 << 26
"""Bytes of a model's description."""

_DEEPEST = 16
"""Models within models."""

_NUMBERS = ("<f2", "<f4", "<f8", "<i4", "<i8")
"""Types of arrays that are read."""

_SIGNATURES = {b"PK\x03\x04": "zip", b"\x89HDF": "hdf5"}


def from_keras(path: str | os.PathLike[str], *, sparse_below: float = SPARSE_BELOW) -> Network:
    """Return the network of a model that Keras saved: a `Sequential`, or a functional one with one input and output.

    Images are rows channel by channel here, whichever way Keras held them: one of shape (height, width, channels) is
    given as (channels, height, width).

    Parameters
    ----------
    path : str or path-like
        A `.keras` archive, or an `.h5` file with the model's description.
    sparse_below : float, default 0.5
        A fully connected layer in which a smaller share of weights is not zero becomes sparse.

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
        The file is not there, cannot be read, or is larger than memory.
    """
    return _read(path, sparse_below)[0]


def read_keras(path: str | os.PathLike[str]) -> Model:
    """Read such a file as a model; errors are those of `from_keras`.

    Several outputs are taken for scores of classes, unless a loss is told that has nothing to do with classes.
    """
    network, config = _read(path, SPARSE_BELOW)
    trained = config.get("compile_config")
    loss = trained.get("loss") if isinstance(trained, dict) else None
    classes = "crossentropy" in loss if isinstance(loss, str) else None
    return imported_model(network, {"source": "Keras"}, None if classes else classes)


def _read(path: str | os.PathLike[str], sparse_below: float) -> tuple[Network, dict[str, Any]]:
    """Return the network of a file, and what it says of the model."""
    with open_plain(path) as file, reading(path):
        kind = _SIGNATURES.get(file.read(4))
    try:
        if kind == "zip":
            with _archive(path) as (config, source):
                return _network(config, _Numbered(source), sparse_below), config
        if kind == "hdf5":
            with opened(path) as source:
                config = _config(path, source)
                return _network(config, _Named(source), sparse_below), config
    except FileFormatError:
        raise
    except InputError as error:
        raise FileFormatError(path, str(error)) from error
    raise FileFormatError(path, "is neither a .keras archive nor an .h5 file of Keras")


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
    """Read a file of an archive."""
    if name not in archive.namelist():
        raise FileFormatError(path, f"holds no {name}; save the model with model.save(NAME)")
    member = archive.getinfo(name)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise NotImplementedError(f"{name} is compressed in a way that Keras does not write")
    if most is not None and member.file_size > most:
        raise FileFormatError(path, f"{name} has {member.file_size:,} bytes; {most:,} are the most")
    check_memory(2 * member.file_size, f"{os.fspath(path)}: {name}")
    with archive.open(member) as file:
        return _whole(file, member.file_size)


def _whole(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) != size or file.read(1):
        raise EOFError("a file in it is not as long as it says")
    return data


def _config(path: str | os.PathLike[str], source: Hdf5Source) -> dict[str, Any]:
    """Return what an `.h5` file says of the model."""
    if not source.has_attribute(KERAS_DESCRIPTION):
        raise FileFormatError(path, "holds no model_config, only weights; save the whole model with model.save(NAME)")
    text = source.attribute(KERAS_DESCRIPTION)
    if isinstance(text, str):
        return _json(path, text.encode())
    for found in heap_texts(path, _LONGEST_CONFIG):
        if found.startswith(b"{") and b'"class_name"' in found[:_LONGEST_CONFIG]:
            config = _json(path, found)
            if "class_name" in config:
                return config
    raise FileFormatError(path, "it has no model_config; the file is damaged")


def _json(path: str | os.PathLike[str], text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(path, f"the model's description is not JSON ({error}); the file is damaged") from error
    if not isinstance(found, dict):
        raise FileFormatError(path, "the model's description is not a JSON object; the file is damaged")
    return found


class _Numbered:
    """Weights of a `.keras` archive: layers are named by their classes and counted, arrays by their numbers."""

    def __init__(self, source: Hdf5Source) -> None:
        self.source = source

    def inner(self, path: str, kind: str, name: str, counted: Counter[str]) -> str:
        """Return where a layer of a model is."""
        plain = re.sub(r"\W+", "", kind)
        plain = re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", plain)).lower()
        counted[plain] += 1
        number = counted[plain] - 1
        return f"{path}layers/{plain}_{number}/" if number else f"{path}layers/{plain}/"

    def weights(self, path: str, name: str, names: Sequence[str]) -> list[Array]:
        """Return the arrays of a layer."""
        there = self.source.names(f"{path}vars")
        if sorted(there) != sorted(map(str, range(len(names)))):
            raise InputError(f"has {len(there)} arrays; {len(names)} are needed: {', '.join(names)}")
        return [self.source.array(f"{path}vars/{number}", *_NUMBERS) for number in range(len(names))]


class _Named:
    """Weights of an `.h5` file: arrays lie in groups that are named like layers."""

    def __init__(self, source: Hdf5Source) -> None:
        self.source = source

    def inner(self, path: str, kind: str, name: str, counted: Counter[str]) -> str:
        """Return where a layer of a model is; those of models within the model lie deeper in its group."""
        return path or f"model_weights/{name}/"

    def weights(self, path: str, name: str, names: Sequence[str]) -> list[Array]:
        """Return the arrays of a layer."""
        found = {array.partition(":")[0]: f"{group}{array}" for group, array in self._arrays(path, name, 0)}
        if "kernel" in names and "depthwise_kernel" in found:  # as versions before 3 call it
            found["kernel"] = found.pop("depthwise_kernel")
        if sorted(found) != sorted(names):
            raise InputError(f"has the arrays {', '.join(found) or 'none'}; {', '.join(names)} are needed")
        return [self.source.array(found[each], *_NUMBERS) for each in names]

    def _arrays(self, path: str, name: str, depth: int) -> Iterator[tuple[str, str]]:
        """Yield the groups called like a layer, and what is in them."""
        for each in self.source.names(path.rstrip("/")):
            inner = self.source.names(f"{path}{each}")
            if inner and depth < 2 * _DEEPEST:
                yield from self._arrays(f"{path}{each}/", name, depth + 1)
            elif not inner and path.endswith(f"/{name}/") and depth:
                yield path, each


def _network(config: Any, store: _Numbered | _Named, sparse_below: float) -> Network:
    """Return the network that a model's description and weights make."""
    layers: list[_Placed] = []
    last = _walk(config, "", store, "", 0, "", layers)
    formats = {placed.layer["config"]["data_format"] for placed in layers if _slides(placed.layer)}
    if len(formats) > 1:
        raise InputError("some layers hold images with the channels first, and some with the channels last")
    channels_last = formats != {"channels_first"}
    sizes = _input_shape(config, layers)
    first = None if sizes is None else _channels_first(sizes, channels_last)
    layout = InputLayout(sizes, channels_last) if sizes is not None and len(sizes) > 1 else None
    signals = {"": replace(inputs(first, "have the model begin with an Input", sparse_below), given=layout)}
    for name, layer, path, sources in layers:
        kind, own = layer["class_name"], layer["config"]
        given = [signals[source] for source in sources]
        if kind == "InputLayer":
            signals[name] = given[0]
            continue
        with named(f"{name} ({kind})"):
            reader = Layer(kind, own, partial(store.weights, path, str(own.get("name"))), channels_last)
            signals[name] = reader.joined(given) if kind in JOINS else reader(given[0])
    return check_rounding(signals[last].network())


def _slides(layer: Mapping[str, Any]) -> bool:
    return dimensions_of(layer["class_name"]) > 0 and isinstance(layer["config"].get("data_format"), str)


class _Placed(NamedTuple):
    """A layer of a model.

    Parameters
    ----------
    name : its own, behind those of the models that it is in.
    layer : its description.
    path : of its weights.
    sources : names of the layers whose results it takes; the model's input has none.
    """

    name: str
    layer: dict[str, Any]
    path: str
    sources: list[str]


def _walk(
    model: Any, name: str, store: _Numbered | _Named, path: str, depth: int, given: str, found: list[_Placed]
) -> str:
    """Find the layers of a model, and of those within it, each after its sources; return which gives what it gives.

    Parameters
    ----------
    given : the layer whose results the model takes.
    found : put the layers here.
    """
    if depth > _DEEPEST:
        raise InputError(f"{name}: models within models, {depth} deep; {_DEEPEST} are the most")
    kind, config = _described(name, model)
    if kind not in ("Sequential", "Functional", "Model"):
        raise InputError(f"{name or 'the model'}: is a {kind}; Sequential models, and chains of layers, are supported")
    listed = config.get("layers")
    if not isinstance(listed, list):
        raise InputError(f"{name or 'the model'}: lists no layers")
    counted: Counter[str] = Counter()
    giving: dict[str, str] = {}  # by the names that layers have in this model
    before = given
    for layer in listed:
        kind, own = _described(name, layer)
        label = str(own.get("name", layer.get("name", kind)))
        place = f"{name}/{label}" if name else label
        sources = [before]
        if kind == "InputLayer":
            sources = [given]
            if giving:
                raise InputError(f"{place}: is another input; only models with one input are supported")
        elif "inbound_nodes" in layer:
            taken = _sources(layer["inbound_nodes"])
            once = len(layer["inbound_nodes"]) == 1 and (len(taken) == 1 or kind in JOINS)
            if not taken or not once or any(source not in giving for source in taken):
                raise InputError(f"{place} ({kind}): takes {taken or 'nothing'}; the result of one layer is needed")
            sources = [giving[source] for source in taken]
        inner = store.inner(path, kind, label, counted)
        if kind in ("Sequential", "Functional", "Model"):
            before = _walk(layer, place, store, inner, depth + 1, sources[0], found)
        else:
            found.append(_Placed(place, {**layer, "config": own, "class_name": kind}, inner, sources))
            before = place
        giving[str(layer.get("name", label))] = before
    outputs = _sources([config["output_layers"]]) if "output_layers" in config else None
    if outputs is None:
        return before
    if len(outputs) != 1 or outputs[0] not in giving:
        raise InputError(f"{name or 'the model'}: gives {outputs}; the result of one layer is needed")
    return giving[outputs[0]]


def _described(name: str, layer: Any) -> tuple[str, dict[str, Any]]:
    """Return the class and the configuration of a layer or a model."""
    kind, config = (layer.get(key) if isinstance(layer, dict) else None for key in ("class_name", "config"))
    if isinstance(config, list):  # as the first versions wrote models
        config = {"layers": config}
    if not isinstance(kind, str) or not isinstance(config, dict):
        raise InputError(f"{name or 'the model'}: a layer has no class_name and config")
    registered = layer.get("registered_name")  # of classes that are not Keras's own
    return (kind if registered is None else str(registered)), config


def _sources(nodes: Any) -> list[str]:
    """Return the names of the layers whose results a layer takes, each as often as it does."""
    if isinstance(nodes, dict):
        history = nodes.get("keras_history")
        return [str(history[0])] if isinstance(history, list) and history else _sources(list(nodes.values()))
    if not isinstance(nodes, list):
        return []
    if len(nodes) > 1 and isinstance(nodes[0], str) and isinstance(nodes[1], int):
        return [nodes[0]]
    return [name for node in nodes for name in _sources(node)]


def _channels_first(sizes: tuple[int, ...], channels_last: bool) -> tuple[int, ...]:
    """Return the shape of one input with the channels first."""
    rest = list(sizes)
    channels = rest.pop(-1 if channels_last else 0)
    return (channels, *([1] * (2 - len(rest))), *rest) if rest else (channels,)


def _input_shape(config: Mapping[str, Any], layers: Sequence[_Placed]) -> tuple[int, ...] | None:
    """Return the shape of one input; None if none is told."""
    first = layers[0].layer["config"] if layers else {}
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
