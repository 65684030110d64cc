"""Tables as text, separated by commas, semicolons or tabs: a line a row, the first one perhaps the columns' names.

Semicolons are taken for commas where the first line holds some and no comma.

`read_csv` takes numbers alone, none missing; `read_table` also texts, quotation marks, and fields that hold nothing.
"""

from __future__ import annotations

import csv as csv_lines
import os
import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sparsenn.errors import FileFormatError
from sparsenn.formats import Array, Table, Texts
from sparsenn.formats.table import column_numbers, is_number
from sparsenn.io.bounded import Source
from sparsenn.io.challenge.text import faulty_lines, line_ends
from sparsenn.runtime.workers import apart

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MISSING", "parse_numbers", "read_csv", "read_table"]

MISSING = ("", "na", "n/a", "nan", "null", "?")
"""What a field holds, in capitals or not, of which nothing is known."""

_MOST = 1 << 62

_CHUNK = 1 << 24
"""Bytes parsed at a time, and more to the end of a line."""

_EMPTY_LINE = re.compile(rb"\n[ \t\r]*\n")

_BOM = b"\xef\xbb\xbf"


def read_csv(
    path: str | os.PathLike[str],
    delimiter: str = ",",
    check: Callable[[Sequence[str]], None] | None = None,
) -> Array:
    """Read a table of numbers, through gzip if the name ends in `.gz`; a first line that holds no number is a header.

    Parameters
    ----------
    path : str or path-like
        The file.
    delimiter : str, default ","
        What divides the columns: a comma, or a semicolon in its place; or a tab.
    check : callable, optional
        Given the names of the columns, their numbers where there are none, before any number is read; may raise.

    Returns
    -------
    array, shape (rows, columns), float32
        Empty lines at the end are passed over.

    Raises
    ------
    FileFormatError
        A line has more or fewer fields than the first, or a field is not a finite float32 number, or there is no row.
        The message names the line.
    InputError, ResourceError
        The file is not there or cannot be read.
    """
    header, body, line, delimiter = _parts(path, delimiter)
    columns = len(header) if header else body.partition(b"\n")[0].count(delimiter.encode("ascii")) + 1
    if check is not None:
        check(header or column_numbers(columns))
    return parse_numbers(path, body, columns, delimiter, line)


def parse_numbers(path: str | os.PathLike[str], body: bytes, columns: int, delimiter: str, line: int) -> Array:
    """Parse lines of as many numbers each: float32 of shape (lines, columns).

    Parameters
    ----------
    path, line : where the text is from, and the number of its first line, for messages.

    Raises
    ------
    FileFormatError
        A line has more or fewer fields, or a field is not a finite float32 number. The message names the line.
    """
    tables, start = [], 0
    while start < len(body):
        stop = body.find(b"\n", start + _CHUNK) + 1 or len(body)
        table = _parse(body[start:stop].removesuffix(b"\n"), columns, delimiter)
        if table is None:
            raise FileFormatError(path, *_fault(body[start:stop], columns, delimiter, line))
        tables.append(table)
        start, line = stop, line + body.count(b"\n", start, stop)
    return np.concatenate(tables)


def read_table(path: str | os.PathLike[str], delimiter: str = ",", known: Collection[str] = ()) -> Table:
    """Read a table of numbers and texts, through gzip if the name ends in `.gz`.

    A column is numbers where every field is one or holds nothing (`MISSING`), and else texts. Blanks around a field
    are no part of it.

    Parameters
    ----------
    path : the file.
    delimiter : what divides the columns: a comma, or a semicolon in its place; or a tab.
    known : names of columns. The first line is a header if it holds one of them that is no number, or no number at all.

    Raises
    ------
    FileFormatError
        A line has more or fewer fields than the first, a number is not finite in float32, there is no row, two columns
        have one name, or the text is not UTF-8. The message names the line.
    InputError, ResourceError
        The file is not there or cannot be read.
    """
    header, body, line, delimiter = _parts(path, delimiter, known)
    columns = len(header or _fields(body.partition(b"\n")[0], delimiter))
    names = header or column_numbers(columns)
    if columns > 1 and (place := _EMPTY_LINE.search(body)):
        raise FileFormatError(path, "is empty", line + body.count(b"\n", 0, place.start()) + 1)
    try:
        body.decode()
    except UnicodeDecodeError as error:
        reason = "is not UTF-8 text; save it as such"
        raise FileFormatError(path, reason, line + body.count(b"\n", 0, error.start)) from error
    texts = _texts(path, body, columns, delimiter, line)
    found: list[Array | Texts] = []
    for column in texts:
        read = _column(column)
        if not isinstance(read, Texts) and np.isinf(read).any():
            row = int(np.isinf(read).argmax())
            reason = f"{str(column[row])[:40]!r} is not a finite float32 number"
            raise FileFormatError(path, reason, line + row)
        found.append(read)
    return Table(os.fspath(path), names, tuple(found), len(texts[0]), named=bool(header), first_line=line)


