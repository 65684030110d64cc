"""What a model gives for each row: its class, its outputs, or both, in the form that the file's name says."""

from __future__ import annotations

import csv
import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib.format import write_array

from sparsenn.errors import UsageError
from sparsenn.formats import Array, from_dense
from sparsenn.formats.named_shapes import NamedShapes, named_columns
from sparsenn.io.arrays.idx import write_idx
from sparsenn.io.arrays.matrix_market import write_matrix_market
from sparsenn.io.tables.parquet import write_parquet_columns
from sparsenn.runtime.storage import replacing

__all__ = ["MODEL_OUTPUT_SUFFIXES", "write_model_output"]

MODEL_OUTPUT_SUFFIXES = (".tsv", ".csv", ".npy", ".npz", ".h5", ".hdf5", ".parquet", ".mtx", ".idx")
"""What the name of such a file may end in."""


def write_model_output(
    path: str | os.PathLike[str],
    outputs: Array,
    predicted: Array | None,
    notes: Mapping[str, str],
    class_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    named_outputs: NamedShapes | None = None,
) -> None:
    """Write what a model gives for some rows, whole or not at all.

    ==================  ============================================================================================
    `.tsv`, `.csv`      a line a row: its class; without classes its outputs, with nine significant digits (of float64
                        seventeen), divided by tabs or commas
    `.npy`              the classes, int64 of shape (rows,); without classes the outputs
    `.npz`              array outputs, or one for each of several named outputs; and classes where there are some, and
                        class_names where they have names
    `.h5`, `.hdf5`      a result as `sparsenn.io.write_result` writes it; and dataset classes where there are some; the
                        notes have their names
    `.parquet`          column class where there are some; and a column an output
    `.mtx`              the outputs that are not zero, as Matrix Market's coordinates, which count from 1
    `.idx`              the outputs, float32
    ==================  ============================================================================================

    Text and Parquet have the names of classes, if there are any; all else has their numbers, counted from 0.

    Parameters
    ----------
    path : the file.
    outputs : (rows, outputs).
    predicted : (rows,), the class of each row, counted from 0; None for a model without classes.
    notes : words on the run, which go into HDF5.
    class_names : what the classes are called, in the order of the outputs.
    output_names : what the outputs of a model without classes are called: columns of Parquet.
    named_outputs : names and shapes of several outputs, for `.npz` and Parquet; a model with classes has none.

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
        _write_hdf5(path, outputs, predicted, dict(notes), class_names)
        return
    if suffix == ".mtx":
        write_matrix_market(path, from_dense(outputs))
        return
    if suffix == ".idx":
        write_idx(path, np.asarray(outputs, np.float32))
        return
    named = named_outputs if predicted is None else None
    if named is not None and output_names is None:
        output_names = [f"{name}[{place}]" for name, shape in named.items() for place in range(prod(shape))]
    write: dict[str, Callable[[IO[bytes]], None]] = {
        ".tsv": lambda file: _write_text(file, outputs, predicted, class_names, "\t"),
        ".csv": lambda file: _write_text(file, outputs, predicted, class_names, ","),
        ".npy": lambda file: np.save(file, outputs if predicted is None else predicted, allow_pickle=False),
        ".npz": lambda file: _write_npz(file, _arrays(outputs, predicted, class_names, named)),
        ".parquet": lambda file: write_parquet_columns(file, _columns(outputs, predicted, class_names, output_names)),
    }
    with replacing(path) as temporary, temporary.open("wb") as file:
        write[suffix](file)


def _write_npz(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write arrays of any names, also those that `numpy.savez` takes for its own parameters."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                write_array(member, array, allow_pickle=False)


def _arrays(
    outputs: Array,
    predicted: Array | None,
    class_names: Sequence[str] | None,
    named_outputs: NamedShapes | None,
) -> dict[str, Array]:
    if named_outputs is not None:
        columns = named_columns(named_outputs)
        return {name: outputs[:, first:last].reshape(-1, *shape) for name, shape, first, last in columns}
    named = {} if class_names is None else {"class_names": np.array(class_names)}
    return {"outputs": outputs} if predicted is None else {"outputs": outputs, "classes": predicted, **named}


def _columns(
    outputs: Array, predicted: Array | None, class_names: Sequence[str] | None, output_names: Sequence[str] | None
) -> dict[str, Any]:
    """Return the columns of a table, each with a name of its own."""
    names = (output_names if predicted is None else class_names) or ()
    labels: Any = (
        predicted if predicted is None or class_names is None else [class_names[number] for number in predicted]
    )
    columns = {} if labels is None else {"class": labels}
    for number in range(outputs.shape[1]):
        columns[f"output {number}" + (f": {names[number]}" if names else "")] = outputs[:, number]
    return columns


def _write_text(
    file: IO[bytes], outputs: Array, predicted: Array | None, class_names: Sequence[str] | None, delimiter: str
) -> None:
    if predicted is None:
        np.savetxt(file, outputs, "%.17g" if outputs.dtype == np.float64 else "%.9g", delimiter=delimiter)
    elif class_names is None:
        np.savetxt(file, predicted, "%d")
    else:
        with io.TextIOWrapper(file, "utf-8", newline="") as text:
            rows = ([class_names[number]] for number in predicted)
            csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)


def _write_hdf5(
    path: str | os.PathLike[str],
    outputs: Array,
    predicted: Array | None,
    notes: dict[str, str],
    class_names: Sequence[str] | None,
) -> None:
    from sparsenn.io.hdf5.dataset import write_result

    if class_names is not None:
        notes["class_names"] = json.dumps(list(class_names))
    write_result(path, from_dense(outputs), np.flatnonzero(outputs.any(axis=1)), notes, predicted)
