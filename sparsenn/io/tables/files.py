"""Files of tables, of any kind: which names they have, and what opens them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparsenn.errors import FileFormatError, UsageError
from sparsenn.formats import Table
from sparsenn.io.tables.columns import BLOCK_BYTES, Block
from sparsenn.runtime.memory import check_memory
from sparsenn.runtime.storage import check_path

if TYPE_CHECKING:
    from sparsenn.io.tables.csv import TextTable
    from sparsenn.io.tables.parquet import ParquetTable

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
"""The ends of the names of tables; text may be compressed, and then `.gz` follows."""

_SEPARATORS = {".csv": ",;\t", ".tsv": "\t"}


def table_suffix(path: str | os.PathLike[str]) -> str | None:
    """Return which of `TABLE_SUFFIXES` a file's name has; None for a file of another kind."""
    name = Path(path).name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    is_table = suffix in _SEPARATORS or (suffix == ".parquet" and not name.endswith(".gz"))
    return suffix if is_table else None


def open_table(
    path: str | os.PathLike[str], known: Collection[str] = (), block_bytes: int = BLOCK_BYTES
) -> TextTable | ParquetTable:
    """Open a table; the file's name says which kind it is."""
    check_path(path)
    suffix = table_suffix(path)
    if suffix is None:
        raise UsageError(f"{os.fspath(path)}: tables are {', '.join(TABLE_SUFFIXES)}, text also with .gz")
    if suffix == ".parquet":
        from sparsenn.io.tables.parquet import ParquetTable

        return ParquetTable(path, block_bytes)
    from sparsenn.io.tables.csv import TextTable

    return TextTable(path, _SEPARATORS[suffix], known, block_bytes)


def read_table(path: str | os.PathLike[str], known: Collection[str] = ()) -> Table:
    """Read a table of numbers and texts.

    A column is numbers where every field is one or is missing, and else texts.
    """
    texts: set[int] = set()
    while True:
        with open_table(path, known) as file:
            blocks = file.blocks(range(len(file.names)), texts)
            tables, found = _tables_until_texts(blocks, texts, file.size)
            columns = len(file.names)
        if found <= texts:
            break
        texts |= found  # fields that were numbers so far are texts: the file is read anew
    if not tables:
        raise FileFormatError(path, f"holds 0 rows of {columns:,} columns")
    return Table.concatenate(tables)


def _tables_until_texts(blocks: Iterator[Block], texts: set[int], size: int) -> tuple[Sequence[Table], set[int]]:
    """Read blocks up to the first that has texts in columns of numbers; return them, and the columns of texts.

    The columns of texts in the first block are added to `texts`.
    """
    tables: list[Table] = []
    for block in blocks:
        table = block.table
        if not tables:
            texts |= table.text_places
            rows = round(table.rows * size / max(1, block.position))
            what = f"{table.path}: {rows:,} rows of {len(table.columns):,} columns"
            check_memory(4 * rows * len(table.columns), what)
        tables.append(table)
        if not table.text_places <= texts:
            return tables, table.text_places
    return tables, texts
