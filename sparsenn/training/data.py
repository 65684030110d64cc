"""What a network is trained or evaluated on: rows of inputs, and a target or a class for each."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from sparsenn.errors import FileFormatError, InputError, ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.formats.arrays import real_numbers, size
from sparsenn.io.csv import read_csv
from sparsenn.io.fann import read_fann
from sparsenn.io.hdf5_source import opened
from sparsenn.io.idx import read_idx
from sparsenn.layers.images import integers
from sparsenn.memory import check_memory
from sparsenn.network import Image
from sparsenn.printable import one_line

__all__ = [
    "FANN_SUFFIXES",
    "HDF5_SUFFIXES",
    "TrainingData",
    "image_shape",
    "labels_beside",
    "of_columns",
    "read_data",
    "read_pixels",
]

FANN_SUFFIXES = (".data", ".train", ".test")
HDF5_SUFFIXES = (".h5", ".hdf5")
_INTEGERS = ("<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1")
_MOST_CLASSES = 1 << 20
"""Classes that labels may name; each is an output of the network."""


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Rows of inputs, and a target or a class for each.

    Parameters
    ----------
    inputs : (rows, inputs), brought to float32.
    targets : (rows, outputs), brought to float32; for classes, one-hot.
    classes : whether the targets are classes.
    image : channels, height and width where each row of inputs is an image, and None where that is not known.

    Raises
    ------
    ShapeError
        Inputs or targets are no matrix, are empty, or differ in their rows; or a row does not hold such an image.
    InputError
        They are no real numbers, one is masked or not finite in float32, or classes are not one-hot.
    """

    inputs: Array
    targets: Array
    classes: bool = False
    image: Image | None = None

    __repr__ = one_line

    def __post_init__(self) -> None:
        for name in ("inputs", "targets"):
            numbers = real_numbers(getattr(self, name), f"{name} hold")
            with np.errstate(all="ignore"):
                array = np.ascontiguousarray(numbers, dtype=np.float32)
            if array.ndim != 2 or 0 in array.shape:
                raise ShapeError(f"the {name} have shape {array.shape}; needed is a matrix, a row or more")
            if not np.isfinite(array).all():
                row = int(np.argmin(np.isfinite(array).all(axis=1)))
                raise InputError(f"row {row + 1} of the {name} holds a number that is not finite in float32")
            object.__setattr__(self, name, array)
        if len(self.inputs) != len(self.targets):
            raise ShapeError(f"there are {len(self.inputs):,} rows of inputs and {len(self.targets):,} of targets")
        if self.image is not None and prod(integers(self.image, 1) or ()) != self.inputs.shape[1]:
            raise ShapeError(f"rows of {self.inputs.shape[1]:,} inputs hold no images of shape {self.image}")
        if self.classes and not _is_one_hot(self.targets):
            raise InputError("targets of classes must be one-hot: a 1 in each row, and zeros")

    @classmethod
    def of_labels(
        cls, inputs: Array, labels: Array, classes: int | None = None, image: Image | None = None
    ) -> TrainingData:
        """Build from a label for each row.

        Parameters
        ----------
        inputs : (rows, inputs).
        labels : (rows,), whole numbers that count from 0.
        classes : how many there are; one more than the largest label unless given.
        image : channels, height and width where the rows are images.

        Raises
        ------
        InputError, ShapeError
            As above; also if a label is not a whole number from 0 to below `classes`.
        UsageError
            `classes` is no integer of at least 1.
        ResourceError
            The targets are larger than memory.
        """
        inputs, labels = real_numbers(inputs, "inputs hold"), real_numbers(labels, "labels hold")
        rows = len(inputs) if inputs.ndim else 0
        if labels.ndim != 1 or len(labels) != rows:
            raise ShapeError(f"there are {rows:,} rows of inputs, and labels of shape {labels.shape}")
        most = _MOST_CLASSES if classes is None else size(classes, "the number of classes")
        sound = (labels >= 0) & (labels < most) & (labels == np.trunc(labels))
        if not sound.all():
            row = int(np.argmin(sound))
            raise InputError(
                f"row {row + 1} has the label {labels[row]}; labels are whole numbers from 0 to {most - 1:,}"
            )
        whole = labels.astype(np.int64)
        count = int(whole.max(initial=0)) + 1 if classes is None else most
        check_memory(4 * len(whole) * count, f"a target for each of {count:,} classes and {len(whole):,} rows")
        targets = np.zeros((len(whole), count), np.float32)
        targets[np.arange(len(whole)), whole] = 1
        return cls(inputs, targets, True, image)

    def head(self, rows: int) -> TrainingData:
        """Return the first `rows` rows, at least 1, or all where there are no more."""
        rows = size(rows, "rows")
        return TrainingData(self.inputs[:rows], self.targets[:rows], self.classes, self.image)

    def part(self, first: int, last: int) -> Array:
        """Return the inputs of rows `first` to `last`, sharing memory."""
        return self.inputs[first:last]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.inputs)

    def digest(self) -> str:
        """Return a checksum of all numbers and shapes: SHA-256, in hexadecimal."""
        found = hashlib.sha256()
        for array in (self.inputs, self.targets):
            found.update(repr(array.shape).encode())
            found.update(array.data)
        return found.hexdigest()


