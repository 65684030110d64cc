"""Tab-separated text, as the Sparse DNN Graph Challenge publishes its data: all indices count from 1.

Images are lines of image, pixel and value; layers are lines of input neuron, output neuron and weight; categories
are one image a line. Files whose name ends in `.gz` are read and written through gzip.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sparsenn.errors import FileFormatError, UsageError
from sparsenn.formats import COO, CSC, CSR, INDEX32_LIMIT, Array, coo_to_csc, coo_to_csr
from sparsenn.formats.compressed import Compressed
from sparsenn.io.bounded import Source, check_length
from sparsenn.io.challenge.text import Columns, parse_lines
from sparsenn.io.challenge.triples import compress, gather
from sparsenn.io.dataset import check_limits
from sparsenn.runtime.progress import Progress, silent
from sparsenn.runtime.storage import open_to_write, replacing

_LINE_BYTES = 64
"""Bytes that one line of triples may take: two indices of 10 digits, a number of 25 characters, and a margin."""

_WRITTEN = 1 << 20  # entries formatted at a time


def text_limit(shape: tuple[int, int]) -> int:
    """Return how many bytes the text of a matrix of this shape can take, every position filled."""
    return shape[0] * shape[1] * _LINE_BYTES + _LINE_BYTES


def read_triples(path: str | os.PathLike[str], shape: tuple[int, int]) -> COO:
    """Read any matrix from lines of row, column and value, into float32.

    Parameters
    ----------
    path : str or path-like
        The file.
    shape : (int, int)
        Rows and columns.

    Returns
    -------
    COO, float32
        The matrix.

    Raises
    ------
    FileFormatError
        The file is empty, truncated or damaged, a line is not three numbers, an index is out of range, a value is not
        finite, or a position occurs twice. The message names the line.
    InputError, ResourceError
        The file is not there or cannot be read.
    """
    columns = Columns(("row", "column"), shape, "value")
    excess = f"that a matrix of {shape[0]:,} × {shape[1]:,} could need; refused: the shape may be too small"
    with Source(path, text_limit(shape), excess=excess) as source:
        triples = gather(parse_lines(source, path, columns), shape)
    check_length(path, "rows or columns", max(shape), triples.nnz)
    compress(coo_to_csr, triples, path, columns.names)
    return triples


def read_layer(path: str | os.PathLike[str], shape: tuple[int, int]) -> CSC:
    """Read one layer's weights into float32; errors are those of `read_triples`.

    Parameters
    ----------
    path : str or path-like
        A file with lines of input, output, weight.
    shape : (int, int)
        Inputs and outputs.

    Returns
    -------
    CSC, shape (inputs, outputs), float32
        The weights.
    """
    with Source(path, text_limit(shape)) as source:
        return parse_layer(source.read(text_limit(shape) + 1), path, shape)


def parse_layer(text: bytes, path: str | os.PathLike[str], shape: tuple[int, int]) -> CSC:
    """Parse one layer's text; `path` names it in messages. Errors are those of `read_triples`."""
    columns = Columns(("input neuron", "output neuron"), shape, "weight")
    triples = gather(parse_lines(io.BytesIO(text), path, columns), shape)
    check_length(path, "neurons", max(shape), triples.nnz)
    return compress(coo_to_csc, triples, path, columns.names)


def read_images(
    path: str | os.PathLike[str],
    neurons: int,
    inputs: int | None = None,
    limit_inputs: int | None = None,
    progress: Progress = silent,
) -> CSR:
    """Read input images, one row each, into float32.

    Parameters
    ----------
    path : str or path-like
        A file with lines of image, pixel, value.
    neurons : int
        Pixels of an image.
    inputs : int, optional
        Number of images; the largest index in the file if not given.
    limit_inputs : int, optional
        How many images to keep, from the first; later ones are checked, but not returned.
    progress : callable, optional
        Told of the bytes read.

    Returns
    -------
    CSR, shape (images, neurons), float32
        One image a row.

    Raises
    ------
    FileFormatError, InputError, ResourceError
        As `read_triples`.
    UsageError
        `limit_inputs` is not positive.
    """
    check_limits(limit_inputs=limit_inputs)
    columns = Columns(("image", "pixel"), (inputs, neurons), "value")
    count = min(limit_inputs or INDEX32_LIMIT, inputs or INDEX32_LIMIT)
    task = f"read {Path(path).name}"
    with Source(path, None if inputs is None else text_limit((inputs, neurons))) as source:
        chunks = _reported(parse_lines(source, path, columns), source, task, progress)
        triples = gather(chunks, (count, neurons), fixed_rows=inputs is not None)
    line = int(triples.rows.argmax()) + 1 if inputs is None and limit_inputs is None else None
    check_length(path, "images", triples.shape[0], triples.nnz, line)
    return compress(coo_to_csr, triples, path, columns.names)


