"""Matrix Market files (`.mtx`), the exchange format of sparse matrices: coordinates; and, as rows, arrays."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sparsenn.errors import FileFormatError
from sparsenn.formats import COO, CSC, CSR, INDEX32_LIMIT, Array, coo_to_csr
from sparsenn.formats.arrays import as_floats
from sparsenn.io.bounded import Source, check_length
from sparsenn.io.challenge.triples import compress
from sparsenn.runtime.memory import check_memory
from sparsenn.runtime.storage import open_to_write, replacing

_FIELDS = ("real", "double", "pattern")  # integers are read as real ones

_ENTRY_BYTES = {"coordinate": 48, "array": 12}
"""Bytes per entry while a file is read: two indices and a float64 value of SciPy's and their copies; or two values."""

_INTEGER = re.compile(rb"\A(%%MatrixMarket[^\n]* )(?:unsigned-)?integer\b", re.IGNORECASE)
_FAULT = re.compile(r"Line ([0-9]+): (.*)", re.DOTALL)


class _Text:
    """Text for SciPy's parser (1.17), changed where that crashes, or takes half of a number for the whole.

    It crashes after a zero byte, and where the last line does not end; it takes the 1 of 1.5 for an integer.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._is_begun = self._is_ended = False

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes; fewer only at the end, where a line end is added."""
        text = self._source.read(size)
        if b"\0" in text:
            raise FileFormatError(self._source.path, "holds a zero byte, and so no text")
        if not self._is_begun:
            self._is_begun, text = True, _INTEGER.sub(rb"\1real", text)
        if len(text) < size and not self._is_ended:
            self._is_ended = True
            text += b"\n"
        return text


def read_matrix_market(path: str | os.PathLike[str]) -> COO:
    """Read a sparse matrix into float32, through gzip if the name ends in `.gz`.

    SciPy reads the file. The half of a symmetric or skew-symmetric matrix that is not stored is added.

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
        The file is not Matrix Market, holds an array or complex numbers, is truncated or too long, an index is out of
        range, a value is no number or not finite, or a position occurs twice.
    InputError, ResourceError
        The file is not there, cannot be read, or takes more than memory.
    """
    matrix = _read(path)
    if isinstance(matrix, np.ndarray):
        raise FileFormatError(path, "holds an array; only coordinates can be read here", 1)
    return _triples(path, matrix)


def read_matrix_market_rows(path: str | os.PathLike[str]) -> CSR | Array:
    """Read a matrix as rows in float32: CSR where the file holds coordinates, an array where it holds one."""
    matrix = _read(path)
    if not isinstance(matrix, np.ndarray):
        return coo_to_csr(_triples(path, matrix))
    return _finite(path, np.ascontiguousarray(as_floats(matrix, np.float32)))


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


def _read(path: str | os.PathLike[str]) -> Any:
    from scipy.io import mminfo, mmread

    with _faults_of_scipy(path):
        with Source(path) as source:
            rows, columns, entries, form, field, symmetry = mminfo(_Text(source))
        if field not in _FIELDS:
            raise FileFormatError(path, f"a matrix of {field} numbers cannot be read; only {', '.join(_FIELDS)} can", 1)
        if symmetry != "general" and rows != columns:
            raise FileFormatError(path, f"a {symmetry} matrix is square, not {rows:,} x {columns:,}")
        if max(rows, columns) > INDEX32_LIMIT:
            raise FileFormatError(path, f"{rows:,} x {columns:,} is beyond {INDEX32_LIMIT:,} rows or columns")
        if form == "array" and not entries:  # SciPy divides by the number of rows
            raise FileFormatError(path, f"is an array of {rows:,} x {columns:,}, which holds no numbers")
        if form == "coordinate":
            check_length(path, "rows or columns", max(rows, columns), entries)
        check_memory(_ENTRY_BYTES[form] * entries, f"{os.fspath(path)}: a matrix of {entries:,} entries")
        with Source(path) as source:
            return mmread(_Text(source))


@contextmanager
def _faults_of_scipy(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except (ValueError, OverflowError) as error:
        found = _FAULT.match(str(error))
        message = found[2] if found else str(error)
        raise FileFormatError(
            path, f"not Matrix Market, or damaged: {message}", int(found[1]) if found else None
        ) from error


def _triples(path: str | os.PathLike[str], matrix: Any) -> COO:
    """Return SciPy's matrix in float32; positions that occur twice, which SciPy would add up, are refused."""
    values = _finite(path, as_floats(matrix.data, np.float32))
    triples = COO.from_arrays(matrix.shape, matrix.row, matrix.col, values)
    compress(coo_to_csr, triples, path, ("row", "column"))
    return triples


def _finite(path: str | os.PathLike[str], values: Array) -> Array:
    if not np.isfinite(values).all():
        raise FileFormatError(path, "a value is not finite in float32")
    return values
