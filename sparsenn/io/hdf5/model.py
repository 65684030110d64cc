"""One HDF5 file for a trained model: its layers, what it was trained for, and provenance.

Everything is stored as it is in memory, uncompressed and contiguous.

::

    attributes          format = "sparsenn model", version
    description         JSON: loss (or null), classes (whether the outputs are scores of classes), provenance; image
                        (channels, height and width, or null) and resize (how other images become so, or null);
                        input_layout (the fields of an `InputLayout`; absent where there is none); needs_float64 (true
                        where float32 does not suffice, else absent); named_inputs and named_outputs (the shape of each
                        by its name; absent where there are none); class_names (of text, or null) and table (columns,
                        each with name, categories and fill; targets; named; or null)
    layers, layerK/, sources  the layers and what they read, as `sparsenn.io.hdf5.model_layers` has them
    scaling/            float64 factor, mean, deviation: one number, or one per column; absent where there is none

Version 5 is written. Version 4 has no slices, named inputs and named outputs. Versions 2 and 3 have branches in another
form; version 2 has no class names, table and scaling.
Files of version 1 hold dense layers only, and neither image nor resize; checkpoints hold their layers likewise::

    layers              one record a layer, `DENSE_LAYER`
    layer1/weights      float32 (inputs, outputs); so for each layer, counted from 1
    layer1/bias         float32 (outputs,)
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import h5py
import numpy as np

from sparsenn.errors import FileFormatError, SparseNNError, UsageError
from sparsenn.formats import INDEX32_LIMIT, Scaling
from sparsenn.io.bounded import open_plain, reading
from sparsenn.io.description import description_of, model_described
from sparsenn.io.hdf5.model_layers import activation_fields, read_activation, read_model_layers, write_model_layers
from sparsenn.io.hdf5.reading import Hdf5Source, opened
from sparsenn.io.hdf5.writing import created_as
from sparsenn.layers import Linear
from sparsenn.model import Model
from sparsenn.network import Network
from sparsenn.printable import kind_of

_MODEL = "sparsenn model"
_VERSION = 5
_DENSE_VERSION = 1
_SIGNATURE = b"\x89HDF\r\n\x1a\n"

_SCALING = ("factor", "mean", "deviation")
_NAMED = ("named_inputs", "named_outputs")
KERAS_DESCRIPTION = "model_config"  # the attribute in which Keras describes a model
_KERAS_ATTRIBUTES = KERAS_DESCRIPTION, "layer_names"  # of its models, and of weights alone

DENSE_LAYER = np.dtype([("inputs", "<i8"), ("outputs", "<i8"), ("activation", "S16"), ("clip", "<f8")])
"""Columns of the table of layers; NaN stands for a layer without a clip."""


def write_model(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model, whole or not at all. A bias that is one number or none becomes a vector."""
    if not isinstance(model, Model):
        raise UsageError(
            f"write_model takes a path and a Model, not {kind_of(path)} and {kind_of(model)}; "
            "sparsenn.Model(network) makes a Model of a network"
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
    """Read what `write_model` wrote, or a version of this package that knew dense layers only."""
    with opened(path) as source:
        description = source.description((_MODEL,), range(_DENSE_VERSION, _VERSION + 1))
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
        network = Network(layers, None if image is None else (image[0], image[1], image[2]), needs_float64, **named)
        model = model_described(network, description, provenance)
        return replace(model, resize=resize, scaling=None if scaling is None else Scaling(*scaling))
    except SparseNNError as error:
        raise FileFormatError(path, str(error)) from error


def is_keras(path: str | os.PathLike[str]) -> bool:
    """Return whether an HDF5 file is a model that Keras wrote, or weights of one without its layers."""
    with opened(path) as source:
        return any(map(source.has_attribute, _KERAS_ATTRIBUTES))


def is_model(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of an HDF5 file which says that it is a model; it may be damaged nevertheless."""
    try:
        with open_plain(path) as file, reading(path):
            if file.read(len(_SIGNATURE)) != _SIGNATURE:
                return False
        with opened(path) as source:
            return source.attribute("format") == _MODEL or any(map(source.has_attribute, _KERAS_ATTRIBUTES))
    except SparseNNError:
        return False


def write_dense_layers(group: h5py.Group, layers: Sequence[Linear]) -> None:
    """Write layers into a file or a group of one."""
    group["layers"] = np.array(
        [
            (*layer.weights.shape, *activation_fields(number, layer.activation))
            for number, layer in enumerate(layers, start=1)
        ],
        DENSE_LAYER,
    )
    for number, layer in enumerate(layers, start=1):
        group[f"layer{number}/weights"] = layer.weights.astype("<f4")
        group[f"layer{number}/bias"] = layer.bias_vector().astype("<f4")


def read_dense_layers(source: Hdf5Source) -> tuple[Linear, ...]:
    """Read what `write_dense_layers` wrote."""
    table = source.vector("layers", DENSE_LAYER)
    if not table.size:
        raise source.fault("layers is empty; a network needs at least one layer")
    return tuple(_layer(source, number, record) for number, record in enumerate(table, start=1))


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


def _is_image(image: Any) -> bool:
    """Whether this is what a description says of images: nothing, or three sizes of an image that can be a row."""
    if not isinstance(image, list):
        return image is None
    whole = len(image) == 3 and all(type(size) is int and 1 <= size <= INDEX32_LIMIT for size in image)
    return whole and math.prod(image) <= INDEX32_LIMIT