def read_categories(path: str | os.PathLike[str]) -> Array:
    """Read categories: one index a line, in any order; a file of no lines names none.

    Returns a sorted int64 vector that counts from 0.
    """
    columns = Columns(("category",), (None,))
    with Source(path) as source:
        chunks = [chunk[0] for chunk in parse_lines(source, path, columns, may_be_empty=True)]
    categories = np.sort(np.concatenate([np.empty(0, np.int64), *chunks]))
    again = categories[1:][categories[1:] == categories[:-1]]
    if again.size:
        raise FileFormatError(path, f"category {int(again[0]) + 1} occurs twice")
    return categories


def write_images(path: str | os.PathLike[str], images: CSR, progress: Progress = silent) -> None:
    """Write images as lines of image, pixel, value, by image, then pixel; whole or not at all.

    Parameters
    ----------
    path : str or path-like
        The file; one that is there is replaced.
    images : CSR, shape (images, pixels)
        One image a row.
    progress : callable, optional
        Told of what is written.

    Raises
    ------
    UsageError
        There is no entry at all: the format cannot say so.
    ResourceError
        The file cannot be written.
    """
    _refuse_empty(images, "images")
    name = Path(path).name
    with replacing(path) as temporary, open_to_write(temporary, path) as file:
        for done, text in _formatted(images):
            file.write(text)
            progress(f"write {name}", done, images.nnz)


def write_layer(path: str | os.PathLike[str], weights: CSC) -> None:
    """Write weights as lines of input, output, weight, by output, then input; errors are those of `write_images`.

    Parameters
    ----------
    path : str or path-like
        The file; one that is there is replaced.
    weights : CSC, shape (inputs, outputs)
        The weights.
    """
    text = format_layer(weights)
    with replacing(path) as temporary, open_to_write(temporary, path) as file:
        file.write(text)


def format_layer(weights: CSC) -> bytes:
    """Return the text that `write_layer` writes."""
    _refuse_empty(weights, "weights")
    return b"".join(text for _, text in _formatted(weights))


def write_categories(path: str | os.PathLike[str], categories: Array) -> None:
    """Write categories, one a line; whole or not at all.

    Parameters
    ----------
    path : str or path-like
        The file; one that is there is replaced.
    categories : array of integers, shape (categories,)
        Counted from 0; in the file they are counted from 1.

    Raises
    ------
    ResourceError
        The file cannot be written.
    """
    with replacing(path) as temporary, open_to_write(temporary, path) as file:
        file.write(_text(np.sort(categories) + 1))


def _reported(chunks: Iterator[list[Array]], source: Source, task: str, progress: Progress) -> Iterator[list[Array]]:
    for chunk in chunks:
        yield chunk
        progress(task, min(source.consumed, source.size), source.size)


def _refuse_empty(matrix: Compressed, what: str) -> None:
    if not matrix.nnz:
        raise UsageError(f"the {what} have no entry, which text of triples cannot express; write HDF5 instead")


def _formatted(matrix: Compressed) -> Iterator[tuple[int, bytes]]:
    """Yield (entries done, text) for whole groups of about `_WRITTEN` entries."""
    goals = np.arange(_WRITTEN, matrix.nnz + _WRITTEN, _WRITTEN)
    stops = np.unique(np.searchsorted(matrix.indptr, goals).clip(max=matrix.groups))
    start = 0
    for stop in stops.tolist():
        yield int(matrix.indptr[stop]), _format_groups(matrix, start, stop)
        start = stop


def _format_groups(matrix: Compressed, start: int, stop: int) -> bytes:
    part = matrix.slice_groups(start, stop)
    major = np.repeat(np.arange(start + 1, stop + 1, dtype=np.int32), np.diff(part.indptr))
    minor = part.indices.astype(np.int32) + 1
    rows, columns = (major, minor) if matrix.major_axis == 0 else (minor, major)
    return _text(rows, columns, part.expanded_values())


def _text(*columns: Array) -> bytes:
    import pyarrow as pa
    from pyarrow import csv

    table = pa.table({str(number): column for number, column in enumerate(columns)})
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none"))
    text: bytes = sink.getvalue().to_pybytes()
    return text
