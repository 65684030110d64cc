"""Matrix Market files (`.mtx`), the exchange format of sparse matrices: coordinates; and, as rows, arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from sparsenn.errors import FileFormatError
from sparsenn.formats import COO, CSC, CSR, INDEX32_LIMIT, Array, coo_to_csr
from sparsenn.io.bounded import Source, check_length
from sparsenn.io.challenge.text import LONGEST_LINE, Columns, line_of, parse_lines
from sparsenn.io.challenge.triples import compress, gather
from sparsenn.io.tables.csv import parse_numbers
from sparsenn.runtime.memory import check_memory
from sparsenn.runtime.storage import open_to_write, replacing

__all__ = ["read_matrix_market", "read_matrix_market_rows", "write_matrix_market"]

_MOST = 1 << 62

_FIELDS = ("real", "double", "integer", "pattern")
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")

_HEADER_LINES = 10_000
"""Comment lines that a header may have."""


@dataclass(frozen=True)
class _Header:
    """What the lines before the entries say; `lines` counts them."""

    shape: tuple[int, int]
    entries: int
    field: str
    symmetry: str
    lines: int

    @property
    def columns(self) -> Columns:
        value = None if self.field == "pattern" else "value"
        return Columns(("row", "column"), self.shape, value, " ", whole=self.field == "integer")


class _Text:
    """A source that gives lines first, then blocks."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._ahead = b""

    def line(self) -> bytes:
        """Return the next line with its end, or as much of it as a line may be long."""
        if b"\n" not in self._ahead:
            self._ahead += self._source.read(LONGEST_LINE)
        line, end, self._ahead = self._ahead.partition(b"\n")
        return line + end

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes; fewer only at the end."""
        ahead, self._ahead = self._ahead[:size], self._ahead[size:]
        return ahead + self._source.read(size - len(ahead)) if size > len(ahead) else ahead


def read_matrix_market(path: str | os.PathLike[str]) -> COO:
    """Read a sparse matrix into float32, through gzip if the name ends in `.gz`.

    The fields real, integer and pattern (every value 1) are known, and the symmetries general, symmetric and
    skew-symmetric: of the last two, the half above the diagonal is added.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    COO, float32
        The matrix.

    Raises
    ------
    FileFormatError
        The file is not Matrix Market, is dense or complex, is truncated or has too many lines, a line is not what the
        header says, an index is out of range, a value is not finite, or a position occurs twice. The message names
        the line.
    InputError, ResourceError
        The file is not there or cannot be read.
    """
    with _opened(path) as (text, header):
        chunks = parse_lines(text, path, header.columns, header.lines + 1, may_be_empty=not header.entries)
        stored = gather(_counted(chunks, path, header), header.shape)
    check_length(path, "rows or columns", max(header.shape), stored.nnz)
    _refuse_twice(path, header, stored)
    return stored if header.symmetry == "general" else _mirrored(path, header, stored)


def read_matrix_market_rows(path: str | os.PathLike[str]) -> CSR | Array:
    """Read a matrix as rows in float32: CSR where the file holds coordinates, an array where it holds one.

    Raises
    ------
    FileFormatError
        As `read_matrix_market`; or an array is symmetric, or does not have the size that it declares.
    InputError, ResourceError
        The file is not there, cannot be read, or takes more than memory.
    """
    with Source(path) as source:
        banner = _Text(source).line().lower().split()
    return _read_array(path) if banner[2:3] == [b"array"] else coo_to_csr(read_matrix_market(path))


def _read_array(path: str | os.PathLike[str]) -> Array:
    """Read numbers that are stored column by column, a line each."""
    with Source(path) as source:
        banner, *lines = source.read(_MOST).rstrip().split(b"\n", _HEADER_LINES)
    words = banner.lower().split()
    if len(words) != 5 or words[3] not in (b"real", b"double", b"integer") or words[4] != b"general":
        kind = b" ".join(words[2:]).decode("utf-8", "replace")
        raise FileFormatError(path, f"a matrix of {kind!r} cannot be read; of arrays, only real general can", 1)
    comments = next((number for number, line in enumerate(lines) if line.strip() and line[:1] != b"%"), len(lines))
    sizes = lines[comments].split() if comments < len(lines) else []
    number = comments + 2
    if len(sizes) != 2 or not all(size.isdigit() and len(size) < 11 for size in sizes):
        raise FileFormatError(path, "this line must hold two whole numbers: rows and columns", number)
    rows, columns = map(int, sizes)
    check_memory(4 * rows * columns, f"{os.fspath(path)}: an array of shape {rows:,} x {columns:,}")
    body = b"\n".join(lines[comments + 1 :])
    values = parse_numbers(path, body, 1, ",", number + 1) if body else np.empty(0, np.float32)
    if values.size != rows * columns:
        raise FileFormatError(path, f"declares {rows:,} x {columns:,} numbers, but holds {values.size:,}", number)
    return np.ascontiguousarray(values.reshape(columns, rows).T)


def write_matrix_market(path: str | os.PathLike[str], matrix: COO | CSR | CSC) -> None:
    """Write a sparse matrix as `coordinate real general`, whole or not at all; through gzip for a name in `.gz`.

    Parameters
    ----------
    path : str or path-like
        The file; one that is there is replaced.
    matrix : COO, CSR or CSC
        The matrix.

    Raises
    ------
    ResourceError
        The file cannot be written.
    """
    from scipy.io import mmwrite

    with replacing(path) as temporary, open_to_write(temporary, path) as file:
        mmwrite(file, matrix.to_scipy(), field="real", symmetry="general")


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[_Text, _Header]]:
    """Open a file and read as far as its first entry."""
    with Source(path) as source:
        text = _Text(source)
        yield text, _read_header(text, path)


def _read_header(text: _Text, path: str | os.PathLike[str]) -> _Header:
    banner = text.line().removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    words = banner.lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise FileFormatError(path, "not Matrix Market: the first line must be %%MatrixMarket matrix …", 1)
    for word, known in zip(words[2:], (("coordinate",), _FIELDS, _SYMMETRIES), strict=True):
        if word not in known:
            raise FileFormatError(path, f"a {word!r} matrix cannot be read; only {', '.join(known)} can", 1)
    for number in range(2, _HEADER_LINES):
        line = text.line()
        if line.strip() and not line.startswith(b"%"):
            shape, entries = _sizes(line.split(), path, number)
            return _Header(shape, entries, words[3], words[4], number)
        if not line.endswith(b"\n"):
            raise FileFormatError(path, "the line of rows, columns and entries is missing: truncated?", number)
    raise FileFormatError(path, f"no line of rows, columns and entries within {_HEADER_LINES:,} lines", _HEADER_LINES)


def _sizes(words: list[bytes], path: str | os.PathLike[str], line: int) -> tuple[tuple[int, int], int]:
    if len(words) != 3 or not all(word.isdigit() and len(word) < 20 for word in words):
        raise FileFormatError(path, "this line must hold three whole numbers: rows, columns and entries", line)
    rows, columns, entries = map(int, words)
    if max(rows, columns) > INDEX32_LIMIT:
        raise FileFormatError(path, f"{rows:,} x {columns:,} is beyond {INDEX32_LIMIT:,} rows or columns", line)
    if entries > rows * columns:
        raise FileFormatError(path, f"declares {entries:,} entries; {rows:,} x {columns:,} has fewer positions", line)
    return (rows, columns), entries


def _counted(chunks: Iterator[list[Array]], path: str | os.PathLike[str], header: _Header) -> Iterator[list[Array]]:
    """Pass chunks on, with values of 1 where the field has none; refuse more or fewer entries than declared."""
    found = 0
    for chunk in chunks:
        found += chunk[0].size
        if found > header.entries:
            break
        yield chunk if header.field != "pattern" else [*chunk, np.ones(chunk[0].size, np.float32)]
    if found != header.entries:
        count = "more" if found > header.entries else f"only {found:,}"
        raise FileFormatError(path, f"declares {header.entries:,} entries, but holds {count}", header.lines)


def _refuse_twice(path: str | os.PathLike[str], header: _Header, stored: COO) -> None:
    @contextmanager
    def body() -> Iterator[_Text]:
        with _opened(path) as (text, _):
            yield text

    compress(coo_to_csr, stored, path, header.columns, body, header.lines + 1)


def _mirrored(path: str | os.PathLike[str], header: _Header, stored: COO) -> COO:
    """Add the half of a symmetric matrix that is not stored."""
    rows, columns = stored.rows.astype(np.int64), stored.columns.astype(np.int64)
    skew = header.symmetry == "skew-symmetric"
    wrong = np.flatnonzero(rows < columns + skew)
    if wrong.size or header.shape[0] != header.shape[1]:
        if not wrong.size:
            raise FileFormatError(path, f"a {header.symmetry} matrix is square, not {header.shape}", header.lines)
        position = (int(rows[wrong[0]]), int(columns[wrong[0]]))
        with _opened(path) as (text, _):
            line = line_of(text, path, header.columns, position, 1, header.lines + 1)
        place = "below" if skew else "on or below"
        raise FileFormatError(path, f"a {header.symmetry} matrix stores only what is {place} the diagonal", line)
    values = np.broadcast_to(stored.values, stored.nnz)
    off = rows != columns
    return COO.from_arrays(
        header.shape,
        np.concatenate([rows, columns[off]]),
        np.concatenate([columns, rows[off]]),
        np.concatenate([values, -values[off] if skew else values[off]]),
    )
