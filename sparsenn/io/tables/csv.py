"""Tables as text: one row per line, fields separated by commas, semicolons or tabs, read in blocks of whole lines."""

from __future__ import annotations

import csv as csv_lines
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsenn.errors import FileFormatError
from sparsenn.formats import Array, Table, Texts
from sparsenn.formats.table import column_numbers, is_number
from sparsenn.io.bounded import Source
from sparsenn.io.tables.columns import BLOCK_BYTES, Block, number_column, text_column

if TYPE_CHECKING:
    import pyarrow as pa

MISSING = ("", "na", "n/a", "nan", "null", "?")
"""Fields, in capitals or not, that stand for a missing number or text."""

_SPELLINGS = [
    blank + text for blank in ("", " ") for text in (*MISSING, "NA", "N/A", "NaN", "NAN", "Null", "NULL", "Nan", "Na")
]
"""The usual spellings of these; others make the block's columns be read as texts first."""

_LONGEST_LINE = 1 << 28  # bytes

_HEAD_BYTES = 1 << 16
"""Bytes that are read at a time up to the end of the first line."""

_CHUNKS = 8
"""Chunks of a block that the threads of pyarrow parse."""

_LEAST_CHUNK = 1 << 20  # bytes

_TAIL = 1024
"""Bytes at the end of a text that are looked at first, as few texts end in as many blanks."""

_BLANK = b" \r\n"

_FAULTY_ROW = re.compile(r"Row #([0-9]+): Expected ([0-9]+) columns, got ([0-9]+)")
"""The message of pyarrow about a row."""

_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")

_BOM = b"\xef\xbb\xbf"


class _Lines(NamedTuple):
    """Whole lines: the beginning of a text, up to `end`; how many they are, and the number of the first one."""

    text: bytes
    end: int
    rows: int
    first: int


