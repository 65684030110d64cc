"""ONNX files as models of this package."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from sparsenn.errors import FileFormatError, InputError, OpenSizesError, ResourceError, SparseNNError, UsageError
from sparsenn.io.bounded import Source
from sparsenn.io.description import description_of, model_described
from sparsenn.io.importers.onnx.graph import Imported
from sparsenn.io.importers.onnx.graph_inputs import InputShapes, fix_sizes
from sparsenn.io.importers.onnx.mixed import import_graph
from sparsenn.io.importers.onnx.tensors import Tensors
from sparsenn.io.importers.onnx.whole_graph import whole_graph
from sparsenn.io.importers.rounding import check_rounding
from sparsenn.layers.sparse_or_dense import SPARSE_BELOW
from sparsenn.model import Model, imported_model, with_onnx_graph
from sparsenn.network import Network
from sparsenn.printable import kind_of, reason_of
from sparsenn.runtime.memory import check_memory
from sparsenn.runtime.storage import open_to_write, replacing
from sparsenn.structure.onnx_graph import MOST_BYTES, export_graph

_HDF5 = b"\x89HDF"  # what files of HDF5 begin with

_METADATA = "sparsenn"
"""The key of the JSON that describes the model beyond its nodes."""


def from_onnx(
    model: Any, *, shape: InputShapes | None = None, sparse_below: float = SPARSE_BELOW, foreign: bool = True
) -> Network:
    """Return the network of an ONNX model.

    Rows are those of the model's input, each flattened, its first axis slowest. A softmax at the end stays; an ArgMax
    at the end is left to whoever gets the scores.

    Parameters
    ----------
    model : str, path-like, bytes or onnx.ModelProto
        A file, `.onnx` or `.onnx.gz`, the bytes of one, or what `onnx.load` returns.
    shape : tuple of int, or dict of str to tuple of int, optional
        Of one sample of the input, or of each input by its name, where the file leaves sizes open besides the number of
        rows, such as those of images: `(3, 224, 224)`.
    sparse_below : float, default 0.5
        A fully connected layer in which a smaller share of weights is not zero becomes sparse.
    foreign : bool, default True
        Whether nodes that have no layer here become layers that ONNX Runtime computes, and sessions may let it run the
        whole network where that is faster; False refuses both.

    Returns
    -------
    Network
        Its `image` is (channels, height, width) where it takes images.

    Raises
    ------
    InputError
        The graph is damaged, or has what no network here can do; the message names the node, its operator and what
        would be needed. Of a file it is a `FileFormatError`; of sizes that no shape fixes, an `OpenSizesError`.
    ResourceError
        It is larger than memory, or the file cannot be read.
    UsageError
        That is no model, or the shape names no input of it.
    ShapeError
        The shape does not fit an input.
    """
    if isinstance(model, str | os.PathLike):
        return _imported(model, shape, sparse_below, foreign)[0].network
    if isinstance(model, bytes):
        try:
            model = onnx.ModelProto.FromString(model)
        except Exception as error:
            raise InputError(f"these {len(model):,} bytes are not an ONNX model, or damaged") from error
    elif not isinstance(model, onnx.ModelProto):
        raise UsageError(f"the model is {kind_of(model)}; give a path, bytes or an onnx.ModelProto")
    if shape is not None:
        original, model = model, onnx.ModelProto()
        model.CopyFrom(original)
        fix_sizes(model.graph, shape)
    return _built(model, None, sparse_below, foreign).network


def to_onnx(network: Network | Model, path: str | os.PathLike[str], sparse: bool = False) -> None:
    """Write a network as an ONNX file, whole or not at all; its input and output have an open number of rows.

    Parameters
    ----------
    network : Network or Model
        Of any layers of this package. One of images takes (samples, channels, height, width). A model's scaling of
        inputs becomes nodes, in float32; what it was trained for, its class names and its columns become metadata,
        which `read_model` reads.
    path : str or path-like
        The file, `.onnx` or `.onnx.gz`.
    sparse : bool, default False
        Keep the weights of sparse layers as sparse initialisers, which few programs besides this one read.

    Raises
    ------
    UsageError
        It is no network or model, a layer has an activation that ONNX does not know, the model makes several inputs of
        a column of texts or resizes images, or the file would be too large for one protobuf.
    ResourceError
        The file cannot be written.
    """
    if not isinstance(network, Network | Model):
        raise UsageError(f"to_onnx takes a network or a model, not {kind_of(network)}")
    model = _proto(network, sparse) if isinstance(network, Model) else export_graph(network, sparse)
    try:
        onnx.checker.check_model(model)
        content = model.SerializeToString()
    except Exception as error:  # the checker raises several kinds of errors
        raise UsageError(f"the network does not make a valid ONNX file: {reason_of(error)}") from error
    with replacing(path) as temporary, open_to_write(temporary, path) as file:
        file.write(content)


def read_onnx(path: str | os.PathLike[str], shape: InputShapes | None = None) -> Model:
    """Read an ONNX file as a model; several outputs are taken for scores of classes unless the file says otherwise.

    The shape and the errors are those of `from_onnx`.
    """
    imported, proto = _imported(path, shape)
    versions = (f"{opset.domain or 'opset'} {opset.version}" for opset in proto.opset_import)
    provenance = {"format": f"ONNX, {', '.join(versions)}"}
    if proto.producer_name:
        provenance["producer"] = f"{proto.producer_name} {proto.producer_version}".strip()
    if imported.dequantised:
        provenance["quantised weights"] = f"{imported.dequantised:,} tensors, dequantised to float32"
    own = next((entry.value for entry in proto.metadata_props if entry.key == _METADATA), None)
    if own is not None:
        return _described(path, imported.network, own, provenance)
    if imported.labels:
        provenance["classes"] = ", ".join(imported.labels)
    named = len(set(imported.labels)) == len(imported.labels) == imported.network.outputs
    model = imported_model(imported.network, provenance, imported.classes or None)
    return replace(model, class_names=imported.labels) if named and model.classes else model


def write_onnx(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model as an ONNX file; errors are those of `to_onnx`."""
    to_onnx(model, path)


