"""Predictions of a model for the rows of a file: classes, outputs, or both, in the form that the file's name says."""

from __future__ import annotations

import csv
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.lib.format import write_array

from sparsenn.errors import UsageError
from sparsenn.formats import Array, from_dense
from sparsenn.formats.named_shapes import named_columns
from sparsenn.io.tables.files import TABLE_SUFFIXES, table_suffix
from sparsenn.model import Model
from sparsenn.runtime.storage import open_to_write, replacing

if TYPE_CHECKING:
    import pyarrow as pa

PREDICTION_SUFFIXES = (*TABLE_SUFFIXES, ".npy", ".npz", ".h5", ".hdf5")
"""The ends of the names of files of predictions."""

_SEPARATORS = {".csv": ",", ".tsv": "\t"}

_ROWS = 1 << 16  # rows that are rendered as text at a time


def predicted_classes(model: Model, outputs: Array) -> Array | None:
    """Return the class of each row, int64, counted from 0: its largest output; None for a model without classes."""
    if not model.classes or model.network.outputs < 2:
        return None
    return np.asarray(outputs.argmax(axis=1), np.int64)


def prediction_table(
    model: Model, outputs: Array, *, scores: bool = False, copied: tuple[str, Any] | None = None
) -> pa.Table:
    """Return predictions as columns of different names; numbers of classes count from 0."""
    import pyarrow as pa

    predicted = predicted_classes(model, outputs)
    columns: list[tuple[str, Any]] = [] if copied is None else [copied]
    if predicted is not None:
        names = model.class_names
        columns.append(("class", pa.array(predicted) if names is None else pa.array(names).take(pa.array(predicted))))
    if predicted is None or scores:
        columns += zip(_output_names(model), outputs.T, strict=True)
    different: dict[str, Any] = {}
    for name, values in columns:
        while name in different:
            name += "_"
        different[name] = values
    return pa.table(different)


def _output_names(model: Model) -> list[str]:
    outputs, targets = model.network.outputs, () if model.encoding is None else model.encoding.targets
    if model.classes and outputs > 1:
        return [f"score_{name}" for name in model.class_names or range(outputs)]
    if model.network.named_outputs is not None:
        shapes = model.network.named_outputs.items()
        return [f"{name}[{place}]" for name, shape in shapes for place in range(prod(shape))]
    if len(targets) == outputs:
        return list(targets)
    return ["output"] if outputs == 1 else [f"output_{number}" for number in range(outputs)]


@contextmanager
def table_writer(path: str | os.PathLike[str]) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that appends rows, each time with the same columns, to a table that is written whole or not.

    `path`: the file, whose name is that of a table; text goes through gzip if it ends in `.gz`.
    """
    suffix = table_suffix(path)
    if suffix is None:
        raise UsageError(f"{os.fspath(path)}: the name must end in {', '.join(TABLE_SUFFIXES)}")
    with replacing(path) as temporary, open_to_write(temporary, path) as file:
        if suffix == ".parquet":
            with _parquet_writer(file) as write:
                yield write
        else:
            separator, begun = _SEPARATORS[suffix], list[bool]()

            def write_text(table: pa.Table) -> None:
                if not begun:
                    file.write(_header(table.column_names, separator))
                    begun.append(True)
                for first in range(0, table.num_rows, _ROWS):
                    file.write(_lines(table.slice(first, _ROWS), separator))

            yield write_text


@contextmanager
def _parquet_writer(file: Any) -> Iterator[Callable[[pa.Table], None]]:
    from pyarrow import parquet

    writers: list[parquet.ParquetWriter] = []

    def write(table: pa.Table) -> None:
        if not writers:
            writers.append(parquet.ParquetWriter(file, table.schema))
        writers[0].write_table(table)

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()


def _header(names: Sequence[str], separator: str) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, lineterminator="\n").writerow(names)
    return text.getvalue().encode()


def _lines(table: pa.Table, separator: str) -> bytes:
    """Return rows as text: numbers in the fewest digits that read back as the same, quotation marks where needed."""
    import pyarrow as pa
    from pyarrow import compute

    text = pa.large_string()
    mark, nothing, between, end = (pa.scalar(each, text) for each in ('"', "", separator, "\n"))
    columns = []
    for column in table.columns:
        fields = compute.fill_null(column.cast(text), nothing)
        if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
            needs_marks = compute.match_substring_regex(fields, f'[{separator}"\r\n]')
            doubled = compute.replace_substring(fields, '"', '""')
            marked = compute.binary_join_element_wise(mark, doubled, mark, nothing)
            fields = compute.if_else(needs_marks, marked, fields)
        columns.append(fields)
    lines = compute.binary_join_element_wise(compute.binary_join_element_wise(*columns, between), nothing, end)
    return b"".join(map(_characters, lines.chunks))


def _characters(texts: pa.LargeStringArray) -> Any:
    _, offsets, characters = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[[texts.offset, texts.offset + len(texts)]]
    return memoryview(characters)[ends[0] : ends[1]]


def write_predictions(
    path: str | os.PathLike[str],
    model: Model,
    outputs: Array,
    *,
    scores: bool = False,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write the predictions of a model for some rows, whole or not at all.

    ==================================  ===============================================================================
    `.csv`, `.tsv`, also with `.gz`,    a header, and one line or row per row: its class, by its name if it has one, and
    `.parquet`                          its outputs with `scores`, or if there are no classes
    `.npy`                              the classes, int64 of shape (rows,); without classes the outputs
    `.npz`                              array outputs, or one for each of several named outputs; and classes where there
                                        are some, and class_names where they have names
    `.h5`, `.hdf5`                      a result as `sparsenn.io.write_result` writes it; and dataset classes where
                                        there are some; the notes have their names
    ==================================  ===============================================================================
    """
    suffix = table_suffix(path) or Path(path).suffix.lower()
    if suffix not in PREDICTION_SUFFIXES:
        raise UsageError(f"{os.fspath(path)}: the name must end in {', '.join(PREDICTION_SUFFIXES)}")
    predicted = predicted_classes(model, outputs)
    if suffix in TABLE_SUFFIXES:
        with table_writer(path) as write:
            write(prediction_table(model, outputs, scores=scores))
    elif suffix in (".h5", ".hdf5"):
        from sparsenn.io.hdf5.dataset import write_result

        named = {} if model.class_names is None else {"class_names": json.dumps(list(model.class_names))}
        found = np.flatnonzero(outputs.any(axis=1))
        write_result(path, from_dense(outputs), found, {**(notes or {}), **named}, predicted)
    else:
        with replacing(path) as temporary, temporary.open("wb") as file:
            if suffix == ".npz":
                _write_npz(file, _arrays(model, outputs, predicted))
            else:
                np.save(file, outputs if predicted is None else predicted, allow_pickle=False)


def _write_npz(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write arrays of any names, also those that `numpy.savez` takes for its own parameters."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                write_array(member, array, allow_pickle=False)


def _arrays(model: Model, outputs: Array, predicted: Array | None) -> dict[str, Array]:
    if predicted is not None:
        names = {} if model.class_names is None else {"class_names": np.array(model.class_names)}
        return {"outputs": outputs, "classes": predicted, **names}
    if model.network.named_outputs is None:
        return {"outputs": outputs}
    columns = named_columns(model.network.named_outputs)
    return {name: outputs[:, first:last].reshape(-1, *shape) for name, shape, first, last in columns}
