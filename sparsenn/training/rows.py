"""Files of rows: what a network is trained on, or what a trained model is run on, with targets or without."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from sparsenn.engine.inputs import packed_inputs, takes_shape
from sparsenn.errors import FileFormatError, InputError, ShapeError, UsageError
from sparsenn.formats import Array, TableEncoding
from sparsenn.formats.table import width_fault
from sparsenn.io.arrays.idx import read_idx
from sparsenn.io.arrays.matrix_market import read_matrix_market_rows
from sparsenn.io.arrays.npy import read_npy, read_npz, sparse_rows
from sparsenn.io.hdf5.reading import opened
from sparsenn.io.tables.choosing import columns_of
from sparsenn.io.tables.files import TABLE_SUFFIXES, open_table, read_table
from sparsenn.network import Image, Network
from sparsenn.printable import kind_of
from sparsenn.training.data import InputRows, TrainingData, of_columns
from sparsenn.training.tables import encoded, training_data_of, without

_HDF5 = (".h5", ".hdf5")
_IDX = (".idx", "ubyte")
_KNOWN = (*TABLE_SUFFIXES, ".npy", ".npz", ".mtx", *_HDF5, *_IDX)
_INTEGERS = ("<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1")
_BYTES = "bytes were taken as they are, 0 to 255; for a model trained on 0 to 1 give --factor 1/255"

_ARRAYS = ("inputs", "labels", "targets")


def read_data(
    path: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    targets: int = 1,
    target: Sequence[str] = (),
    classes: bool = False,
    outputs: int | None = None,
    ignore: Sequence[str] = (),
    text: Sequence[str] = (),
    impute: bool = False,
    like: TrainingData | None = None,
) -> TrainingData:
    """Read training data; the file's name says of which kind they are.

    ==================================  ================================================================================
    `.csv`, `.tsv`, also with `.gz`     a line a row, the first one perhaps names; columns of numbers, or of texts, of
    and `.parquet`                      which each becomes as many inputs as it has different texts
    `.npz`                              arrays inputs, and targets or labels
    `.h5`, `.hdf5`                      datasets inputs, and targets or labels
    `…ubyte`, `….idx`, also with `.gz`  IDX images, their bytes scaled to 0 to 1, and labels in a file of their own
    ==================================  ================================================================================

    Parameters
    ----------
    path : str or path-like
        The file.
    labels : str or path-like, optional
        File of the labels of IDX images; unless given, the one named as MNIST names them, beside the images.
    targets : int, default 1
        Number of columns of a table, from the last, that are targets.
    target : sequence of str, optional
        Names of the target columns instead; numbers, counted from 1, where the table gives no names.
    classes : bool, default False
        Whether the one target column is a label, counted from 0, or several are one-hot. IDX and HDF5 labels are in any
        case, and so is a target column of texts, whose classes are sorted.
    outputs : int, optional
        How many classes there are; one more than the largest label unless given.
    ignore : sequence of str, optional
        Columns of a table that are left out.
    text : sequence of str, optional
        Columns of a table that are categories, or classes, though they hold numbers.
    impute : bool, default False
        Whether what is missing in a table is filled in: by its column's mean, or the most frequent text.
    like : TrainingData, optional
        Other data, whose columns, categories and classes are used.

    Returns
    -------
    TrainingData
        Samples and their targets.

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
        raise UsageError(f"the data are {kind_of(path)}; give a file's name, or make a sparsenn.TrainingData")
    name = Path(path).name.lower().removesuffix(".gz")
    suffix = Path(name).suffix
    _check_labels(path, name, labels)
    if like is not None and like.classes:
        outputs = like.targets.shape[1]
    with _faults_of(path):
        if name.endswith(_IDX):
            return TrainingData.of_labels(*_read_labelled(path, labels, outputs))
        if suffix in _HDF5:
            return _read_hdf5(path, classes, outputs)
        if suffix == ".npz":
            return _with_targets(path, _of_arrays(path, suffix, classes, outputs))
        if suffix in TABLE_SUFFIXES and like is not None and like.encoding is not None:
            known = [column.name for column in like.encoding.columns]
            table = without(read_table(path, known), ignore)
            found = encoded(table, like.encoding, like.classes, like.class_names, outputs, labelled=True)
            return _with_targets(path, found)
        if suffix in TABLE_SUFFIXES:
            return training_data_of(
                read_table(path, target),
                target=target,
                targets=targets,
                classes=classes,
                outputs=outputs,
                ignore=ignore,
                texts=text,
                impute=impute,
            )
    known = [kind for kind in _KNOWN if kind not in (".npy", ".mtx")]
    raise _unknown_kind(path, known)


