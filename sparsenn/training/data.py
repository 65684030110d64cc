"""What a network is trained, evaluated or run on: rows of inputs, with a target or a class for each, or without."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Self

import numpy as np

from sparsenn.errors import InputError, ShapeError
from sparsenn.formats import CSR, Array, TableEncoding
from sparsenn.formats.arrays import real_numbers, size
from sparsenn.layers.images import integers
from sparsenn.network import Image
from sparsenn.printable import one_line
from sparsenn.runtime.memory import check_memory

_MOST_CLASSES = 1 << 20
"""Classes that labels may name; each is an output of the network."""


class _Rows:
    """Base of `TrainingData` and `InputRows`."""

    inputs: Any

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.inputs.shape[0])

    def head(self, rows: int) -> Self:
        """Return the first samples.

        rows : int
            How many, at least 1; all are taken where there are no more.

        Returns
        -------
        TrainingData or InputRows
            Data that share memory with these.
        """
        rows = min(size(rows, "rows"), self.rows)
        targets = {"targets": self.targets[:rows]} if isinstance(self, TrainingData) else {}
        return replace(self, inputs=self.part(0, rows), **targets)  # type: ignore[type-var]

    def part(self, first: int, last: int) -> Any:
        """Return some samples' inputs.

        first : int
            The first row, counted from 0.
        last : int
            The row after the last.

        Returns
        -------
        array or CSR, shape (last - first, inputs), float32
            A view.
        """
        return self.inputs.slice_groups(first, last) if isinstance(self.inputs, CSR) else self.inputs[first:last]


@dataclass(frozen=True, eq=False)
class TrainingData(_Rows):
    """Rows of inputs, and a target or a class for each.

    Parameters
    ----------
    inputs : array_like, shape (samples, inputs)
        Brought to float32.
    targets : array_like, shape (samples, outputs)
        Brought to float32; one-hot for classes.
    classes : bool, default False
        Whether the targets are classes.
    image : (int, int, int), optional
        Channels, height and width where each row of inputs is an image, and None where that is not known.
    encoding : TableEncoding, optional
        How a table became the inputs, and what its targets are called; None where the rows are of no table.
    class_names : tuple of str, optional
        What the classes are called, in the order of the columns of targets; None where they are called 0, 1, ….
    note : str, optional
        What was assumed of a file, in a sentence; None where nothing had to be.

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
    encoding: TableEncoding | None = None
    class_names: tuple[str, ...] | None = None
    note: str | None = None

    __repr__ = one_line

    def __post_init__(self) -> None:
        for name in ("inputs", "targets"):
            numbers = real_numbers(getattr(self, name), f"{name} hold")
            with np.errstate(all="ignore"):
                array = np.ascontiguousarray(numbers, dtype=np.float32)
            if array.ndim != 2 or 0 in array.shape:
                raise ShapeError(f"the {name} have shape {array.shape}; a matrix of at least one row is needed")
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
        """Build from a label for each sample.

        Parameters
        ----------
        inputs : array_like, shape (samples, inputs)
            Brought to float32.
        labels : array_like of integers, shape (samples,)
            Counted from 0.
        classes : int, optional
            How many there are; one more than the largest label unless given.
        image : (int, int, int), optional
            Channels, height and width where the rows are images.

        Returns
        -------
        TrainingData
            The inputs, with one-hot targets.

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

    def digest(self) -> str:
        """Return a checksum of all numbers and shapes.

        Returns
        -------
        str
            SHA-256, in hexadecimal.
        """
        found = hashlib.sha256()
        for array in (self.inputs, self.targets):
            found.update(repr(array.shape).encode())
            found.update(array.data)
        return found.hexdigest()


@dataclass(frozen=True, eq=False)
class InputRows(_Rows):
    """Rows of inputs, of which nobody knows what a model should give for them.

    Parameters
    ----------
    inputs : array_like or CSR, shape (samples, inputs)
        Arrays are brought to float32.
    image : (int, int, int), optional
        Channels, height and width where each row is an image, and None where that is not known.
    note : str, optional
        What was assumed of a file, in a sentence; None where nothing had to be.

    Raises
    ------
    ShapeError
        The inputs are no matrix, or there are none; or a row does not hold such an image.
    InputError
        A number is not finite in float32.
    """

    inputs: Array | CSR
    image: Image | None = None
    note: str | None = None

    __repr__ = one_line

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, CSR):
            with np.errstate(over="ignore", invalid="ignore"):
                object.__setattr__(self, "inputs", np.ascontiguousarray(self.inputs, dtype=np.float32))
        if len(self.inputs.shape) != 2 or 0 in self.inputs.shape:
            raise ShapeError(f"the inputs have shape {self.inputs.shape}; a matrix of at least one row is needed")
        numbers = self.inputs.values if isinstance(self.inputs, CSR) else self.inputs
        if not np.isfinite(numbers).all():
            row = _infinite_row(self.inputs)
            raise InputError(f"row {row + 1} of the inputs holds a number that is not finite in float32")
        if self.image is not None and prod(self.image) != self.inputs.shape[1]:
            raise ShapeError(f"rows of {self.inputs.shape[1]:,} inputs hold no images of shape {self.image}")


def _infinite_row(inputs: Array | CSR) -> int:
    """Return the number, from 0, of the first row that holds a number that is not finite."""
    if not isinstance(inputs, CSR):
        return int(np.argmin(np.isfinite(inputs).all(axis=1)))
    entry = int(np.argmin(np.isfinite(inputs.expanded_values())))
    return int(np.searchsorted(inputs.indptr, entry, side="right")) - 1


def of_columns(inputs: Array, targets: Array, classes: bool, outputs: int | None) -> TrainingData:
    """Build from a matrix of targets, of which a single column is labels where the targets are classes.

    inputs, targets : (rows, inputs) and (rows, targets).
    classes : whether the targets are classes.
    outputs : how many classes there are; one more than the largest label unless given.
    """
    if classes and targets.ndim == 2 and targets.shape[1] == 1:
        return TrainingData.of_labels(inputs, targets[:, 0], outputs)
    return TrainingData(inputs, targets, classes)


def _is_one_hot(targets: Array) -> bool:
    return bool(((targets == 1).sum(axis=1) == 1).all() and ((targets == 0) | (targets == 1)).all())