def _parts(
    path: str | os.PathLike[str], delimiter: str, known: Collection[str] = ()
) -> tuple[tuple[str, ...], bytes, int, str]:
    """Return the names in the first line, none where it is no header; what follows, its first line's number, and what
    divides columns.
    """
    with Source(path) as source:
        text = source.read(_MOST).removeprefix(_BOM).rstrip()
    first, _, rest = text.partition(b"\n")
    if delimiter == "," and b";" in first and b"," not in first:
        delimiter = ";"
    names = _fields(first, delimiter)
    header = bool(text) and (
        not any(map(is_number, names)) or any(name in known and not is_number(name) for name in names)
    )
    body, line = (rest, 2) if header else (text, 1)
    if not body.strip():
        raise FileFormatError(path, "holds no rows of numbers", line)
    return names if header else (), body, line, delimiter


def _fields(line: bytes, delimiter: str) -> tuple[str, ...]:
    """Return the fields of one line, quotation marks and blanks around them left out."""
    text = line.decode("utf-8", "replace").strip("\r\0")
    try:
        return tuple(field.strip() for field in next(csv_lines.reader([text], delimiter=delimiter), ()))
    except csv_lines.Error:  # a field beyond what that module takes
        return tuple(field.strip().strip('"') for field in text.split(delimiter))


def _texts(path: str | os.PathLike[str], body: bytes, columns: int, delimiter: str, line: int) -> list[pa.ChunkedArray]:
    """Return the fields of each column."""
    import pyarrow as pa
    from pyarrow import csv

    wrong: list[csv.InvalidRow] = []

    def keep(row: csv.InvalidRow) -> str:
        wrong.append(row)
        return "error"

    names = [str(number) for number in range(columns)]
    try:
        table = csv.read_csv(
            pa.BufferReader(body + b"\n"),
            csv.ReadOptions(column_names=names, use_threads=False, block_size=_CHUNK),
            csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False, invalid_row_handler=keep),
            csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), null_values=[], check_utf8=False),
        )
    except ValueError as error:  # pyarrow's faults are such
        if wrong:
            reason = f"{wrong[0].actual_columns:,} columns instead of {columns:,}"
            raise FileFormatError(path, reason, line + wrong[0].number - 1) from error
        raise FileFormatError(path, f"cannot be parsed ({' '.join(str(error).split())[:200]})") from error
    if table.num_rows != body.count(b"\n") + 1:
        raise FileFormatError(path, "has line ends within a row; write each row on one line")
    return list(table.columns)


def _column(texts: pa.ChunkedArray) -> Array | Texts:
    """Return what a column's fields are: numbers, NaN where one is missing, or texts."""
    import pyarrow as pa
    from pyarrow import compute

    stripped = compute.utf8_trim_whitespace(texts)
    nothing = compute.is_in(compute.utf8_lower(stripped), value_set=pa.array(MISSING))
    there = compute.if_else(nothing, pa.scalar(None, pa.string()), stripped)
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            return np.asarray(there.cast(pa.float64()).to_numpy()).astype(np.float32)
        except pa.ArrowInvalid:
            found = there.combine_chunks().dictionary_encode()
    values = tuple(found.dictionary.to_pylist())
    return Texts(np.asarray(found.indices.fill_null(-1)), values)


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
    return is_number(field.decode("utf-8", "replace"))
