"""COO: one (row, column, value) triple per entry, in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenn.errors import MatrixError
from sparsenn.formats.arrays import (
    Array,
    as_floats,
    as_indices,
    check_arrays,
    check_shape,
    check_values,
    collapse_iso,
    convert_scipy,
    index_dtype,
    real_numbers,
)
from sparsenn.formats.rebuilt import Rebuilt
from sparsenn.printable import one_line


@dataclass(frozen=True, eq=False)
class COO(Rebuilt):
    """Coordinate format. Arrays in host memory are read-only through the matrix.

    Parameters
    ----------
    shape : (int, int)
        Rows and columns.
    rows : array, shape (nnz,)
        Row of each entry, uint16 or int32 as `index_dtype(shape[0])` says.
    columns : array, shape (nnz,)
        Column of each entry, uint16 or int32 as `index_dtype(shape[1])` says.
    values : array, shape (nnz,) or (1,), float32 or float64
        Value of each entry; or one, if all entries share it (iso-valued).

    Raises
    ------
    MatrixError
        The parts are no arrays, or their lengths or types do not fit together. `validate` checks the entries
        themselves.
    """

    shape: tuple[int, int]
    rows: Array
    columns: Array
    values: Array

    __repr__ = one_line

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", check_shape(self.shape))
        check_arrays(self, "rows", "columns", "values")
        check_values(self.values, self.nnz)
        if self.rows.ndim != 1 or self.rows.shape != self.columns.shape:
            raise MatrixError(f"{self.rows.shape} rows but {self.columns.shape} columns; each entry needs one of each")
        for name, indices, length in (
            ("row", self.rows, self.shape[0]),
            ("column", self.columns, self.shape[1]),
        ):
            if indices.dtype != index_dtype(length):
                raise MatrixError(f"{name} indices are {indices.dtype}; {length:,} {name}s take {index_dtype(length)}")

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return int(self.rows.size)

    @property
    def iso(self) -> bool:
        """Whether one stored value serves all entries."""
        return self.values.size == 1

    def validate(self) -> COO:
        """Check every entry.

        Returns
        -------
        COO
            The matrix itself.

        Raises
        ------
        MatrixError
            An index is out of range, a value is NaN or infinite, or a (row, column) pair occurs twice.
        """
        for name, indices, length in (
            ("row", self.rows, self.shape[0]),
            ("column", self.columns, self.shape[1]),
        ):
            if self.nnz and not 0 <= int(indices.min()) <= int(indices.max()) < length:
                at = int(np.flatnonzero((indices.astype(np.int64) < 0) | (indices >= length))[0])
                raise MatrixError(f"entry {at}: {name} {int(indices[at])} is outside 0..{length - 1}")
        finite = np.isfinite(self.values)
        if not finite.all():
            at = int(np.flatnonzero(~finite)[0])
            raise MatrixError(f"entry {at}: the value {self.values[at]} is not finite")
        keys = self.rows.astype(np.int64) * self.shape[1] + self.columns
        order = np.argsort(keys, kind="stable")
        twice = np.flatnonzero(keys[order][1:] == keys[order][:-1])
        if twice.size:
            at = int(order[twice[0] + 1])
            raise MatrixError(f"entry {at}: ({int(self.rows[at])}, {int(self.columns[at])}) occurs twice")
        return self

    @classmethod
    def from_arrays(cls, shape: tuple[int, int], rows: Array, columns: Array, values: Array) -> COO:
        """Build a matrix from index arrays of any integer type; equal values are stored once.

        Parameters
        ----------
        shape : (int, int)
            Rows and columns.
        rows : array of integers, shape (nnz,)
            Row of each entry.
        columns : array of integers, shape (nnz,)
            Column of each entry.
        values : array of real numbers, shape (nnz,) or (1,)
            Value of each entry, or one for all.

        Returns
        -------
        COO
            The matrix; `validate` finds positions that occur twice.

        Raises
        ------
        MatrixError
            An index is outside `shape`, lengths disagree, or they are no real numbers.
        """
        shape = check_shape(shape)
        return cls(
            shape,
            as_indices("rows", real_numbers(rows, "rows hold", MatrixError), shape[0]),
            as_indices("columns", real_numbers(columns, "columns hold", MatrixError), shape[1]),
            collapse_iso(np.ascontiguousarray(real_numbers(values, "values hold", MatrixError))),
        )

    @classmethod
    def from_scipy(cls, matrix: Any, dtype: type[np.floating[Any]] = np.float32) -> COO:
        """Build from any SciPy sparse matrix or array; values are converted to `dtype`.

        Parameters
        ----------
        matrix : scipy.sparse matrix or array
            Any format. CuPy's are copied to the host.
        dtype : type, default float32
            Float32 or float64, to which values are converted.

        Returns
        -------
        COO
            The same entries, those at one position not summed: `validate` refuses them.
        """
        triples = convert_scipy(matrix, "tocoo", copy=True)
        return cls.from_arrays(triples.shape, triples.row, triples.col, as_floats(triples.data, dtype))

    def to_scipy(self) -> Any:
        """Return the matrix in SciPy's form.

        Returns
        -------
        scipy.sparse.coo_array
            With int32 indices and one value per entry.
        """
        from scipy.sparse import coo_array

        values = np.broadcast_to(self.values, self.nnz).copy()
        return coo_array((values, (self.rows.astype(np.int32), self.columns.astype(np.int32))), shape=self.shape)
