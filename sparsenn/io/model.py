"""One HDF5 file for a trained model: its layers, what it was trained for, and provenance.

Everything is stored as it is in memory, uncompressed and contiguous.

::

    attributes          format = "sparsenn model", version
    description         JSON: loss, classes (whether the outputs are scores of classes), provenance; image (channels,
                        height and width, or null) and resize (how other images become so, or null); input_layout (the
                        fields of an `InputLayout`; absent where there is none); needs_float64 (true where float32 does
                        not suffice, else absent); named_inputs and named_outputs (the shape of each by its name; absent
                        where there are none); class_names (of text, or null) and table (columns, each with name,
                        categories and fill; targets; named; or null)
    layers, layerK/, sources  the layers and what they read, as `sparsenn.io.model_layers` has them
    scaling/            float64 factor, mean, deviation: one number, or one per column; absent where there is none

Version 5 is written. Version 4 has no slices, named inputs and named outputs. Versions 2 and 3 have branches in another
form; version 2 has no class names, table and scaling.
Files of version 1 hold dense layers only, and neither image nor resize; checkpoints hold their layers likewise::

    layers              one record a layer, `DENSE_LAYER`
    layer1/weights      float32 (inputs, outputs); so for each layer, counted from 1
    layer1/bias         float32 (outputs,)
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import h5py
import numpy as np

from sparsenn.backends.trainer import LOSSES
from sparsenn.errors import FileFormatError, InputError, ShapeError, SparseNNError, UsageError, unknown_name
from sparsenn.formats import INDEX32_LIMIT, Column, InputLayout, Scaling, TableEncoding
from sparsenn.io.bounded import open_plain, reading
from sparsenn.io.hdf5_source import Hdf5Source, opened
from sparsenn.io.hdf5_target import created
from sparsenn.io.model_layers import activation_fields, read_activation, read_model_layers, write_model_layers
from sparsenn.layers import Linear
from sparsenn.network import Image, Network
from sparsenn.printable import kind_of, one_line
from sparsenn.runtime.storage import replacing

__all__ = [
    "DENSE_LAYER",
    "KERAS_DESCRIPTION",
    "RESIZES",
    "Model",
    "check_form",
    "created_as",
    "description_of",
    "is_model",
    "model_described",
    "read_dense_layers",
    "read_model",
    "write_dense_layers",
    "write_model",
]

_MODEL = "sparsenn model"
_VERSION = 5
_DENSE_VERSION = 1
_SIGNATURE = b"\x89HDF\r\n\x1a\n"

_SCALING = ("factor", "mean", "deviation")
_NAMED = ("named_inputs", "named_outputs")
KERAS_DESCRIPTION = "model_config"
"""The attribute in which Keras describes a model."""

RESIZES = ("bilinear",)
"""How images may be brought to a model's size."""

DENSE_LAYER = np.dtype([("inputs", "<i8"), ("outputs", "<i8"), ("activation", "S16"), ("clip", "<f8")])
"""What the table holds of each layer; a clip of NaN is none."""


PRUNED = "pruned"
"""The part of a model's provenance that says what `Model.pruned` did."""