def read_data(
    path: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    targets: int = 1,
    classes: bool = False,
    outputs: int | None = None,
) -> TrainingData:
    """Read data; the file's name says of which kind it is.

    ==================================  ================================================================================
    `.data`, `.train`, `.test`          FANN's text
    `.csv`                              a line a row, the last columns are targets
    `.h5`, `.hdf5`                      datasets inputs, and targets or labels
    `…ubyte`, `….idx`, also with `.gz`  IDX images, their bytes scaled to 0 to 1, and labels in a file of their own
    ==================================  ================================================================================

    Parameters
    ----------
    path : the file.
    labels : file of the labels of IDX images; unless given, the one named as MNIST names them, beside the images.
    targets : columns of a CSV file, from the last, that are targets.
    classes : whether the one target column is a label, or several are one-hot. IDX and HDF5 labels are in any case.
    outputs : how many classes there are; one more than the largest label unless given.

    Raises
    ------
    FileFormatError
        The file is damaged, or does not hold what its kind promises; the message names the line of a text file.
    UsageError
        That is no file's name, it says of no kind, or an option does not go with it.
    InputError, ResourceError
        The file is not there, cannot be read, or takes more than memory.
    """
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"the data are a {type(path).__name__}; give a file's name, or make a sparsenn.TrainingData")
    name = Path(path).name.lower().removesuffix(".gz")
    suffix = Path(name).suffix
    is_idx = suffix == ".idx" or name.endswith("ubyte")
    if labels is not None and not is_idx:
        raise UsageError(f"{os.fspath(path)}: only IDX images have labels in a file of their own")
    try:
        if is_idx:
            pixels, found, image = _read_images(path, labels)
            return TrainingData.of_labels(pixels, found, outputs, image)
        if suffix in HDF5_SUFFIXES:
            return _read_hdf5(path, classes, outputs)
        if suffix in FANN_SUFFIXES:
            return of_columns(*read_fann(path), classes, outputs)
        if suffix == ".csv":
            table = read_csv(path)
            if not 1 <= targets < table.shape[1]:
                raise UsageError(f"{os.fspath(path)}: cannot take {targets} target columns of {table.shape[1]}")
            return of_columns(table[:, :-targets], table[:, -targets:], classes, outputs)
    except FileFormatError:
        raise
    except (ShapeError, InputError) as error:
        raise error if str(error).startswith(os.fspath(path)) else FileFormatError(path, str(error)) from error
    known = ", ".join((*FANN_SUFFIXES, ".csv", *HDF5_SUFFIXES, "ubyte (IDX)"))
    raise UsageError(f"{os.fspath(path)}: the name does not say what kind of data this is; known are {known}")


