"""One HDF5 file for a whole problem: network, inputs, truth and provenance; and one for a result.

Everything is stored as it is in memory, uncompressed and contiguous, and all layers' arrays lie one after the other
in one dataset each. So a file is read by a few large reads, whatever the number of layers, and the layers are slices
of what was read.

::

    attributes          format = "sparsenn dataset" or "sparsenn result", version
    description         JSON: name and provenance, or the result's width and attributes
    network/layers      one record a layer, `LAYER`
    network/indices16   row indices of all layers up to 65,536 inputs wide, column by column
    network/indices32   those of the wider layers
    network/values32    weights of the layers in float32: one for all of a layer's entries, or one per entry
    network/values64    those of the layers in float64
    network/offsets     column offsets of the layers whose columns differ in length; (outputs + 1) a layer
    network/biases      the biases that are vectors; (outputs) a layer
    inputs/, outputs/   a CSR matrix: indptr, indices, values (one for all entries, or one per entry)
    categories          the true, or the found, categories, counted from 1; absent if unknown
    classes             of a model's result: the class of each row, counted from 0
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from sparsenn.errors import FileFormatError, InputError, MatrixError, UsageError
from sparsenn.formats import CSR, Array, index_dtype
from sparsenn.formats.arrays import frozen
from sparsenn.io.dataset import Dataset, check_limits
from sparsenn.io.hdf5.dataset_layers import read_layers, write_network
from sparsenn.io.hdf5.reading import Hdf5Source, opened
from sparsenn.io.hdf5.writing import created_as
from sparsenn.network import Network
from sparsenn.printable import kind_of
from sparsenn.runtime.progress import Progress, silent

_DATASET = "sparsenn dataset"
_RESULT = "sparsenn result"
_VERSION = 1


def read_dataset(
    path: str | os.PathLike[str],
    layers: int | None = None,
    limit_inputs: int | None = None,
    progress: Progress = silent,
) -> Dataset:
    """Read a dataset, or the first layers and inputs of one; only that part of the file is read.

    Parameters
    ----------
    path : str or path-like
        A file that `write_dataset` wrote.
    layers : int, optional
        How many layers to read, from the first; the truth, which is that of all of them, is then left out.
    limit_inputs : int, optional
        How many samples to read, from the first, and the categories among them.
    progress : callable, optional
        Told of the parts read.

    Returns
    -------
    Dataset
        The whole, or the part asked for.

    Raises
    ------
    FileFormatError
        The file is not HDF5, not a dataset of this package, truncated, or does not hold what it should.
    UsageError
        The network has fewer layers, or a limit is not positive.
    InputError, ResourceError
        The file is not there, cannot be read, or is larger than memory.
    """
    check_limits(layers, limit_inputs)
    task = f"read {Path(path).name}"
    with opened(path) as source:
        description = _description(source, _DATASET)
        found, available = read_layers(source, layers)
        progress(task, 1, 3)
        inputs = _read_inputs(source, found[0].inputs, limit_inputs)
        known = len(found) == available and source.has("categories")
        truth = _read_categories(source) if known else None
    if truth is not None and limit_inputs is not None:
        truth = truth[truth < inputs.shape[0]]
    progress(task, 2, 3)
    inputs = _checked(path, inputs)
    progress(task, 3, 3)
    try:
        network = Network(tuple(found), needs_float64=description.get("needs_float64") is True)
        return Dataset(description["name"], network, inputs, truth, description["provenance"])
    except InputError as error:
        raise FileFormatError(path, str(error)) from error


def write_dataset(dataset: Dataset, path: str | os.PathLike[str]) -> None:
    """Write a dataset, whole or not at all; layers are written one by one, without a second copy in memory.

    Parameters
    ----------
    dataset : Dataset
        What is written.
    path : str or path-like
        The file; one that is there is replaced.

    Raises
    ------
    UsageError
        The arguments are not a dataset and a path; or an activation is not one of this package's.
    ResourceError
        The file cannot be written.
    """
    if not isinstance(dataset, Dataset):
        raise UsageError(
            f"write_dataset takes a Dataset and a path, not {kind_of(dataset)} and {kind_of(path)}; "
            "sparsenn.Dataset(name, network, inputs) makes a Dataset of a network and its inputs"
        )
    needed = {"needs_float64": True} if dataset.network.needs_float64 else {}
    with created_as(
        path, _DATASET, _VERSION, {"name": dataset.name, "provenance": dataset.provenance, **needed}
    ) as file:
        write_network(file.create_group("network"), dataset.network)
        _write_rows(file.create_group("inputs"), dataset.inputs)
        if dataset.truth is not None:
            file["categories"] = dataset.truth.astype("<i8") + 1


def write_result(
    path: str | os.PathLike[str],
    outputs: CSR,
    categories: Array,
    attributes: dict[str, str],
    classes: Array | None = None,
) -> None:
    """Write the outputs of a run, the categories found (counted from 0), and notes; whole or not at all.

    Parameters
    ----------
    path : str or path-like
        The file; one that is there is replaced.
    outputs : CSR, shape (samples, outputs)
        What the network gave.
    categories : array of integers, shape (categories,)
        Counted from 0.
    attributes : dict of str to str
        Notes.
    classes : array of integers, shape (samples,), optional
        The class of each row, counted from 0, where the outputs are scores or probabilities of classes.

    Raises
    ------
    ResourceError
        The file cannot be written.
    """
    with created_as(path, _RESULT, _VERSION, {"columns": outputs.shape[1], "attributes": attributes}) as file:
        _write_rows(file.create_group("outputs"), outputs)
        file["categories"] = np.sort(categories).astype("<i8") + 1
        if classes is not None:
            file["classes"] = classes.astype("<i8")


def read_categories(path: str | os.PathLike[str]) -> Array:
    """Read only the categories of a result, or the true ones of a dataset: sorted int64, counted from 0."""
    with opened(path) as source:
        _description(source, _DATASET, _RESULT)
        if not source.has("categories"):
            raise source.fault("holds no categories: the truth of this dataset is not known")
        return _read_categories(source)


def _description(source: Hdf5Source, *forms: str) -> dict[str, Any]:
    description = source.description(forms, (_VERSION,))
    first, kind, notes = (
        ("name", str, "provenance") if source.attribute("format") == _DATASET else ("columns", int, "attributes")
    )
    if not isinstance(description.get(first), kind):
        raise source.fault(f"description has no valid {first!r}")
    values = description[notes].values() if isinstance(description.get(notes), dict) else [None]
    if not all(isinstance(value, str) for value in values):
        raise source.fault(f"description has no valid {notes!r}")
    return description


def _write_rows(group: h5py.Group, rows: CSR) -> None:
    for name, array in (("indptr", rows.indptr), ("indices", rows.indices), ("values", rows.values)):
        group[name] = array


def _read_inputs(source: Hdf5Source, width: int, limit: int | None) -> CSR:
    """Read the first `limit` inputs, or all; entries are not checked."""
    rows = source.length("inputs/indptr") - 1
    stored, values = source.length("inputs/indices"), source.length("inputs/values")
    if rows < 0 or values not in (1, stored):
        raise source.fault(f"inputs have {values:,} values for {stored:,} entries in {rows:,} rows")
    count = rows if limit is None else min(limit, rows)
    indptr = source.vector("inputs/indptr", "<i8", count=count + 1)
    entries = int(indptr[-1])
    if not 0 <= entries <= stored or (count == rows and entries != stored):
        raise source.fault(f"inputs/indptr ends with {entries:,}; there are {stored:,} entries")
    indices = source.vector("inputs/indices", index_dtype(width), count=entries)
    weights = source.vector("inputs/values", "<f4", "<f8", count=1 if values == 1 else entries)
    return CSR((count, width), indptr, indices, weights)


def _read_categories(source: Hdf5Source) -> Array:
    categories = source.vector("categories", "<i8") - 1
    if categories.size and (categories[0] < 0 or bool((categories[1:] <= categories[:-1]).any())):
        raise source.fault("categories must count from 1 and increase")
    return categories


def _checked(path: str | os.PathLike[str], rows: CSR) -> CSR:
    """Return rows that nobody else holds with every entry checked."""
    for array in rows.arrays:
        frozen(array)
    try:
        return rows.checked()
    except MatrixError as error:
        raise FileFormatError(path, f"all rows: {error}") from error