@dataclass(frozen=True, eq=False)
class Model:
    """A trained network and what it was trained for.

    Parameters
    ----------
    network : Network
        The layers.
    loss : str
        What was minimised: "mse" or "cross_entropy".
    classes : bool
        Whether each output is the score, or the probability, of a class.
    provenance : dict of str to str, optional
        How it was made, in words and figures.
    resize : str, optional
        How smaller images are brought to the size that the network takes, one of `RESIZES`; None where they are not.
    class_names : tuple of str, optional
        What the classes are called, in the order of the outputs; None where they are called 0, 1, ….
    encoding : TableEncoding, optional
        What the model takes of a table; None where that is a column for each input.
    scaling : Scaling, optional
        How inputs are scaled before the first layer; None where they are not.

    Raises
    ------
    UsageError
        The network is no `Network`, there is no such loss or way to resize, or images are to be resized for a network
        that takes none.
    ShapeError
        Class names, encoding or scaling do not fit the network.
    """

    network: Network
    loss: str
    classes: bool
    provenance: dict[str, str] = field(default_factory=dict)
    resize: str | None = None
    class_names: tuple[str, ...] | None = None
    encoding: TableEncoding | None = None
    scaling: Scaling | None = None

    __repr__ = one_line

    def __post_init__(self) -> None:
        if not isinstance(self.network, Network):
            raise UsageError(f"the network is {kind_of(self.network)}; a model holds a sparsenn.Network")
        if self.loss not in LOSSES:
            raise unknown_name("loss", str(self.loss), LOSSES)
        if self.resize is not None and self.resize not in RESIZES:
            raise unknown_name("way to resize", self.resize, RESIZES)
        if self.resize is not None and self.network.image is None:
            raise UsageError("images are resized for a network that takes images, and this one takes rows of features")
        if self.class_names is not None and len(self.class_names) != self.network.outputs:
            raise ShapeError(f"there are {len(self.class_names):,} class names for {self.network.outputs:,} outputs")
        if self.encoding is not None and self.encoding.width != self.network.inputs:
            raise ShapeError(
                f"the table gives {self.encoding.width:,} inputs; the network takes {self.network.inputs:,}"
            )
        if self.scaling is not None:
            self.scaling.check_width(self.network.inputs, self.network.image)

    def pruned(self, share: float) -> Model:
        """Keep a share of each layer's weights, as `Network.pruned` does; the provenance says so.

        Parameters
        ----------
        share : float
            The share that is kept, above 0 and at most 1.

        Returns
        -------
        Model
            The model with fewer weights.

        Raises
        ------
        UsageError
            The share is not above 0 and at most 1.
        """
        network = self.network.pruned(share)
        before, after = self.network.nonzeros, network.nonzeros
        told = (
            f"{before - after:,} of {before:,} weights were set to zero to show what sparsity would "
            f"gain: the model was not retrained and loses accuracy"
        )
        return replace(self, network=network, provenance={**self.provenance, PRUNED: told})