@contextmanager
def _faults_of(path: str | os.PathLike[str]) -> Iterator[None]:
    """Have what is wrong with the rows of a file name the file."""
    try:
        yield
    except FileFormatError:
        raise
    except (ShapeError, InputError) as error:
        raise error if str(error).startswith(os.fspath(path)) else FileFormatError(path, str(error)) from error


def _check_labels(path: str | os.PathLike[str], name: str, labels: str | os.PathLike[str] | None) -> None:
    if labels is not None and not name.endswith(_IDX):
        raise UsageError(f"{os.fspath(path)}: only IDX images have labels in a file of their own")


def _unknown_kind(path: str | os.PathLike[str], known: Sequence[str]) -> UsageError:
    if Path(path).is_dir():
        return UsageError(f"{os.fspath(path)}: is a folder, not a file; known: {', '.join(known)}")
    return UsageError(f"{os.fspath(path)}: the name does not say what kind of data this is; known: {', '.join(known)}")


def _with_targets(path: str | os.PathLike[str], found: TrainingData | InputRows) -> TrainingData:
    if isinstance(found, InputRows):
        raise FileFormatError(path, "holds only inputs; training also needs targets or labels")
    return found


def read_rows(
    path: str | os.PathLike[str],
    inputs: int,
    outputs: int,
    *,
    labels: str | os.PathLike[str] | None = None,
    targets: int | None = None,
    classes: bool = False,
    class_names: tuple[str, ...] | None = None,
    encoding: TableEncoding | None = None,
    scale_bytes: bool = True,
    network: Network | None = None,
) -> TrainingData | InputRows:
    """Read what a model is to be run on, with targets or labels where there are some; the file's name says its kind.

    ==================================  ================================================================================
    `.csv`, `.tsv`, also with `.gz`     a line a row, as wide as the model's inputs and the targets that are asked for;
    and `.parquet`                      inputs and targets by name where the model knows names
    `.npy`                              (rows, inputs); or images, (rows, height, width) or (rows, channels, height,
                                        width); or one of these, without the axis of rows, for a model
    `.npz`                              one such array, or inputs, and targets or labels, by name; or the inputs of a
                                        network by their own names; or a sparse matrix that SciPy saved: CSR, CSC or COO
    `.mtx`, also with `.gz`             Matrix Market: a sparse matrix, or an array
    `.h5`, `.hdf5`                      dataset inputs; datasets targets or labels where they are known
    `…ubyte`, `….idx`, also with `.gz`  IDX images, their bytes scaled to 0 to 1; labels in a file of their own where
                                        there is one
    ==================================  ================================================================================

    Parameters
    ----------
    path : str or path-like
        The file.
    inputs : int
        Number of the model's inputs.
    outputs : int
        Number of the model's outputs.
    labels : str or path-like, optional
        File of the labels of IDX images; unless given, the one named as MNIST names them, beside the images.
    targets : int, optional
        Number of columns of a table, from the last, that are targets; unless given, none but those that the model knows
        by name.
    classes : bool, default False
        Whether the one target column is a label, or several are one-hot.
    class_names : tuple of str, optional
        What the model's classes are called.
    encoding : TableEncoding, optional
        What the model takes of a table.
    scale_bytes : bool, default True
        Whether the bytes of IDX images are scaled to 0 to 1.
    network : Network, optional
        The model's, for the names of its inputs.

    Returns
    -------
    TrainingData or InputRows
        Samples, with their targets where there are some.

    Raises
    ------
    FileFormatError
        The file is damaged, or does not hold what its kind promises; the message names the line of a text file.
    ShapeError
        A table's rows are not as wide as the model's inputs and the targets, or it does not have its columns.
    UsageError
        That is no file's name, it says of no kind, or an option does not go with it.
    InputError, ResourceError
        The file is not there, cannot be read, or takes more than memory.
    """
    name = Path(path).name.lower().removesuffix(".gz")
    suffix = Path(name).suffix
    _check_labels(path, name, labels)
    counted, known = outputs if classes else None, None if network is None else columns_of(network)
    if encoding is None and targets is None:
        encoding = known
    if suffix in TABLE_SUFFIXES and encoding is not None:
        if targets not in (None, len(encoding.targets)):
            trained = len(encoding.targets)
            raise UsageError(
                f"the model was trained for {trained:,} target columns, not {targets:,}; leave out --targets"
            )
        table = read_table(path, [column.name for column in encoding.columns])
        encoding.places(table, targets is not None)
    last = targets or 0
    matrix = _matrix(path, inputs, last, known) if suffix in TABLE_SUFFIXES and encoding is None else None
    with _faults_of(path):
        if encoding is not None and suffix in TABLE_SUFFIXES:
            return encoded(table, encoding, classes, class_names, counted, targets is not None)
        if matrix is not None:
            if not last:
                return InputRows(matrix)
            return of_columns(matrix[:, :-last], matrix[:, -last:], classes, counted)
        if suffix in (".npy", ".npz"):
            return _of_arrays(path, suffix, classes, counted, scale_bytes, network)
        if suffix == ".mtx":
            return InputRows(read_matrix_market_rows(path))
        if name.endswith(_IDX):
            if labels is None and _labels_beside(Path(path)) is None:
                return InputRows(*_read_pixels(path, scale_bytes))
            return TrainingData.of_labels(*_read_labelled(path, labels, counted, scale_bytes))
        if suffix in _HDF5:
            with opened(path) as source:
                if not (source.has("labels") or source.has("targets")):
                    return InputRows(source.matrix("inputs", "<f4", "<f8", "|u1"))
        if suffix not in _HDF5:
            raise _unknown_kind(path, _KNOWN)
    return read_data(path, classes=classes, outputs=counted)