class TextTable(AbstractContextManager["TextTable"]):
    """A table as text, open for reading; through gzip if the name ends in `.gz`.

    separators : the characters that may separate columns; the first of them that occurs in the first line does.
    known : names of columns. The first line is a header if it holds one of them that is no number, or no number at all.
    block_bytes : bytes that are parsed at a time.

    Attributes
    ----------
    names : of the columns, their numbers, counted from 1, where there is no header.
    named : whether there is a header.
    size : bytes of the file.
    texts : places of the columns, counted from 0, whose field in the first row is a text.
    decimal_commas : those of them whose text is a number with a decimal comma, such as 0,5.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        separators: str,
        known: Collection[str] = (),
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.path, self._block_bytes = os.fspath(path), block_bytes
        self._source = Source(path)
        self.size = self._source.size
        try:
            text = self._begin().removeprefix(_BOM)
            if text.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise FileFormatError(path, "is UTF-16; save it as UTF-8")
            if not text.strip():
                raise FileFormatError(path, "holds no rows", 1)
        except BaseException:
            self._source.__exit__(None, None, None)
            raise
        first, _, rest = text.partition(b"\n")
        self._separator = next((each for each in separators if each.encode() in first), separators[0])
        fields = self._fields(first)
        is_row = any(map(is_number, fields)) or all(field.lower() in MISSING for field in fields)
        self.named = not is_row or any(name in known and not is_number(name) for name in fields)
        self.names = fields if self.named else column_numbers(len(fields))
        self._text, self._line = (rest, 2) if self.named else (text, 1)
        row = self._fields(self._text.partition(b"\n")[0])
        self.texts = {
            place for place, field in enumerate(row) if not _is_numeric(field) and field.lower() not in MISSING
        }
        self.decimal_commas = {place for place in self.texts if _DECIMAL_COMMA.fullmatch(row[place])}

    def __exit__(self, *error: Any) -> None:
        self._source.__exit__(*error)

    def blocks(self, places: Sequence[int], texts: Collection[int] = (), copied: int | None = None) -> Iterator[Block]:
        """Yield the rows, some at a time.

        A column is numbers where every field of the block is one or is missing, and else texts. Blanks around a field
        do not belong to it, and quotation marks do not make a text of a number.

        places : the columns, counted from 0, that the blocks' tables have.
        texts : the columns that are texts in any case.
        copied : the place of a further column, whose fields are copied as they are.
        """
        known = set(texts)
        for lines in self._lines():
            found = self._parsed(lines, places, known, copied) or self._parsed_slowly(lines, places, known, copied)
            columns, fields = found
            if len(self.names) > 1 and columns and _has_missing(columns[0]):
                self._refuse_empty_lines(lines)
            known.update(place for place, column in zip(places, columns, strict=True) if isinstance(column, Texts))
            names = tuple(self.names[place] for place in places)
            table = Table(self.path, names, tuple(columns), lines.rows, self.named, lines.first)
            yield Block(table.checked(), fields, self._source.consumed)

    def _begin(self) -> bytes:
        text, size = b"", min(self._block_bytes, _HEAD_BYTES)
        while b"\n" not in text:
            more = self._source.read(size)
            text += more
            if len(more) < size:
                break
            self._check_length(text, 1)
        return text

    def _check_length(self, text: bytes, line: int) -> None:
        if len(text) > _LONGEST_LINE:
            raise FileFormatError(self.path, f"is longer than {_LONGEST_LINE:,} bytes", line)

    def _lines(self) -> Iterator[_Lines]:
        """Yield all rows, some at a time, without the empty lines at the end of the file."""
        text, line, is_end = self._text, self._line, False
        while not is_end:
            more = self._source.read(self._block_bytes)
            is_end, text = len(more) < self._block_bytes, text + more
            if is_end and not text.endswith(b"\n"):
                text += b"\n"
            filled = _filled(text, text.rfind(b"\n") + 1)
            if filled:
                end = text.index(b"\n", filled) + 1
                lines = _Lines(text, end, text.count(b"\n", 0, end), line)
                text, line = text[end:], line + lines.rows
                yield lines
            self._check_length(text, line)
        if line == self._line:
            raise FileFormatError(self.path, "holds no rows", line)

    def _fields(self, line: bytes) -> tuple[str, ...]:
        """Return the fields of one line, without the quotation marks and blanks around them."""
        text = line.decode("utf-8", "replace").strip("\r\0")
        try:
            return tuple(field.strip() for field in next(csv_lines.reader([text], delimiter=self._separator), ()))
        except csv_lines.Error:  # the field is longer than that module allows
            return tuple(field.strip().strip('"') for field in text.split(self._separator))

    def _parsed(
        self, lines: _Lines, places: Sequence[int], texts: set[int], copied: int | None
    ) -> tuple[list[Array | Texts], Any] | None:
        """Parse lines on all threads; None unless all fields are of the kinds of their columns."""
        import pyarrow as pa

        kinds = {place: pa.string() if place in texts else pa.float64() for place in places}
        try:
            table = self._read(lines, kinds, copied)
        except pa.ArrowInvalid:
            return None
        if table.num_rows != lines.rows:
            return None
        columns = [self._column(table[str(place)], place in texts) for place in places]
        return columns, None if copied is None else table[str(copied)]

    def _parsed_slowly(
        self, lines: _Lines, places: Sequence[int], texts: set[int], copied: int | None
    ) -> tuple[list[Array | Texts], Any]:
        """Parse lines as texts, of which those of a column may all be numbers."""
        import pyarrow as pa
        from pyarrow import compute

        try:
            table = self._read(lines, dict.fromkeys(places, pa.string()), copied, use_threads=False)
        except pa.ArrowInvalid as error:
            raise self._fault(lines, str(error)) from error
        if table.num_rows != lines.rows:
            raise self._split_row(lines)
        columns = []
        for place in places:
            fields, is_text = table[str(place)], place in texts
            if not is_text:
                stripped = compute.utf8_trim_whitespace(fields)
                is_missing = compute.is_in(compute.utf8_lower(stripped), value_set=pa.array(MISSING))
                try:
                    fields = compute.if_else(is_missing, pa.scalar(None, pa.string()), stripped).cast(pa.float64())
                except pa.ArrowInvalid:
                    is_text = True
            columns.append(self._column(fields, is_text))
        return columns, None if copied is None else table[str(copied)]

    def _column(self, fields: pa.ChunkedArray, is_text: bool) -> Array | Texts:
        return text_column(fields, MISSING) if is_text else number_column(fields)

    def _read(
        self,
        lines: _Lines,
        kinds: dict[int, pa.DataType],
        copied: int | None,
        use_threads: bool = True,
    ) -> pa.Table:
        """Parse whole lines; without threads, a message of too many or too few fields has the number of the row."""
        import pyarrow as pa
        from pyarrow import csv

        pa.enable_signal_handlers(False)  # else pyarrow's take the place of the caller's while text is parsed
        types = {str(place): kind for place, kind in kinds.items()}
        if copied is not None:
            types[str(copied)] = pa.string()
        block = max(_LEAST_CHUNK, lines.end // _CHUNKS) if use_threads else lines.end + 1
        return csv.read_csv(
            pa.BufferReader(pa.py_buffer(lines.text).slice(0, lines.end)),
            csv.ReadOptions(
                column_names=[str(place) for place in range(len(self.names))],
                use_threads=use_threads,
                block_size=block,
            ),
            csv.ParseOptions(delimiter=self._separator, ignore_empty_lines=False),
            csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=_SPELLINGS,
                quoted_strings_can_be_null=True,
            ),
        )

    def _refuse_empty_lines(self, lines: _Lines) -> None:
        """Refuse lines that pyarrow takes for rows in which everything is missing."""
        text, end, _, first = lines
        begins_empty = text.startswith((b"\n", b"\r\n"))
        places = [place + 1 for mark in (b"\n\n", b"\n\r\n") if (place := text.find(mark, 0, end)) >= 0]
        if begins_empty or places:
            line = first if begins_empty else first + text.count(b"\n", 0, min(places))
            raise FileFormatError(self.path, "is empty", line)

    def _fault(self, lines: _Lines, message: str) -> FileFormatError:
        found = _FAULTY_ROW.search(message)
        if found is not None:
            row, expected, columns = map(int, found.groups())
            if row > lines.rows:
                return self._split_row(lines)
            is_empty = not lines.text.split(b"\n", row)[row - 1].strip()
            reason = "is empty" if is_empty else f"{columns:,} columns instead of {expected:,}"
            return FileFormatError(self.path, reason, lines.first + row - 1)
        try:
            lines.text[: lines.end].decode()
        except UnicodeDecodeError as fault:
            line = lines.first + lines.text.count(b"\n", 0, fault.start)
            return FileFormatError(self.path, "is not UTF-8 text; save it as such", line)
        return FileFormatError(self.path, f"cannot be parsed ({' '.join(message.split())[:200]})", lines.first)

    def _split_row(self, lines: _Lines) -> FileFormatError:
        """Return the error of lines that pyarrow counts otherwise."""
        rows = enumerate(lines.text[: lines.end].split(b"\n"), start=lines.first)
        split = (line for line, row in rows if row.count(b'"') % 2 or b"\r" in row.removesuffix(b"\r"))
        return FileFormatError(self.path, "has a line end within a row; write each row on one line", next(split, None))


def _is_numeric(field: str) -> bool:
    """Return whether a field is a number, which may be too large for float32."""
    try:
        float(field)
    except ValueError:
        return False
    return True


def _has_missing(column: Array | Texts) -> bool:
    return bool((column.codes < 0).any() if isinstance(column, Texts) else np.isnan(column).any())


def _filled(text: bytes, end: int) -> int:
    """Return where the blanks and empty lines begin that a text has before `end`."""
    tail = len(text[max(0, end - _TAIL) : end].rstrip(_BLANK))
    return end - min(end, _TAIL) + tail if tail else len(text[:end].rstrip(_BLANK))
