"""Parquet, read and written by pyarrow: tables of named columns.

A few bytes of Parquet may stand for billions of rows, so that the rows and columns that a file declares are compared
with the memory that is left before any of them is read, and rows are decoded some at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from sparsenn.errors import FileFormatError
from sparsenn.formats import Array, Table, Texts, Unread
from sparsenn.io.bounded import open_plain
from sparsenn.runtime.memory import check_memory

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["parquet_rows", "read_parquet", "write_parquet_columns"]

_ROWS = 1 << 16
"""Rows decoded at a time."""


def read_parquet(path: str | os.PathLike[str]) -> Table:
    """Read a table: columns of numbers and truth values as float32, null or NaN where one is missing, and of texts.

    Raises
    ------
    FileFormatError
        The file is no Parquet or is damaged, holds no rows or no columns, or a number is not finite in float32.
    InputError, ResourceError
        The file is not there, cannot be read, or takes more than memory.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with open_plain(path) as plain, parquet.ParquetFile(plain) as file:
            rows, schema = file.metadata.num_rows, file.schema_arrow
            if rows < 1 or not len(schema):
                raise FileFormatError(
                    path, f"holds {rows:,} rows of {len(schema):,} columns; at least one of each is needed"
                )
            check_memory(4 * rows * len(schema), f"{os.fspath(path)}: {rows:,} rows of {len(schema):,} columns")
            columns = [_Column(path, field, rows) for field in schema]
            wanted = [column.name for column in columns if column.kind is None]
            found = 0
            for batch in file.iter_batches(_ROWS, columns=wanted, use_threads=False):
                if found + batch.num_rows > rows:
                    raise FileFormatError(path, f"declares {rows:,} rows, but holds more")
                for column, array in zip((c for c in columns if c.kind is None), batch.columns, strict=True):
                    column.take(array, found)
                found += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise FileFormatError(path, f"not Parquet, or damaged ({reason[:200]}); fetch or make it again") from error
    if wanted and found != rows:
        raise FileFormatError(path, f"declares {rows:,} rows, but holds {found:,}")
    return Table(os.fspath(path), tuple(schema.names), tuple(column.made() for column in columns), rows, named=True)


def parquet_rows(path: str | os.PathLike[str], size: int, first: int) -> Iterator[Array]:
    """Yield the rows of a table of numbers from one on, counted from 0, at most so many at a time, as float32.

    Raises
    ------
    FileFormatError
        As `read_parquet`; or a column holds something else than numbers.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with open_plain(path) as plain, parquet.ParquetFile(plain) as file:
            schema, found = file.schema_arrow, 0
            groups: list[int] = []
            for group in range(file.metadata.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if found + rows <= first and not groups:
                    found += rows
                else:
                    groups.append(group)
            for batch in file.iter_batches(min(size, _ROWS), groups, use_threads=False):
                skipped = min(max(0, first - found), batch.num_rows)
                part, found = batch.slice(skipped), found + batch.num_rows
                if part.num_rows:
                    yield _matrix(path, schema, part, found - part.num_rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise FileFormatError(path, f"not Parquet, or damaged ({reason[:200]}); fetch or make it again") from error


def _matrix(path: str | os.PathLike[str], schema: pa.Schema, batch: pa.RecordBatch, first: int) -> Array:
    """Return some rows as a matrix; the first of them has this number."""
    columns = [_Column(path, field, batch.num_rows) for field in schema]
    for column, array in zip(columns, batch.columns, strict=True):
        if column.kind is not None or column.is_text:
            raise FileFormatError(path, f"column {column.name!r} holds {column.kind or 'texts'}; numbers are needed")
        column.take(array, 0, first)
    matrix: Array = np.stack([np.asarray(column.made()) for column in columns], axis=1)
    if np.isnan(matrix).any():
        row = first + int(np.isnan(matrix).any(axis=1).argmax())
        raise FileFormatError(path, f"row {row + 1:,} lacks a number")
    return matrix


def write_parquet_columns(file: IO[bytes], columns: Mapping[str, Any]) -> None:
    """Write arrays, or lists of texts, as the columns of a table, by name."""
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(dict(columns)), file)


class _Column:
    """One column while it is read."""

    def __init__(self, path: str | os.PathLike[str], field: pa.Field, rows: int) -> None:
        from pyarrow import types

        self.path, self.name = path, field.name
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        self.is_text = types.is_string(kind) or types.is_large_string(kind)
        numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
        self.kind = None if self.is_text or numeric else str(field.type)
        self._codes = np.empty(rows if self.is_text else 0, np.int32)
        self._numbers = np.empty(0 if self.is_text or not numeric else rows, np.float32)
        self._known: dict[str, int] = {}

    def take(self, array: pa.Array, first: int, before: int = 0) -> None:
        """Keep the values of some rows, the first of which has this number, counted from 0, behind those before."""
        if hasattr(array, "dictionary"):
            array.validate(full=True)  # a damaged file may refer to values that its dictionary does not have
        if self.is_text:
            found = array if hasattr(array, "dictionary") else array.dictionary_encode()
            texts = found.dictionary.to_pylist()
            codes = [-1 if text is None else self._known.setdefault(text, len(self._known)) for text in texts]
            rows = found.indices.fill_null(len(texts)).to_numpy(False)
            self._codes[first : first + len(array)] = np.array([*codes, -1], np.int32)[rows]
            return
        exact = _exact(array)
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = exact.astype(np.float32)
        wrong = np.isinf(numbers)
        if wrong.any():
            row = int(wrong.argmax())
            place = f"row {before + first + row + 1:,}, column {self.name!r}"
            raise FileFormatError(self.path, f"{place} holds {exact[row]:g}, which is not finite in float32")
        self._numbers[first : first + len(array)] = numbers

    def made(self) -> Array | Texts | Unread:
        """Return what was read."""
        if self.kind is not None:
            return Unread(self.kind)
        if not self.is_text:
            return self._numbers
        used, texts = np.unique(self._codes[self._codes >= 0]), tuple(self._known)
        codes = np.where(self._codes < 0, -1, np.searchsorted(used, self._codes))
        return Texts(codes, tuple(texts[code] for code in used))


def _exact(array: pa.Array) -> Array:
    """Return numbers or truth values as float64, NaN where there is none."""
    import pyarrow as pa

    if hasattr(array, "dictionary"):
        array = array.dictionary_decode()
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    return np.asarray(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