def _matrix(path: str | os.PathLike[str], inputs: int, targets: int, known: TableEncoding | None) -> Array:
    """Read a table that holds nothing but numbers, as many columns as a model takes and then the targets."""
    with open_table(path) as file:
        if len(file.names) != inputs + targets:
            raise ShapeError(width_fault(file.names, inputs, targets, targets > 0))
    table = read_table(path)
    if known is None or not table.named:
        return table.matrix()
    places = known.places(table)
    if max(places) >= inputs:
        raise ShapeError(f"column {table.names[max(places)]!r} is one that the model takes; targets must be the last")
    return table.matrix()[:, [*places, *range(inputs, inputs + targets)]]


def _of_arrays(
    path: str | os.PathLike[str],
    suffix: str,
    classes: bool,
    outputs: int | None,
    tell_bytes: bool = False,
    network: Network | None = None,
) -> TrainingData | InputRows:
    names = () if network is None or network.named_inputs is None else tuple(network.named_inputs)
    allowed = (*names, *_ARRAYS)
    arrays = {"inputs": read_npy(path)} if suffix == ".npy" else read_npz(path, allowed, network is not None)
    named = {name: arrays.pop(name) for name in names if name in arrays and "format" not in arrays}
    if named and network is not None:
        try:
            arrays["inputs"] = packed_inputs(network, named)
        except UsageError as error:
            raise FileFormatError(path, str(error)) from error
    sparse = sparse_rows(path, arrays)
    if sparse is not None:
        return InputRows(sparse)
    if len(arrays) == 1 and "inputs" not in arrays:
        arrays = {"inputs": next(iter(arrays.values()))}
    if "inputs" not in arrays:
        known = "the rows 'inputs'" if not names else f"the inputs {', '.join(map(repr, names))}"
        raise FileFormatError(path, f"holds several arrays, or none; name {known}")
    inputs = arrays["inputs"]
    if network is not None and inputs.size == network.inputs > 1 < len(inputs) and takes_shape(network, inputs.shape):
        inputs = inputs[np.newaxis]  # one input, without the axis of rows
    rows, image = _image_shape(inputs)
    note = _BYTES if tell_bytes and rows.dtype == np.uint8 else None
    if "labels" in arrays and "targets" in arrays:
        raise FileFormatError(path, "holds targets and labels; it must hold only one of them")
    if "labels" in arrays:
        return replace(TrainingData.of_labels(rows, arrays["labels"], outputs, image), note=note)
    if "targets" in arrays:
        found = of_columns(rows, arrays["targets"], classes, outputs)
        return replace(found, image=image, note=note)
    return InputRows(rows, image, note)


