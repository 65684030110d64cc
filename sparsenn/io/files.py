"""Files of models: which names they have, and what reads and writes each kind.

To add a kind, add it to `KINDS`; its module is imported when such a file is first met.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparsenn.errors import UsageError

if TYPE_CHECKING:
    from sparsenn.io.importers.onnx.graph_inputs import InputShapes
    from sparsenn.model import Model


@dataclass(frozen=True)
class ModelKind:
    """A kind of file that holds a model.

    name : what messages call it.
    suffixes : how names of such files end, in small letters.
    reader : "module:function", which takes a path and returns a `Model`.
    writer : "module:function", which takes a path and a `Model`; None where such files are only read.
    """

    name: str
    suffixes: tuple[str, ...]
    reader: str
    writer: str | None = None


KINDS = (
    ModelKind("HDF5", (".h5", ".hdf5"), "sparsenn.io.hdf5.model:read_model", "sparsenn.io.hdf5.model:write_model"),
    ModelKind(
        "ONNX",
        (".onnx", ".onnx.gz"),
        "sparsenn.io.importers.onnx.files:read_onnx",
        "sparsenn.io.importers.onnx.files:write_onnx",
    ),
    ModelKind("Keras", (".keras",), "sparsenn.io.importers.keras.model:read_keras"),
    ModelKind("weights", (".safetensors", ".npz"), "sparsenn.io.importers.weights:read_weights"),
    ModelKind(
        "pickled",
        (".pt", ".pt2", ".pth", ".ckpt", ".jit", ".pkl", ".pickle", ".joblib"),
        "sparsenn.io.importers.weights:read_weights",
    ),
)
"""Every kind. Those that are pickled are refused, for they run code; the message says what to do."""

_HDF5, _ONNX, _KERAS, _WEIGHTS, _PICKLED = KINDS

WRITTEN_SUFFIXES = tuple(suffix for kind in KINDS for suffix in kind.suffixes if kind.writer)
"""How names of models end that can be written."""


def kind_of(path: str | os.PathLike[str]) -> ModelKind | None:
    """Return the kind of file by its name; None where the name says nothing. An HDF5 file may hold something else."""
    if not isinstance(path, str | os.PathLike):
        return None  # whoever opens it says so
    name = os.fsdecode(path).lower()
    return next((kind for kind in KINDS if name.endswith(kind.suffixes)), None)


def is_model(path: str | os.PathLike[str]) -> bool:
    """Say whether a file is a model by its name, and by its content where it is HDF5.

    The file may be damaged or missing. An HDF5 file of another name is one by its content.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    bool
        Whether it is.
    """
    found: bool = (kind_of(path) or _HDF5) is not _HDF5 or _function("sparsenn.io.hdf5.model:is_model")(path)
    return found


def read_model(path: str | os.PathLike[str], steps: str | None = None, *, shape: InputShapes | None = None) -> Model:
    """Read a model from any kind of file in `KINDS`; any other name is read as HDF5.

    Parameters
    ----------
    path : str or path-like
        The file.
    steps : str, optional
        Of weights alone, what is applied and in which order, as `from_weights` takes it as text.
    shape : tuple of int, or dict of str to tuple of int, optional
        Of one sample, where an ONNX file leaves sizes open, as `from_onnx` takes it.

    Returns
    -------
    Model
        The network and what is known of it.

    Raises
    ------
    FileFormatError
        The file is damaged, or is not what its name says.
    InputError, ResourceError
        It is not there, cannot be read, is larger than memory, or holds what no layer here can do.
    UsageError
        There are steps or a shape for a file that has its own.
    ShapeError
        The shape does not fit the model.
    """
    kind = kind_of(path) or _HDF5
    if kind is _HDF5 and _function("sparsenn.io.hdf5.model:is_keras")(path):
        kind = _KERAS
    if steps is not None and kind.reader != _WEIGHTS.reader:
        raise UsageError(
            f"{path}: steps (--steps) apply only to files of weights alone, {' and '.join(_WEIGHTS.suffixes)} files"
        )
    if shape is not None and kind is not _ONNX:
        raise UsageError(f"{path}: a shape is for ONNX files that leave sizes open; leave it out")
    options = {name: value for name, value in (("steps", steps), ("shape", shape)) if value is not None}
    found: Model = _function(kind.reader)(path, **options)
    return found


def write_model(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model, whole or not at all, as the kind of file that the name says, or as HDF5.

    Parameters
    ----------
    path : str or path-like
        The file; one that is there is replaced.
    model : Model
        The model.

    Raises
    ------
    UsageError
        Files of this name are only read; the arguments are not a path and a model; or such files cannot hold the
        model.
    ResourceError
        The file cannot be written.
    """
    kind = kind_of(path) or _HDF5
    if kind.writer is None:
        raise UsageError(f"{path}: {kind.name} can only be read; models are written as {', '.join(WRITTEN_SUFFIXES)}")
    _function(kind.writer)(path, model)


def _function(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
