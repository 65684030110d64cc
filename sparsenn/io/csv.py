"""Tables of numbers as text, divided by commas or tabs: a line a row, the first one perhaps the columns' names."""

from __future__ import annotations

import os

import numpy as np

from sparsenn.errors import FileFormatError
from sparsenn.formats import Array
from sparsenn.io.bounded import Source
from sparsenn.io.text import faulty_lines, line_ends
from sparsenn.workers import apart

__all__ = ["read_csv"]

_MOST = 1 << 62

_CHUNK = 1 << 24
"""Bytes parsed at a time, and more to the end of a line."""

_BOM = b"\xef\xbb\xbf"


def read_csv(path: str | os.PathLike[str], delimiter: str = ",") -> Array:
    """Read a table of numbers, through gzip if the name ends in `.gz`; a first line that holds no number is a header.

    Parameters
    ----------
    path : the file.
    delimiter : what divides the columns: a comma or a tab.

    Returns
    -------
    float32 of shape (rows, columns). Empty lines at the end are passed over.

    Raises
    ------
    FileFormatError
        A line has more or fewer fields than the first, or a field is not a finite float32 number, or there is no row.
        The message names the line.
    InputError, ResourceError
        The file is not there or cannot be read.
    """
    between = delimiter.encode("ascii")
    with Source(path) as source:
        text = source.read(_MOST).removeprefix(_BOM).rstrip()
    first, _, rest = text.partition(b"\n")
    header = bool(text) and not any(_is_number(field) for field in first.split(between))
    body, line = (rest, 2) if header else (text, 1)
    if not body.strip():
        raise FileFormatError(path, "holds no rows of numbers", line)
    columns = first.count(between) + 1
    tables, start = [], 0
    while start < len(body):
        stop = body.find(b"\n", start + _CHUNK) + 1 or len(body)
        table = _parse(body[start:stop].removesuffix(b"\n"), columns, delimiter)
        if table is None:
            raise FileFormatError(path, *_fault(body[start:stop], columns, delimiter, line))
        tables.append(table)
        start, line = stop, line + body.count(b"\n", start, stop)
    return np.concatenate(tables)


def _parse(body: bytes, columns: int, delimiter: str) -> Array | None:
    """Return the numbers of whole lines; None unless every line has as many finite ones."""
    import pyarrow as pa
    from pyarrow import csv

    if b'"' in body:
        return None
    names = [str(number) for number in range(columns)]
    try:
        table = apart(
            lambda: csv.read_csv(
                pa.BufferReader(body + b"\n"),
                csv.ReadOptions(column_names=names),
                csv.ParseOptions(delimiter=delimiter, quote_char=False, double_quote=False, ignore_empty_lines=False),
                csv.ConvertOptions(column_types=dict.fromkeys(names, pa.float64()), null_values=[], check_utf8=False),
            )
        )
    except ValueError:  # pyarrow's faults are such
        return None
    values = np.empty((table.num_rows, columns), np.float32)
    with np.errstate(over="ignore"):
        for number, column in enumerate(table.columns):
            values[:, number] = column.to_numpy()
    return values if np.isfinite(values).all() else None


def _fault(body: bytes, columns: int, delimiter: str, line: int) -> tuple[str, int]:
    """Return what is wrong with the first faulty line, and its number, `line` being that of the first."""
    between, ends = delimiter.encode("ascii"), line_ends(body)

    def lines(first: int, last: int) -> bytes:
        return body[ends[first] : ends[last]].removesuffix(b"\n")

    first, last = faulty_lines(lambda *some: _parse(lines(*some), columns, delimiter) is not None, len(ends) - 1)
    for number, raw in enumerate(lines(first, last).split(b"\n"), start=line + first):
        fields = raw.strip(b"\r").split(between)
        if len(fields) != columns:
            return f"{len(fields):,} columns instead of {columns:,}", number
        for field in fields:
            if not _is_number(field):
                return f"{field[:40].decode('utf-8', 'replace')!r} is not a finite float32 number", number
    return "cannot be parsed", line + first


def _is_number(field: bytes) -> bool:
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.float32(float(field.replace(b"_", b"?")))))
    except ValueError:
        return False
