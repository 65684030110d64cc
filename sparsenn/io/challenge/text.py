"""Lines of numbers in columns: the strict parser behind every text format.

Text is parsed in chunks of whole lines by `pyarrow.csv` with explicit types. Only when a chunk is refused is it halved
until a few lines are left, which are looked at one by one, to say which one is at fault and why.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from sparsenn.errors import FileFormatError
from sparsenn.formats import INDEX32_LIMIT, Array
from sparsenn.runtime.workers import apart

__all__ = ["LONGEST_LINE", "Columns", "Readable", "faulty_lines", "line_ends", "line_of", "parse_lines"]

LONGEST_LINE = 1024
"""Bytes; three numbers take well under a hundred."""

_CHUNK = 1 << 24
"""Bytes of text parsed at a time: enough for all threads, small beside the matrix that the text describes."""

_BLOCK = 1 << 20
"""Bytes of text per thread at a time."""

_FEW_LINES = 64
"""Lines that are looked at one by one."""

_BOM = b"\xef\xbb\xbf"
_WHOLE = re.compile(r"[ \t]*-?[0-9]+[ \t]*")
_NUMBER = re.compile(r"[ \t]*-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*")
_NOT_FINITE = re.compile(r"\s*[-+]?(nan|inf|infinity)\s*", re.IGNORECASE)


class Readable(Protocol):
    """What text is read from."""

    def read(self, size: int, /) -> bytes:
        """Return the next `size` bytes; fewer only at the end."""
        ...


@dataclass(frozen=True)
class Columns:
    """What each line of a file must hold.

    Parameters
    ----------
    names : name of each index column, for messages; indices count from 1.
    limits : largest index allowed in each; None where only int32 bounds it.
    value : name of the number that follows the indices; None if nothing does.
    separator : what stands between columns: a tab, or a blank for any run of blanks and tabs.
    whole : whether the value must be a whole number.
    """

    names: tuple[str, ...]
    limits: tuple[int | None, ...]
    value: str | None = None
    separator: str = "\t"
    whole: bool = False

    @property
    def count(self) -> int:
        """Numbers on a line."""
        return len(self.names) + (self.value is not None)

    def __str__(self) -> str:
        names = [*self.names, *([self.value] if self.value else [])]
        between = "tabs" if self.separator == "\t" else "blanks"
        return names[0] if len(names) == 1 else f"{', '.join(names)}, separated by {between}"


def parse_lines(
    source: Readable, path: str | os.PathLike[str], columns: Columns, first_line: int = 1, may_be_empty: bool = False
) -> Iterator[list[Array]]:
    """Parse text into one list of arrays per chunk: int64 indices counted from 0, and float32 values.

    A byte-order mark and CRLF line ends are accepted. With blanks as separator, empty lines are passed over.

    Parameters
    ----------
    source : where text is read from. path, first_line : its name and its first line's number, for messages.
    may_be_empty : whether a text of no lines at all is legal.

    Raises
    ------
    FileFormatError
        A line is not what `columns` says, a number is not finite in float32, an index is out of range, the last line
        does not end, or there is none. The message names the line.
    """
    empty = True
    for line, text in _chunks(source, path, columns, first_line):
        yield _checked(text, path, columns, line)
        empty = False
    if empty and not may_be_empty:
        raise FileFormatError(path, f"is empty; each line must hold {columns}", first_line)


def line_of(
    source: Readable,
    path: str | os.PathLike[str],
    columns: Columns,
    indices: tuple[int, ...],
    occurrence: int,
    first_line: int = 1,
) -> int:
    """Return the number of the line where these indices (counted from 0) occur for the n-th time.

    Raises
    ------
    FileFormatError
        The text is faulty up to there, or they do not occur so often.
    """
    for line, text in _chunks(source, path, columns, first_line):
        found = _checked(text, path, columns, line)
        same = np.logical_and.reduce([axis == index for axis, index in zip(found, indices, strict=False)])
        hits = np.flatnonzero(same)
        if hits.size >= occurrence:
            lines = (number for number, raw in enumerate(text.split(b"\n"), start=line) if raw.strip())
            return next(islice(lines, int(hits[occurrence - 1]), None))
        occurrence -= hits.size
    raise FileFormatError(path, "changed while it was read; read it again")


def line_ends(text: bytes) -> Array:
    """Return where the lines of a text end, the first one's beginning before them; a last line needs no line end."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
    last = [] if text.endswith(b"\n") else [len(text)]
    return np.concatenate([[0], ends, last]).astype(np.int64)


def faulty_lines(sound: Callable[[int, int], bool], lines: int) -> tuple[int, int]:
    """Return a short range of lines, counted from 0, that holds the first faulty one.

    Half of the lines are looked at, then half of those that are left, and so on: no longer than parsing all takes.

    Parameters
    ----------
    sound : whether the lines from one number to below another are all as they should be.
    lines : how many there are, one of them faulty.
    """
    first, last = 0, lines
    while last - first > _FEW_LINES:
        middle = (first + last) // 2
        first, last = (middle, last) if sound(first, middle) else (first, middle)
    return first, last


def _chunks(
    source: Readable, path: str | os.PathLike[str], columns: Columns, first_line: int
) -> Iterator[tuple[int, bytes]]:
    """Cut text into chunks of whole lines, each with the number of its first one."""
    line, rest = first_line, b""
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
        raise FileFormatError(
            path, f"the last line {_quoted(rest)} has no line end; if it is not truncated, add one", line
        )


