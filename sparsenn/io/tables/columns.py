"""Blocks of tables, and the columns that Arrow reads in the form that `Table` has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsenn.formats import Array, Table, Texts

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 1 << 24
"""Bytes of text, or of float64 numbers, that are parsed at a time: enough work for all threads."""


class Block(NamedTuple):
    """Consecutive rows of a table in a file.

    table : the columns that are read.
    copied : pyarrow's array of one further column, as in the file; None where none is asked for.
    position : bytes, or rows, of the file that have been read so far, out of the file's `size`.
    """

    table: Table
    copied: Any
    position: int


class Batch(NamedTuple):
    """Consecutive rows as a network takes them.

    rows : (rows, inputs), float32.
    copied, position : as those of a block.
    """

    rows: Array
    copied: Any
    position: int


def batches(parts: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Yield batches of the same rows, of `size` rows each, and at last of the rest."""
    held: list[Batch] = []
    count = 0
    for part in parts:
        rows, start = part.rows, 0
        while len(rows) - start >= size - count:
            stop = start + size - count
            held.append(_cut(part, start, stop))
            yield _merge(held)
            held, count, start = [], 0, stop
        if start < len(rows):
            held.append(_cut(part, start, len(rows)))
            count += len(rows) - start
    if held:
        yield _merge(held)


def _cut(part: Batch, start: int, stop: int) -> Batch:
    copied = None if part.copied is None else part.copied.slice(start, stop - start)
    return part._replace(rows=part.rows[start:stop], copied=copied)


def _merge(parts: list[Batch]) -> Batch:
    import pyarrow as pa

    last = parts[-1]
    if len(parts) == 1:
        return last
    chunks = [
        chunk for part in parts if part.copied is not None for chunk in getattr(part.copied, "chunks", [part.copied])
    ]
    copied = None if last.copied is None else pa.chunked_array(chunks)
    return Batch(np.concatenate([part.rows for part in parts]), copied, last.position)


def number_column(column: pa.Array | pa.ChunkedArray) -> Array:
    """Return numbers or truth values as float32, NaN where one is missing."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    numbers = column.cast(pa.float64(), safe=False).cast(pa.float32(), safe=False)
    return np.asarray(numbers.to_numpy(zero_copy_only=False))


def text_column(column: pa.Array | pa.ChunkedArray, missing: Collection[str] = ()) -> Texts:
    """Return texts without the blanks around them; a text that is one of `missing` in small letters is missing."""
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    numbers: dict[str, int] = {}
    codes = []
    for text in encoded.dictionary.to_pylist():
        is_missing = text is None or text.strip().lower() in missing
        codes.append(-1 if is_missing else numbers.setdefault(text.strip() if missing else text, len(numbers)))
    rows = encoded.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)
    found = np.array([*codes, -1], np.int32)[rows]
    used = np.unique(found[found >= 0])
    if len(used) == len(numbers):
        return Texts(found, tuple(numbers))
    texts = tuple(numbers)
    return Texts(np.where(found < 0, -1, np.searchsorted(used, found)), tuple(texts[code] for code in used))
