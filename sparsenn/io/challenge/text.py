"""Lines of numbers in columns, separated by tabs: the strict parser behind the challenge's text.

Text is parsed in chunks of whole lines by `pyarrow.csv` with explicit types. A chunk that pyarrow refuses is parsed
once more on one thread, for only then does pyarrow count lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sparsenn.errors import FileFormatError
from sparsenn.formats import INDEX32_LIMIT, Array

LONGEST_LINE = 1024  # bytes; three numbers take well under a hundred

_CHUNK = 1 << 24
"""Bytes of text parsed at a time: enough for all threads, small beside the matrix that the text describes."""

_BLOCK = 1 << 20  # bytes of text per thread at a time

_SHOWN = 100
"""Characters of pyarrow's message, which quotes the line, that are shown."""

_BOM = b"\xef\xbb\xbf"
_FAULT = re.compile(r"(?:In CSV column #([0-9]+): |CSV parse error: )Row #([0-9]+): (.*)", re.DOTALL)
_STRAY = re.compile(rb"[xX]|\r(?!\n)")


class Readable(Protocol):
    """A source of text."""

    def read(self, size: int, /) -> bytes:
        """Return the next `size` bytes; fewer only at the end."""
        ...


@dataclass(frozen=True)
class Columns:
    """The numbers on each line of a file.

    names : name of each index column, for messages; indices count from 1.
    limits : largest index allowed in each; None where only int32 bounds it.
    value : name of the number that follows the indices; None if nothing does.
    """

    names: tuple[str, ...]
    limits: tuple[int | None, ...]
    value: str | None = None

    @property
    def all_names(self) -> tuple[str, ...]:
        """Names of all numbers on a line, in order."""
        return self.names if self.value is None else (*self.names, self.value)

    def __str__(self) -> str:
        return f"{', '.join(self.all_names)}{', separated by tabs' if len(self.all_names) > 1 else ''}"


def parse_lines(
    source: Readable, path: str | os.PathLike[str], columns: Columns, may_be_empty: bool = False
) -> Iterator[list[Array]]:
    """Parse text into one list of arrays per chunk: int64 indices counted from 0, and float32 values.

    A byte-order mark and CRLF line ends are accepted.
    """
    empty = True
    for line, text in _chunks(source, path, columns):
        yield _checked(text, path, columns, line)
        empty = False
    if empty and not may_be_empty:
        raise FileFormatError(path, f"is empty; each line must hold {columns}", 1)


def _chunks(source: Readable, path: str | os.PathLike[str], columns: Columns) -> Iterator[tuple[int, bytes]]:
    """Cut text into chunks of whole lines, each with the number of its first one."""
    line, rest = 1, b""
    while block := source.read(_CHUNK):
        cut = block.rfind(b"\n") + 1
        text, rest = (rest + block[:cut], block[cut:]) if cut else (b"", rest + block)
        if line == 1:
            text = text.removeprefix(_BOM)
        if text:
            yield line, text
            line += text.count(b"\n")
        if len(rest) > LONGEST_LINE:
            raise FileFormatError(path, f"the line is longer than {LONGEST_LINE:,} bytes; it must hold {columns}", line)
    if rest.strip():
        raise FileFormatError(path, "the last line has no line end; if it is not truncated, add one", line)


def _checked(text: bytes, path: str | os.PathLike[str], columns: Columns, line: int) -> list[Array]:
    """Return the arrays of a chunk whose first line has this number."""
    arrays = None if b"x" in text or b"X" in text else _parsed(text, path, columns, line)
    if arrays is None or arrays[0].size != text.count(b"\n"):
        # pyarrow takes hexadecimal indices, and ends lines at carriage returns as well.
        stray = _STRAY.search(text)
        at = line + text.count(b"\n", 0, stray.start() if stray else 0)
        raise FileFormatError(path, f"a stray 'x' or carriage return; a line must hold {columns}", at)
    for name, axis, limit in zip(columns.names, arrays, columns.limits, strict=False):
        most = INDEX32_LIMIT if limit is None else limit
        if axis.size and not 1 <= axis.min() <= axis.max() <= most:
            row = int(np.argmax((axis < 1) | (axis > most)))
            message = f"{name} {axis[row]} is outside 1..{most:,}; indices count from 1"
            raise FileFormatError(path, message, line + row)
    found = [axis - 1 for axis in arrays[: len(columns.names)]]
    if columns.value is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            values = arrays[-1].astype(np.float32)
        finite = np.isfinite(values)
        if not finite.all():
            row = int(np.argmin(finite))
            raise FileFormatError(path, f"{columns.value} {arrays[-1][row]} is not finite in float32", line + row)
        found.append(values)
    return found


def _parsed(text: bytes, path: str | os.PathLike[str], columns: Columns, line: int) -> list[Array]:
    import pyarrow as pa
    from pyarrow import csv

    types = dict.fromkeys(columns.names, pa.int64())
    if columns.value is not None:
        types[columns.value] = pa.float64()

    def read(use_threads: bool) -> list[Array]:
        table = csv.read_csv(
            pa.BufferReader(text),
            csv.ReadOptions(column_names=columns.all_names, block_size=_BLOCK, use_threads=use_threads),
            csv.ParseOptions(delimiter="\t", quote_char=False, double_quote=False, ignore_empty_lines=False),
            csv.ConvertOptions(column_types=types, null_values=[], check_utf8=False),
        )
        return [column.to_numpy() for column in table.columns]

    pa.enable_signal_handlers(False)  # else pyarrow's take the place of the caller's while text is parsed
    try:
        return read(len(text) > _BLOCK)
    except ValueError:  # pyarrow's errors are such
        try:
            return read(False)
        except ValueError as error:
            raise FileFormatError(path, *_located(str(error), columns, line)) from error


def _located(message: str, columns: Columns, line: int) -> tuple[str, int]:
    """Return pyarrow's message with the column's name, and the number of the faulty line."""
    found = _FAULT.match(message)
    if found is None:
        return f"cannot be parsed: {message[:_SHOWN]}; a line must hold {columns}", line
    column, row, reason = found.groups()
    name = "" if column is None else f"{columns.all_names[int(column)]}: "
    return f"{name}{reason[:_SHOWN]}; a line must hold {columns}", line + int(row) - 1
