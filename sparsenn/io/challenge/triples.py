"""From parsed chunks of (row, column, value) to a matrix, whichever text format they came from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from sparsenn.errors import FileFormatError, MatrixError
from sparsenn.formats import COO, CSC, CSR, Array, index_dtype
from sparsenn.formats.arrays import collapse_iso
from sparsenn.formats.compressed import Compressed

Group = TypeVar("Group", CSR, CSC)


def gather(chunks: Iterator[list[Array]], shape: tuple[int, int], fixed_rows: bool = True) -> COO:
    """Join chunks of triples in the narrowest types, leaving out rows from shape[0] on.

    With `fixed_rows` false the result has as many rows as the largest index asks for, up to shape[0].
    """
    rows, columns, values = [], [], []
    height = shape[0] if fixed_rows else 0
    for row, column, value in chunks:
        if row.size and int(row.max()) >= shape[0]:
            inside = row < shape[0]
            height, row, column, value = shape[0], row[inside], column[inside], value[inside]
        height = max(height, int(row.max(initial=-1)) + 1)
        rows.append(row.astype(index_dtype(shape[0])))
        columns.append(column.astype(index_dtype(shape[1])))
        values.append(collapse_iso(value))
    narrow = index_dtype(height)
    return COO(
        (height, shape[1]),
        np.concatenate([np.empty(0, narrow), *(row.astype(narrow, copy=False) for row in rows)]),
        np.concatenate([np.empty(0, index_dtype(shape[1])), *columns]),
        _concatenated(values, [row.size for row in rows]),
    )


def compress(
    convert: Callable[[COO], Group], triples: COO, path: str | os.PathLike[str], names: tuple[str, ...]
) -> Group:
    """Convert to CSR or CSC, refusing a position that occurs twice; `names` are those of its indices."""
    matrix = convert(triples)
    try:
        matrix.validate()
    except MatrixError as error:
        row, column = _first_twice(matrix)
        position = f"{names[0]} {row + 1}, {names[1]} {column + 1}"
        raise FileFormatError(path, f"{position} occurs twice; each position may occur once") from error
    return matrix


def _concatenated(values: list[Array], sizes: list[int]) -> Array:
    """Concatenate chunks of values, each one per entry or one for all; one value for all if that serves every chunk."""
    firsts = collapse_iso(np.concatenate([np.empty(0, np.float32), *(value[:1] for value in values)]))
    if firsts.size <= 1 and all(value.size <= 1 for value in values):
        return firsts
    return np.concatenate([np.broadcast_to(value, size) for value, size in zip(values, sizes, strict=True)])


def _first_twice(matrix: Compressed) -> tuple[int, int]:
    """Return the first (row, column) that occurs twice in a sorted matrix that has one."""
    same = np.flatnonzero(matrix.indices[1:] == matrix.indices[:-1])
    groups = np.searchsorted(matrix.indptr, same, side="right")
    inside = np.flatnonzero(matrix.indptr[groups] > same + 1)[0]
    major, minor = int(groups[inside]) - 1, int(matrix.indices[same[inside]])
    return (major, minor) if matrix.major_axis == 0 else (minor, major)