def _read_pixels(path: str | os.PathLike[str], scale_bytes: bool) -> tuple[Array, Image | None]:
    """Read IDX images: (images, pixels) in float32, bytes scaled to 0 to 1 if wanted, and its image."""
    images = read_idx(path)
    rows, image = _image_shape(images)
    with np.errstate(over="ignore", invalid="ignore"):  # checked and reported with the rows
        pixels = rows.astype(np.float32)
    return pixels / np.float32(255) if scale_bytes and images.dtype == np.uint8 else pixels, image


def _image_shape(images: Array) -> tuple[Array, Image | None]:
    """Return an array as a matrix, a row for each of its first dimension, and the image that a row is.

    The image is (channels, height, width) where a row has two dimensions of pixels, or three; else None.
    """
    if not images.ndim:
        raise ShapeError("the inputs are a single number; a matrix of at least one row is needed")
    rows = images.reshape(len(images), prod(images.shape[1:]))
    if images.ndim not in (3, 4) or 0 in images.shape:
        return rows, None
    return rows, (images.shape[1] if images.ndim == 4 else 1, *images.shape[-2:])


def _labels_beside(path: Path) -> Path | None:
    """Return the file of labels that lies beside one of images, named as MNIST names both; None if there is none."""
    name = path.name.replace("images", "labels").replace("idx3", "idx1")
    return None if name == path.name or not path.with_name(name).is_file() else path.with_name(name)


def _read_labelled(
    path: str | os.PathLike[str],
    labels: str | os.PathLike[str] | None,
    classes: int | None,
    scale_bytes: bool = True,
) -> tuple[Array, Array, int | None, Image | None]:
    """Return what `TrainingData.of_labels` takes: pixels as rows, labels, how many classes there are, and the image."""
    pixels, image = _read_pixels(path, scale_bytes)
    place = _labels_beside(Path(path)) if labels is None else Path(labels)
    if place is None:
        raise UsageError(
            f"{os.fspath(path)}: no labels were found beside it, named as for MNIST; give their file with --labels"
        )
    found = read_idx(place)
    if found.ndim != 1 or found.dtype.kind not in "iu" or len(found) != len(pixels):
        raise FileFormatError(
            place, f"holds {found.dtype} of shape {found.shape}; a label for each of {len(pixels):,} images is needed"
        )
    return pixels, found, classes, image


def _read_hdf5(path: str | os.PathLike[str], classes: bool, outputs: int | None) -> TrainingData:
    with opened(path) as source:
        inputs = source.matrix("inputs", "<f4", "<f8", "|u1")
        labels = source.vector("labels", *_INTEGERS) if source.has("labels") else None
        if labels is not None and source.has("targets"):
            raise source.fault("holds targets and labels; it must hold only one of them")
        targets = None if labels is not None else source.matrix("targets", "<f4", "<f8")
    if targets is None:
        return TrainingData.of_labels(inputs, np.asarray(labels), outputs)
    return of_columns(inputs, targets, classes, outputs)
