"""What a model gives for each row: its class, its outputs, or both, in the form that the file's name says."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.storage import replacing

__all__ = ["MODEL_OUTPUT_SUFFIXES", "write_model_output"]

MODEL_OUTPUT_SUFFIXES = (".tsv", ".csv", ".npy", ".npz", ".h5", ".hdf5")
"""What the name of such a file may end in."""


def write_model_output(
    path: str | os.PathLike[str], outputs: Array, predicted: Array | None, notes: Mapping[str, str]
) -> None:
    """Write what a model gives for some rows, whole or not at all.

    ==================  ============================================================================================
    `.tsv`, `.csv`      a line a row: its class; without classes its outputs, with nine significant digits, divided by
                        tabs or commas
    `.npy`              the classes, int64 of shape (rows,); without classes the outputs
    `.npz`              array outputs; and classes where there are some
    `.h5`, `.hdf5`      a result as `sparsenn.io.write_result` writes it; and dataset classes where there are some
    ==================  ============================================================================================

    Parameters
    ----------
    path : the file.
    outputs : (rows, outputs).
    predicted : (rows,), the class of each row, counted from 0; None for a model that does not tell classes apart.
    notes : words on the run, which go into HDF5.

    Raises
    ------
    UsageError
        The name ends in nothing that is known.
    ResourceError
        The file cannot be written.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in MODEL_OUTPUT_SUFFIXES:
        raise UsageError(f"{os.fspath(path)}: the name must end in {', '.join(MODEL_OUTPUT_SUFFIXES)}")
    if suffix in (".h5", ".hdf5"):
        _write_hdf5(path, outputs, predicted, notes)
        return
    told = outputs if predicted is None else predicted
    arrays: dict[str, Any] = {"outputs": outputs} if predicted is None else {"outputs": outputs, "classes": predicted}
    write: dict[str, Callable[[IO[bytes]], None]] = {
        ".tsv": lambda file: _write_text(file, told, "\t"),
        ".csv": lambda file: _write_text(file, told, ","),
        ".npy": lambda file: np.save(file, told, allow_pickle=False),
        ".npz": lambda file: np.savez(file, **arrays),
    }
    with replacing(path) as temporary, temporary.open("wb") as file:
        write[suffix](file)


def _write_text(file: IO[bytes], told: Array, delimiter: str) -> None:
    np.savetxt(file, told, "%d" if told.dtype.kind == "i" else "%.9g", delimiter=delimiter)


def _write_hdf5(
    path: str | os.PathLike[str], outputs: Array, predicted: Array | None, notes: Mapping[str, str]
) -> None:
    from sparsenn.formats import from_dense
    from sparsenn.io.hdf5 import write_result

    write_result(path, from_dense(outputs), np.flatnonzero(outputs.any(axis=1)), dict(notes), predicted)
