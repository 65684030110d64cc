"""ONNX files as models of this package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from sparsenn.errors import FileFormatError, InputError, ResourceError, UsageError
from sparsenn.io.bounded import Source
from sparsenn.io.imported_model import imported_model
from sparsenn.io.model import Model
from sparsenn.io.onnx.export import export_graph
from sparsenn.io.onnx.graph import Imported, import_graph
from sparsenn.io.onnx.library import onnx_library
from sparsenn.io.onnx.tensors import Tensors
from sparsenn.io.rounding import check_rounding
from sparsenn.memory import check_memory
from sparsenn.network import Network
from sparsenn.storage import open_to_write, replacing

__all__ = ["from_onnx", "read_onnx", "to_onnx", "write_onnx"]

_MOST_BYTES = (1 << 31) - 1
"""What a protobuf may have; larger models keep their weights in files beside it."""


def from_onnx(model: Any) -> Network:
    """Return the network of an ONNX model: a chain of layers.

    Rows are those of the model's input, each flattened, its first axis slowest. A softmax at the end stays; an ArgMax
    at the end is left to whoever gets the scores.

    Parameters
    ----------
    model : a path, .onnx or .onnx.gz, or an `onnx.ModelProto`.

    Raises
    ------
    InputError
        The graph is damaged, or has what no network here can do; the message names the node, its operator and what
        would be needed. Of a file it is a `FileFormatError`.
    ResourceError
        It is larger than memory, or the file cannot be read.
    UsageError
        The package onnx is not installed, or that is no model.
    """
    if isinstance(model, str | os.PathLike):
        return _imported(model)[0].network
    proto = onnx_library().ModelProto
    if not isinstance(model, proto):
        raise UsageError(f"the model is a {type(model).__name__}; give a path or an onnx.ModelProto")
    return _built(model, None).network


def to_onnx(network: Network, path: str | os.PathLike[str], sparse: bool = False) -> None:
    """Write a network as an ONNX file, whole or not at all; its input and output have an open number of rows.

    Parameters
    ----------
    network : of any layers of this package. One of images takes (rows, channels, height, width).
    path : .onnx or .onnx.gz.
    sparse : keep the weights of sparse layers as sparse initialisers, which few programs besides this one read.

    Raises
    ------
    UsageError
        It is no network, a layer has an activation that ONNX does not know, the file would be too large for one
        protobuf, or the package onnx is not installed.
    ResourceError
        The file cannot be written.
    """
    if not isinstance(network, Network):
        raise UsageError(f"to_onnx takes a network, not a {type(network).__name__}")
    model = export_graph(network, sparse)
    try:
        onnx_library().checker.check_model(model)
        content = model.SerializeToString()
    except Exception as error:  # what does not fit is told in several ways
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"the network makes no sound ONNX file: {reason}") from error
    with replacing(path) as temporary, open_to_write(temporary, path) as file:
        file.write(content)


def read_onnx(path: str | os.PathLike[str]) -> Model:
    """Read an ONNX file as a model; several outputs are taken for scores of classes.

    Errors are those of `from_onnx`.
    """
    imported, proto = _imported(path)
    versions = (f"{opset.domain or 'opset'} {opset.version}" for opset in proto.opset_import)
    provenance = {"format": f"ONNX, {', '.join(versions)}"}
    if proto.producer_name:
        provenance["producer"] = f"{proto.producer_name} {proto.producer_version}".strip()
    if imported.labels:
        provenance["classes"] = ", ".join(imported.labels)
    return imported_model(imported.network, provenance, imported.classes or None)


def write_onnx(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model's network as an ONNX file.

    Raises
    ------
    UsageError
        As `to_onnx` does; or the model does more than its layers do.
    """
    for part, found in (("scales", model.scaling), ("encodes columns of", model.encoding), ("resizes", model.resize)):
        if found is not None:
            raise UsageError(
                f"the model {part} its inputs before the first layer, which an ONNX file written here does not hold; "
                "sparsenn.to_onnx(model.network, path) writes the layers alone"
            )
    to_onnx(model.network, path)


def _imported(path: str | os.PathLike[str]) -> tuple[Imported, Any]:
    """Read a file and what its graph holds."""
    onnx = onnx_library()
    with Source(path, _MOST_BYTES, excess="that a protobuf may have; refused") as source:
        if not source.compressed:
            check_memory(2 * source.size, f"{path}")
        content = source.read(_MOST_BYTES + 1)
    try:
        proto = onnx.ModelProto.FromString(content)
    except Exception as error:
        raise FileFormatError(path, "is no ONNX model, or damaged; fetch or export it again") from error
    try:
        return _built(proto, Path(path).parent), proto
    except FileFormatError:
        raise
    except InputError as error:
        raise FileFormatError(path, str(error)) from error


def _built(proto: Any, folder: Path | None) -> Imported:
    if not proto.HasField("graph") or not proto.graph.node:
        raise InputError("is no ONNX model, or has no nodes")
    try:
        with np.errstate(all="ignore"):  # what leaves the finite numbers is refused where it would become a weight
            imported = import_graph(proto, Tensors(folder))
    except MemoryError as error:
        raise ResourceError("the model is larger than the memory that is left") from error
    check_rounding(imported.network)
    return imported