def _checked(text: bytes, path: str | os.PathLike[str], columns: Columns, line: int) -> list[Array]:
    """Return the chunk's arrays, or raise the error that names its first faulty line."""
    parse = _parse_tabbed if columns.separator == "\t" else _parse_blanks
    try:
        arrays = parse(text, columns)
    except ValueError as error:  # pyarrow's faults are such
        reason = str(error)
    else:
        if _in_range(arrays, columns):
            return arrays
        reason = "a number is out of range"
    ends = line_ends(text)

    def sound(first: int, last: int) -> bool:
        try:
            return _in_range(parse(text[ends[first] : ends[last]], columns), columns)
        except ValueError:
            return False

    first, last = faulty_lines(sound, len(ends) - 1)
    for number, raw in enumerate(text[ends[first] : ends[last]].split(b"\n")[:-1], start=line + first):
        fault = _fault(raw.removesuffix(b"\r"), columns)
        if fault:
            raise FileFormatError(path, fault, number)
    raise FileFormatError(path, f"cannot be parsed: {reason}", line + first)


def _parse_tabbed(text: bytes, columns: Columns) -> list[Array]:
    arrays = _parse(text, columns)
    if arrays[0].size != text.count(b"\n"):  # a carriage return within a line counts as a line end for pyarrow
        raise ValueError("stray carriage return")
    return arrays


def _parse_blanks(text: bytes, columns: Columns) -> list[Array]:
    """Bring runs of blanks and tabs, and empty lines, into the one form that the fast parser takes."""
    text = text.replace(b"\r\n", b"\n").replace(b"\t", b" ")
    while b"  " in text:
        text = text.replace(b"  ", b" ")
    text = text.replace(b" \n", b"\n").replace(b"\n ", b"\n").removeprefix(b" ")
    while b"\n\n" in text:
        text = text.replace(b"\n\n", b"\n")
    text = text.removeprefix(b"\n")
    if text:
        return _parse(text, columns)
    values = [] if columns.value is None else [np.empty(0, np.float32)]
    return [np.empty(0, np.int64) for _ in columns.names] + values


def _parse(text: bytes, columns: Columns) -> list[Array]:
    """Parse text of a regular form; values become float32, infinite where they are beyond it."""
    import pyarrow as pa
    from pyarrow import csv

    if b"x" in text or b"X" in text:  # pyarrow would take hexadecimal indices
        raise ValueError("hexadecimal number")
    names = [str(number) for number in range(columns.count)]
    types = {name: pa.int64() for name in names}
    if columns.value is not None:
        types[names[-1]] = pa.float64()
    table = apart(
        lambda: csv.read_csv(
            pa.BufferReader(text),
            csv.ReadOptions(column_names=names, block_size=_BLOCK, use_threads=len(text) > _BLOCK),
            csv.ParseOptions(
                delimiter=columns.separator, quote_char=False, double_quote=False, ignore_empty_lines=False
            ),
            csv.ConvertOptions(column_types=types, null_values=[], check_utf8=False),
        )
    )
    arrays = [column.to_numpy() for column in table.columns]
    found = [axis - 1 for axis in arrays[: len(columns.names)]]
    if columns.value is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            found.append(arrays[-1].astype(np.float32))
    return found


def _in_range(arrays: list[Array], columns: Columns) -> bool:
    for axis, limit in zip(arrays, columns.limits, strict=False):
        if axis.size and not 0 <= axis.min() <= axis.max() < (INDEX32_LIMIT if limit is None else limit):
            return False
    if columns.value is None:
        return True
    values = arrays[-1]
    return bool(np.isfinite(values).all() and (not columns.whole or (values == np.trunc(values)).all()))


def _fault(raw: bytes, columns: Columns) -> str | None:
    """Say what is wrong with one line, without its line end; None if nothing is."""
    if len(raw) > LONGEST_LINE:
        return f"the line is longer than {LONGEST_LINE:,} bytes; it must hold {columns}"
    text = raw.decode("utf-8", "replace")
    if not text.strip():
        return None if columns.separator == " " else f"the line is empty; it must hold {columns}"
    fields = text.split() if columns.separator == " " else text.split(columns.separator)
    if len(fields) != columns.count:
        return f"{_quoted(raw)} has {len(fields)} of {columns.count} columns; a line must hold {columns}"
    faults = [_index_fault(*field) for field in zip(fields, columns.names, columns.limits, strict=False)]
    if columns.value is not None:
        faults.append(_value_fault(fields[-1], columns.value, columns.whole))
    return next(filter(None, faults), None)


def _index_fault(field: str, name: str, limit: int | None) -> str | None:
    most = INDEX32_LIMIT if limit is None else limit
    if _WHOLE.fullmatch(field):
        if 1 <= int(field) <= most:
            return None
        return f"{name} {field.strip()} is outside 1..{most:,}; indices count from 1"
    if _NUMBER.fullmatch(field):
        return f"{name} {field.strip()} is not a whole number"
    return f"{name} {_quoted(field)} is not a number"


def _value_fault(field: str, name: str, whole: bool) -> str | None:
    if _NUMBER.fullmatch(field):
        if whole and not float(field).is_integer():
            return f"{name} {field.strip()} is not a whole number"
        with np.errstate(over="ignore"):
            finite = np.isfinite(np.float32(float(field)))
        return None if finite else f"{name} {field.strip()} is beyond float32's {np.finfo(np.float32).max:.4g}"
    if _NOT_FINITE.fullmatch(field):
        return f"{name} {field.strip()} is not finite"
    return f"{name} {_quoted(field)} is not a number in plain decimal form"


def _quoted(text: str | bytes) -> str:
    """Show text from a file safely: on one line, and not too much of it."""
    shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return repr(shown if len(shown) <= 40 else shown[:40] + "…")