def write_model(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model, whole or not at all. A bias that is one number or none becomes a vector.

    Raises
    ------
    UsageError
        What is given is not a path and a model; or a layer or its activation is not one of this package's.
    ResourceError
        The file cannot be written.
    """
    if not isinstance(model, Model):
        raise UsageError(
            f"write_model takes a path and a Model, not {kind_of(path)} and {kind_of(model)}; "
            "sparsenn.Model(network, loss, classes) makes a Model of a network"
        )
    description = {
        **description_of(model),
        "provenance": model.provenance,
        "image": model.network.image,
        "resize": model.resize,
        **({"needs_float64": True} if model.network.needs_float64 else {}),
        **{name: shapes for name in _NAMED if (shapes := getattr(model.network, name)) is not None},
    }
    with created_as(path, _MODEL, _VERSION, description) as file:
        write_model_layers(file, model.network)
        if model.scaling is not None:
            for part in _SCALING:
                file[f"scaling/{part}"] = getattr(model.scaling, part).astype("<f8")


def read_model(path: str | os.PathLike[str]) -> Model:
    """Read what `write_model` wrote, or a version of this package that knew dense layers only; or what Keras did.

    Raises
    ------
    FileFormatError
        The file is not HDF5, no model of this package or of Keras, truncated, or does not hold what it should.
    InputError, ResourceError
        The file is not there, cannot be read, or is larger than memory.
    """
    with opened(path) as source:
        of_keras = source.has_attribute(KERAS_DESCRIPTION)
    if of_keras:
        from sparsenn.io.keras_model import read_keras

        return read_keras(path)
    with opened(path) as source:
        description = check_form(source, _MODEL, *range(_DENSE_VERSION, _VERSION + 1))
        dense = source.attribute("version") == _DENSE_VERSION
        layers = read_dense_layers(source) if dense else read_model_layers(source)
        scales = source.has("scaling/factor")
        scaling = [source.vector(f"scaling/{part}", "<f8") for part in _SCALING] if scales else None
    provenance = description.get("provenance")
    if not (isinstance(provenance, dict) and all(isinstance(note, str) for note in provenance.values())):
        raise FileFormatError(path, "description has no valid provenance")
    image, resize = (None, None) if dense else (description.get("image"), description.get("resize"))
    if not (_is_image(image) and isinstance(resize, str | None)):
        raise FileFormatError(path, "description has no valid image and resize")
    needs_float64 = description.get("needs_float64", False)
    if not isinstance(needs_float64, bool):
        raise FileFormatError(path, "description says neither true nor false of needs_float64")
    try:
        named = {name: description[name] for name in _NAMED if name in description}
        network = Network(layers, None if image is None else _image(image), needs_float64, **named)
        model = model_described(network, description, provenance)
        return replace(model, resize=resize, scaling=None if scaling is None else Scaling(*scaling))
    except SparseNNError as error:
        raise FileFormatError(path, str(error)) from error


def description_of(model: Model) -> dict[str, Any]:
    """Return what a model's file says of it besides its layers, for JSON.

    That is loss, classes, class_names and table; and input_layout, where there is one.
    """
    layout = model.network.input_layout
    return {
        "loss": model.loss,
        "classes": model.classes,
        "class_names": model.class_names,
        "table": None if model.encoding is None else asdict(model.encoding),
        **({} if layout is None else {"input_layout": asdict(layout)}),
    }


def model_described(network: Network, description: Mapping[str, Any], provenance: dict[str, str]) -> Model:
    """Return the model of a network and what `description_of` gave.

    Raises
    ------
    InputError
        The description is not sound, or does not fit the network.
    """
    loss, classes = description.get("loss"), description.get("classes")
    if not (isinstance(loss, str) and loss in LOSSES and isinstance(classes, bool)):
        raise InputError("description has no valid loss and classes")
    names, encoding = _class_names(description.get("class_names")), _encoding(description.get("table"))
    if "input_layout" in description:
        network = replace(network, input_layout=_input_layout(description["input_layout"]))
    return Model(network, loss, classes, provenance, class_names=names, encoding=encoding)


def is_model(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of an HDF5 file which says that it is a model; it may be damaged nevertheless."""
    try:
        with open_plain(path) as file, reading(path):
            if file.read(len(_SIGNATURE)) != _SIGNATURE:
                return False
        with opened(path) as source:
            return source.attribute("format") == _MODEL or source.has_attribute(KERAS_DESCRIPTION)
    except SparseNNError:
        return False


@contextmanager
def created_as(path: str | os.PathLike[str], form: str, version: int, description: Any) -> Iterator[h5py.File]:
    """Yield a new HDF5 file of this form, with its description as JSON; whole or not at all."""
    with replacing(path) as temporary, created(temporary) as file:
        file.attrs["format"], file.attrs["version"] = np.bytes_(form), version
        file["description"] = np.bytes_(json.dumps(description))
        yield file


def check_form(source: Hdf5Source, form: str, *versions: int) -> dict[str, Any]:
    """Return the description of a file, which must be of this form and one of these versions.

    Raises
    ------
    FileFormatError
        It is of another, or the description is not an object of JSON.
    """
    found, number = source.attribute("format"), source.attribute("version")
    if found != form:
        raise source.fault(f"not a {form}: {f'it says {found!r}' if found else 'it is some other HDF5 file'}")
    if number not in versions:
        known = ", ".join(map(str, versions))
        raise source.fault(
            f"has version {number}; this program reads version {known}: use the version of sparsenn that wrote it"
        )
    description = json.loads(source.text("description"))
    if not isinstance(description, dict):
        raise source.fault("description is not an object")
    return description


def write_dense_layers(group: h5py.Group, layers: Sequence[Linear]) -> None:
    """Write layers into a file or a group of one.

    Raises
    ------
    UsageError
        A layer has an activation that is not one of this package's.
    """
    group["layers"] = np.array([_record(number, layer) for number, layer in enumerate(layers, start=1)], DENSE_LAYER)
    for number, layer in enumerate(layers, start=1):
        group[f"layer{number}/weights"] = layer.weights.astype("<f4")
        group[f"layer{number}/bias"] = layer.bias_vector().astype("<f4")


def read_dense_layers(source: Hdf5Source) -> tuple[Linear, ...]:
    """Read what `write_dense_layers` wrote.

    Raises
    ------
    FileFormatError
        There is no layer, an array does not have its size, an activation is unknown, or a parameter is not finite.
    """
    table = source.vector("layers", DENSE_LAYER)
    if not table.size:
        raise source.fault("layers is empty; a network needs at least one layer")
    return tuple(_layer(source, number, record) for number, record in enumerate(table, start=1))


def _record(number: int, layer: Linear) -> tuple[object, ...]:
    return (*layer.weights.shape, *activation_fields(number, layer.activation))


def _layer(source: Hdf5Source, number: int, record: Any) -> Linear:
    weights = source.matrix(f"layer{number}/weights", "<f4")
    bias = source.vector(f"layer{number}/bias", "<f4")
    shape = int(record["inputs"]), int(record["outputs"])
    if weights.shape != shape or bias.shape != shape[1:]:
        raise source.fault(f"layer {number}: weights {weights.shape} and bias {bias.shape}; declared is {shape}")
    try:
        return Linear(weights, bias, read_activation(record))
    except SparseNNError as error:
        raise source.fault(f"layer {number}: {error}") from error


def _class_names(found: Any) -> tuple[str, ...] | None:
    """Return the class names of a description.

    Raises
    ------
    InputError
        They are no different texts.
    """
    if found is None:
        return None
    if not (isinstance(found, list) and all(isinstance(name, str) for name in found) and len(set(found)) == len(found)):
        raise InputError("description has no valid class_names")
    return tuple(found)


def _encoding(found: Any) -> TableEncoding | None:
    """Return what a description says of the table.

    Raises
    ------
    InputError
        It is not what `write_model` writes.
    """
    if found is None:
        return None
    try:
        columns = tuple(_column(**column) for column in found["columns"])
        targets, named = tuple(found["targets"]), found["named"]
    except (TypeError, KeyError) as error:
        raise InputError("description has no valid table") from error
    if not (all(isinstance(name, str) for name in targets) and isinstance(named, bool)):
        raise InputError("description has no valid table")
    return TableEncoding(columns, targets, named)


def _input_layout(found: Any) -> InputLayout:
    """Return what a description says of how one input is held.

    Raises
    ------
    InputError
        It is not what `write_model` writes, or not sound.
    """
    try:
        return InputLayout(**found)
    except TypeError as error:
        raise InputError("description has no valid input_layout") from error


def _column(name: Any, categories: Any, fill: Any) -> Column:
    texts = categories if isinstance(categories, list) else []
    sound = isinstance(name, str) and isinstance(categories, list | None) and isinstance(fill, str | float | None)
    if not sound or not all(isinstance(text, str) for text in texts):
        raise TypeError("a column")
    return Column(name, None if categories is None else tuple(texts), fill)


def _is_image(image: Any) -> bool:
    """Whether this is what a description says of images: nothing, or three sizes of an image that can be a row."""
    if not isinstance(image, list):
        return image is None
    whole = len(image) == 3 and all(type(size) is int and 1 <= size <= INDEX32_LIMIT for size in image)
    return whole and math.prod(image) <= INDEX32_LIMIT


def _image(sizes: list[int]) -> Image:
    channels, height, width = sizes
    return channels, height, width