def _proto(model: Model, sparse: bool) -> Any:
    columns = () if model.encoding is None else model.encoding.columns
    texts = [column.name for column in columns if column.categories is not None]
    encodes = f"makes several inputs of the texts in the column {texts[0]!r}" if texts else None
    for does in (encodes, model.resize and "resizes images"):
        if does:
            raise UsageError(
                f"the model {does} before the first layer, which an ONNX file written here does not hold; "
                "sparsenn.to_onnx(model.network, path) writes the layers alone"
            )
    proto = export_graph(model.network, sparse, model.scaling)
    proto.metadata_props.add(key=_METADATA, value=json.dumps(description_of(model), ensure_ascii=False))
    return proto


def _described(path: str | os.PathLike[str], network: Network, text: str, provenance: dict[str, str]) -> Model:
    try:
        description = json.loads(text)
        return model_described(network, description if isinstance(description, dict) else {}, provenance)
    except (ValueError, RecursionError, SparseNNError) as error:
        raise FileFormatError(path, f"its metadata {_METADATA!r} are invalid: {error}") from error


def _imported(
    path: str | os.PathLike[str],
    shape: InputShapes | None = None,
    sparse_below: float = SPARSE_BELOW,
    foreign: bool = True,
) -> tuple[Imported, Any]:
    with Source(path, MOST_BYTES, excess="that a protobuf may have; refused") as source:
        if not source.compressed:
            check_memory(2 * source.size, f"{path}")
        content = source.read(MOST_BYTES + 1)
    if content.startswith(_HDF5):
        raise FileFormatError(path, "is HDF5, not ONNX; read_model and from_keras read such models")
    try:
        proto = onnx.ModelProto.FromString(content)
    except Exception as error:
        raise FileFormatError(path, "is not an ONNX model, or damaged; fetch or export it again") from error
    if shape is not None:
        fix_sizes(proto.graph, shape)
    try:
        return _built(proto, Path(path).parent, sparse_below, foreign), proto
    except FileFormatError:
        raise
    except OpenSizesError as error:
        raise OpenSizesError(f"{path}: {error}", error.sizes) from error
    except InputError as error:
        raise FileFormatError(path, str(error)) from error


def _built(proto: Any, folder: Path | None, sparse_below: float, foreign: bool) -> Imported:
    if not proto.HasField("graph") or not proto.graph.node:
        raise InputError("is not an ONNX model, or has no nodes")
    try:
        with np.errstate(all="ignore"):  # what leaves the finite numbers is refused where it would become a weight
            imported = import_graph(proto, Tensors(folder), sparse_below, foreign)
        parts = imported.network, imported.inputs, imported.outputs
        graph = whole_graph(proto, Tensors(folder), *parts) if foreign else None
    except MemoryError as error:
        raise ResourceError("the model is larger than the memory that is left") from error
    except UnicodeDecodeError as error:
        raise InputError(f"a name in it is no text ({error})") from error
    network = check_rounding(imported.network, imported.entering)
    return replace(imported, network=with_onnx_graph(network, graph))
