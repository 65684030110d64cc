"""What a trained model is run on: rows of inputs, with targets to compare the outputs with or without."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from sparsenn.errors import FileFormatError, InputError, ShapeError, UsageError
from sparsenn.formats import CSR, Array
from sparsenn.io.csv import read_csv
from sparsenn.io.hdf5_source import opened
from sparsenn.io.npy import read_npy, read_npz, sparse_rows
from sparsenn.network import Image
from sparsenn.printable import one_line
from sparsenn.training.data import (
    HDF5_SUFFIXES,
    TrainingData,
    image_shape,
    labels_beside,
    of_columns,
    read_data,
    read_pixels,
)

__all__ = ["DELIMITERS", "InputRows", "read_rows"]

DELIMITERS = {".csv": ",", ".tsv": "\t"}
"""What divides the columns of a table, by the suffix of its name."""

_ARRAYS = ("inputs", "labels", "targets")


@dataclass(frozen=True, eq=False)
class InputRows:
    """Rows of inputs, of which nobody knows what a model should give for them.

    Parameters
    ----------
    inputs : (rows, inputs): an array, brought to float32, or CSR.
    image : channels, height and width where each row is an image, and None where that is not known.

    Raises
    ------
    ShapeError
        The inputs are no matrix, or there are none; or a row does not hold such an image.
    InputError
        A number is not finite in float32.
    """

    inputs: Array | CSR
    image: Image | None = None

    __repr__ = one_line

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, CSR):
            with np.errstate(over="ignore", invalid="ignore"):
                object.__setattr__(self, "inputs", np.ascontiguousarray(self.inputs, dtype=np.float32))
        if len(self.inputs.shape) != 2 or 0 in self.inputs.shape:
            raise ShapeError(f"the inputs have shape {self.inputs.shape}; needed is a matrix, a row or more")
        numbers = self.inputs.values if isinstance(self.inputs, CSR) else self.inputs
        if not np.isfinite(numbers).all():
            row = _infinite_row(self.inputs)
            raise InputError(f"row {row + 1} of the inputs holds a number that is not finite in float32")
        if self.image is not None and prod(self.image) != self.inputs.shape[1]:
            raise ShapeError(f"rows of {self.inputs.shape[1]:,} inputs hold no images of shape {self.image}")

    def head(self, rows: int) -> InputRows:
        """Return the first `rows` rows, or all where there are no more."""
        return InputRows(self.part(0, min(rows, self.rows)), self.image)

    def part(self, first: int, last: int) -> Array | CSR:
        """Return the inputs of rows `first` to `last`, sharing memory."""
        return self.inputs.slice_groups(first, last) if isinstance(self.inputs, CSR) else self.inputs[first:last]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.inputs.shape[0])


def _infinite_row(inputs: Array | CSR) -> int:
    """Return the number, from 0, of the first row that holds a number that is not finite."""
    if not isinstance(inputs, CSR):
        return int(np.argmin(np.isfinite(inputs).all(axis=1)))
    entry = int(np.argmin(np.isfinite(inputs.expanded_values())))
    return int(np.searchsorted(inputs.indptr, entry, side="right")) - 1


def read_rows(
    path: str | os.PathLike[str],
    inputs: int,
    outputs: int,
    *,
    labels: str | os.PathLike[str] | None = None,
    targets: int | None = None,
    classes: bool = False,
) -> TrainingData | InputRows:
    """Read what a model is to be run on, with targets or labels where there are some; the file's name says its kind.

    ==================================  ================================================================================
    `.csv`, `.tsv`, also with `.gz`     a line a row: only inputs if it is as wide as the model's inputs, and else the
                                        last columns are targets
    `.npy`                              (rows, inputs); or images, (rows, height, width) or (rows, channels, height,
                                        width)
    `.npz`                              one such array, or inputs, and targets or labels, by name; or a sparse matrix
                                        that SciPy saved: CSR, CSC or COO
    `.h5`, `.hdf5`                      dataset inputs; datasets targets or labels where they are known
    `…ubyte`, `….idx`, also with `.gz`  IDX images, their bytes scaled to 0 to 1; labels in a file of their own where
                                        there is one
    `.data`, `.train`, `.test`          FANN's text, which holds targets
    ==================================  ================================================================================

    Parameters
    ----------
    path : the file.
    inputs, outputs : the model's.
    labels : file of the labels of IDX images; unless given, the one named as MNIST names them, beside the images.
    targets : columns of a table, from the last, that are targets; unless given, none of a table that is as wide as the
        model's inputs, and else one of a class, or as many as the model has outputs.
    classes : whether the one target column is a label, or several are one-hot.

    Raises
    ------
    FileFormatError
        The file is damaged, or does not hold what its kind promises; the message names the line of a text file.
    ShapeError
        A table's rows are not as wide as the model's inputs and the targets.
    UsageError
        That is no file's name, it says of no kind, or an option does not go with it.
    InputError, ResourceError
        The file is not there, cannot be read, or takes more than memory.
    """
    name = Path(path).name.lower().removesuffix(".gz")
    suffix = Path(name).suffix
    is_idx = suffix == ".idx" or name.endswith("ubyte")
    if labels is not None and not is_idx:
        raise UsageError(f"{os.fspath(path)}: only IDX images have labels in a file of their own")
    counted = outputs if classes else None
    table = read_csv(path, DELIMITERS[suffix]) if suffix in DELIMITERS else None
    last = 0 if table is None else _target_columns(table.shape[1], inputs, outputs, targets, classes)
    try:
        if table is not None:
            return of_columns(table[:, :-last], table[:, -last:], classes, counted) if last else InputRows(table)
        if suffix in (".npy", ".npz"):
            return _of_arrays(path, suffix, classes, counted)
        if is_idx and labels is None and labels_beside(Path(path)) is None:
            return InputRows(*read_pixels(path))
        if suffix in HDF5_SUFFIXES and not _has_targets(path):
            with opened(path) as source:
                return InputRows(source.matrix("inputs", "<f4", "<f8", "|u1"))
    except FileFormatError:
        raise
    except (ShapeError, InputError) as error:
        raise error if str(error).startswith(os.fspath(path)) else FileFormatError(path, str(error)) from error
    return read_data(path, labels=labels, classes=classes, outputs=counted)


def _target_columns(width: int, inputs: int, outputs: int, targets: int | None, classes: bool) -> int:
    """Return how many of a table's columns, from the last, are targets."""
    if targets is not None:
        if width != inputs + targets:
            found = max(0, width - targets)
            raise ShapeError(f"the rows hold {found:,} numbers; the model takes rows of {inputs:,}")
        return targets
    if width == inputs:
        return 0
    last = 1 if classes else outputs
    if width != inputs + last:
        kind = "a class" if classes else f"{outputs:,} targets"
        raise ShapeError(
            f"the rows hold {width:,} numbers; the model takes rows of {inputs:,}, or of {inputs + last:,} with {kind}"
        )
    return last


def _of_arrays(
    path: str | os.PathLike[str], suffix: str, classes: bool, outputs: int | None
) -> TrainingData | InputRows:
    arrays = {"inputs": read_npy(path)} if suffix == ".npy" else read_npz(path, _ARRAYS)
    sparse = sparse_rows(path, arrays)
    if sparse is not None:
        return InputRows(sparse)
    if len(arrays) == 1 and "inputs" not in arrays:
        arrays = {"inputs": next(iter(arrays.values()))}
    if "inputs" not in arrays:
        raise FileFormatError(path, "holds several arrays, or none; name the rows 'inputs'")
    rows, image = image_shape(arrays["inputs"])
    if "labels" in arrays and "targets" in arrays:
        raise FileFormatError(path, "holds targets and labels; it must hold either")
    if "labels" in arrays:
        return TrainingData.of_labels(rows, arrays["labels"], outputs, image)
    if "targets" in arrays:
        found = of_columns(rows, arrays["targets"], classes, outputs)
        return TrainingData(found.inputs, found.targets, found.classes, image)
    return InputRows(rows, image)


def _has_targets(path: str | os.PathLike[str]) -> bool:
    with opened(path) as source:
        return source.has("labels") or source.has("targets")