def of_columns(inputs: Array, targets: Array, classes: bool, outputs: int | None) -> TrainingData:
    """Build from a matrix of targets, of which a single column is labels where the targets are classes.

    Parameters
    ----------
    inputs, targets : (rows, inputs) and (rows, targets).
    classes : whether the targets are classes.
    outputs : how many classes there are; one more than the largest label unless given.

    Raises
    ------
    InputError, ShapeError
        As `TrainingData` and `TrainingData.of_labels` do.
    """
    if classes and targets.ndim == 2 and targets.shape[1] == 1:
        return TrainingData.of_labels(inputs, targets[:, 0], outputs)
    return TrainingData(inputs, targets, classes)


def read_pixels(path: str | os.PathLike[str]) -> tuple[Array, Image | None]:
    """Read IDX images: (images, pixels) in float32, bytes scaled to 0 to 1, and `image_shape`'s image.

    Raises
    ------
    FileFormatError, InputError, ResourceError
        As `read_idx`.
    """
    images = read_idx(path)
    rows, image = image_shape(images)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is told where the rows are checked
        pixels = rows.astype(np.float32)
    return pixels / np.float32(255) if images.dtype == np.uint8 else pixels, image


def image_shape(images: Array) -> tuple[Array, Image | None]:
    """Return an array as a matrix, a row for each of its first dimension, and the image that a row is.

    The image is (channels, height, width) where a row has two dimensions of pixels, or three; else None.

    Raises
    ------
    ShapeError
        The array has no dimension.
    """
    if not images.ndim:
        raise ShapeError("the inputs are a single number; needed is a matrix, a row or more")
    rows = images.reshape(len(images), prod(images.shape[1:]))
    if images.ndim not in (3, 4) or 0 in images.shape:
        return rows, None
    return rows, (images.shape[1] if images.ndim == 4 else 1, *images.shape[-2:])


def labels_beside(path: Path) -> Path | None:
    """Return the file of labels that lies beside one of images, named as MNIST names both; None if there is none."""
    name = path.name.replace("images", "labels").replace("idx3", "idx1")
    return None if name == path.name or not path.with_name(name).is_file() else path.with_name(name)


def _read_images(
    path: str | os.PathLike[str], labels: str | os.PathLike[str] | None
) -> tuple[Array, Array, Image | None]:
    """Return pixels as rows, labels, and the shape of an image where there are two dimensions of pixels, or three."""
    pixels, image = read_pixels(path)
    place = labels_beside(Path(path)) if labels is None else Path(labels)
    if place is None:
        raise UsageError(
            f"{os.fspath(path)}: there are no labels beside it, named as MNIST does; name their file by --labels"
        )
    found = read_idx(place)
    if found.ndim != 1 or found.dtype.kind not in "iu" or len(found) != len(pixels):
        raise FileFormatError(
            place, f"holds {found.dtype} of shape {found.shape}; needed is a label for {len(pixels):,}"
        )
    return pixels, found, image


def _read_hdf5(path: str | os.PathLike[str], classes: bool, outputs: int | None) -> TrainingData:
    with opened(path) as source:
        inputs = source.matrix("inputs", "<f4", "<f8", "|u1")
        labels = source.vector("labels", *_INTEGERS) if source.has("labels") else None
        if labels is not None and source.has("targets"):
            raise source.fault("holds targets and labels; it must hold either")
        targets = None if labels is not None else source.matrix("targets", "<f4", "<f8")
    if targets is None:
        return TrainingData.of_labels(inputs, np.asarray(labels), outputs)
    return of_columns(inputs, targets, classes, outputs)


def _is_one_hot(targets: Array) -> bool:
    return bool(((targets == 1).sum(axis=1) == 1).all() and ((targets == 0) | (targets == 1)).all())
