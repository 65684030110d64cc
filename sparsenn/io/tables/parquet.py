"""Tables in Parquet, read by pyarrow in blocks.

A few bytes of Parquet may stand for billions of rows, so that rows are decoded some at a time.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from sparsenn.errors import FileFormatError
from sparsenn.formats import Array, Table, Texts, Unread
from sparsenn.io.bounded import open_plain
from sparsenn.io.tables.columns import BLOCK_BYTES, Block, number_column, text_column

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 1 << 16  # the most rows that are decoded at a time

_BUFFER_BYTES = 1 << 16
"""Bytes read at a time of a column's values, in place of all of a row group's."""


class ParquetTable(AbstractContextManager["ParquetTable"]):
    """A table in Parquet, open for reading.

    block_bytes : bytes that the numbers of a block may take as float64.

    Attributes
    ----------
    names : of the columns.
    named : True.
    decimal_commas : none.
    size : rows of the table.
    texts : places of the columns, counted from 0, that do not hold numbers or truth values.
    """

    named = True
    decimal_commas = frozenset[int]()

    def __init__(self, path: str | os.PathLike[str], block_bytes: int = BLOCK_BYTES) -> None:
        from pyarrow import parquet

        self.path, self._block_bytes = os.fspath(path), block_bytes
        self._plain = open_plain(path)
        try:
            with self._explained():
                self._file = parquet.ParquetFile(self._plain, buffer_size=_BUFFER_BYTES)
                self.size, schema = self._file.metadata.num_rows, self._file.schema_arrow
                self.names = tuple(schema.names)
            if not self.names:
                raise FileFormatError(path, "holds no columns")
        except BaseException:
            self._plain.close()
            raise
        self._kinds = [_kind(field) for field in schema]
        self.texts = {place for place, kind in enumerate(self._kinds) if kind != "number"}

    def __exit__(self, *error: Any) -> None:
        self._plain.close()

    def blocks(
        self, places: Sequence[int], texts: Collection[int] = (), copied: int | None = None, first: int = 0
    ) -> Iterator[Block]:
        """Yield the rows, some at a time.

        places : the columns, counted from 0, that the blocks' tables have.
        texts : ignored, as the file says which columns are texts.
        copied : the place of a further column, which is copied as it is.
        first : number of the first row that is wanted, counted from 0.
        """
        import pyarrow as pa

        names = tuple(self.names[place] for place in places)
        Table(self.path, self.names, (), 0, named=True)  # refuses two columns of one name
        wanted = [name for name, place in zip(names, places, strict=True) if self._kinds[place] in ("number", "text")]
        wanted += [] if copied is None else [self.names[copied]]
        groups, row = self._groups(first)
        rows = max(1, min(_ROWS, self._block_bytes // (8 * max(1, len(wanted)))))
        with self._explained():
            for batch in self._file.iter_batches(rows, groups, columns=wanted):
                skipped = min(max(0, first - row), batch.num_rows)
                batch, row = batch.slice(skipped), row + batch.num_rows
                if row > self.size:
                    raise FileFormatError(self.path, f"declares {self.size:,} rows, but holds more")
                if not batch.num_rows:
                    continue
                for array in batch.columns:
                    if pa.types.is_dictionary(array.type):
                        array.validate(full=True)  # a damaged file may refer to values beyond its dictionary
                columns = tuple(self._column(place, batch) for place in places)
                begin = row - batch.num_rows
                table = Table(self.path, names, columns, batch.num_rows, named=True, first_row=begin)
                yield Block(table.checked(), None if copied is None else batch[self.names[copied]], row)
        if wanted and row != self.size:
            raise FileFormatError(self.path, f"declares {self.size:,} rows, but holds {row:,}")

    def _groups(self, first: int) -> tuple[list[int], int]:
        """Return the row groups from the one on that holds a row, and the number of their first row."""
        begin, metadata = 0, self._file.metadata
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            if begin + rows > first:
                return list(range(group, metadata.num_row_groups)), begin
            begin += rows
        return [], begin

    def _column(self, place: int, batch: pa.RecordBatch) -> Array | Texts | Unread:
        kind = self._kinds[place]
        if kind not in ("number", "text"):
            return Unread(kind)
        column = batch[self.names[place]]
        return number_column(column) if kind == "number" else text_column(column)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise FileFormatError(self.path, f"not Parquet, or damaged ({reason}); fetch or make it again") from error


def _kind(field: pa.Field) -> str:
    """Return "number", "text", or the type of a column that is neither."""
    from pyarrow import types

    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    return "number" if numeric else str(field.type)
