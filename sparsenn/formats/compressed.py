"""CSR and CSC: entries grouped by row (or column) behind an array of offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from sparsenn.errors import MatrixError
from sparsenn.formats.arrays import Array, as_floats, as_indices, check_shape, check_values, collapse_iso, index_dtype
from sparsenn.jit import compiled

__all__ = ["CSC", "CSR", "Compressed"]

Self = TypeVar("Self", bound="Compressed")


@dataclass(frozen=True, eq=False)
class Compressed:
    """What CSR and CSC have in common: groups of entries along the *major* axis, indexed along the *minor* one.

    Parameters
    ----------
    shape : (rows, columns).
    indptr : (groups + 1,) int64; group g holds the entries indptr[g] to indptr[g + 1].
    indices : (nnz,) position along the minor axis, strictly increasing within a group; uint16 up to a width of
        65,536, int32 beyond.
    values : (nnz,) float32 or float64; or (1,) if all entries share one value (iso-valued).

    Raises
    ------
    MatrixError
        The arrays' lengths or types do not fit together. `validate` checks the entries themselves.
    """

    major_axis: ClassVar[int]
    major_name: ClassVar[str]

    shape: tuple[int, int]
    indptr: Array
    indices: Array
    values: Array

    def __post_init__(self) -> None:
        check_shape(self.shape)
        if self.indptr.dtype != np.int64 or self.indptr.shape != (self.groups + 1,):
            raise MatrixError(
                f"indptr is {self.indptr.dtype} of shape {self.indptr.shape}; "
                f"{self.groups:,} {self.major_name}s take int64 of shape ({self.groups + 1},)"
            )
        if self.indices.ndim != 1 or self.indices.dtype != index_dtype(self.width):
            raise MatrixError(
                f"indices are {self.indices.dtype} of shape {self.indices.shape}; "
                f"a width of {self.width:,} takes a vector of {index_dtype(self.width)}"
            )
        check_values(self.values, self.nnz)

    @property
    def groups(self) -> int:
        """Length of the major axis: rows of a CSR, columns of a CSC matrix."""
        return self.shape[self.major_axis]

    @property
    def width(self) -> int:
        """Length of the minor axis: columns of a CSR, rows of a CSC matrix."""
        return self.shape[1 - self.major_axis]

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return int(self.indices.size)

    @property
    def iso(self) -> bool:
        """Whether one stored value serves all entries."""
        return self.values.size == 1

    @property
    def density(self) -> float:
        """Stored entries as a fraction of all positions; 0 for an empty shape."""
        positions = self.shape[0] * self.shape[1]
        return self.nnz / positions if positions else 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return int(self.indptr.nbytes + self.indices.nbytes + self.values.nbytes)

    def expanded_values(self) -> Array:
        """Return one value per entry, also for an iso-valued matrix."""
        return np.broadcast_to(self.values, (self.nnz,)).copy() if self.iso else self.values

    def validate(self: Self) -> Self:
        """Check every entry and return self.

        Raises
        ------
        MatrixError
            Offsets do not run from 0 to nnz without decreasing, an index is out of range, indices of a group do
            not increase strictly (unsorted, or a position given twice), or a value is NaN or infinite.
        """
        if self.indptr[0] != 0 or self.indptr[-1] != self.nnz or bool((np.diff(self.indptr) < 0).any()):
            raise MatrixError(f"indptr must rise from 0 to {self.nnz:,} and never fall")
        group, at = _first_fault(self.indptr, self.indices, self.width)
        if group >= 0:
            found = int(self.indices[at])
            where = f"{self.major_name} {group}, entry {at}"
            if not 0 <= found < self.width:
                raise MatrixError(f"{where}: index {found} is outside 0..{self.width - 1}")
            before = int(self.indices[at - 1])
            fault = (
                "occurs twice" if found == before else f"follows {before}; a {self.major_name}'s indices must increase"
            )
            raise MatrixError(f"{where}: index {found} {fault}")
        finite = np.isfinite(self.values)
        if not finite.all():
            at = int(np.flatnonzero(~finite)[0])
            raise MatrixError(f"entry {at}: the value {self.values[at]} is not finite")
        return self

    def slice_groups(self: Self, start: int, stop: int) -> Self:
        """Return groups `start` to `stop` (rows of a CSR, columns of a CSC), sharing indices and values."""
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        shape = (stop - start, self.shape[1]) if self.major_axis == 0 else (self.shape[0], stop - start)
        values = self.values if self.iso else self.values[first:last]
        return type(self)(shape, self.indptr[start : stop + 1] - first, self.indices[first:last], values)

    @classmethod
    def from_arrays(cls: type[Self], shape: tuple[int, int], indptr: Array, indices: Array, values: Array) -> Self:
        """Build from arrays of any integer type; equal values are stored once. Entries are not checked.

        Raises
        ------
        MatrixError
            An index does not fit the index type, or lengths disagree.
        """
        check_shape(shape)
        return cls(
            shape,
            np.ascontiguousarray(indptr, dtype=np.int64),
            as_indices("indices", indices, shape[1 - cls.major_axis]),
            collapse_iso(np.ascontiguousarray(values)),
        )


@dataclass(frozen=True, eq=False)
class CSR(Compressed):
    """Compressed sparse rows: row r holds the entries indptr[r] to indptr[r + 1], by increasing column."""

    major_axis: ClassVar[int] = 0
    major_name: ClassVar[str] = "row"

    @classmethod
    def from_scipy(cls, matrix: Any, dtype: type[np.floating[Any]] = np.float32) -> CSR:
        """Build from any SciPy sparse matrix or array; duplicates are summed, values converted to `dtype`."""
        rows = _canonical(matrix, "tocsr")
        return cls.from_arrays(rows.shape, rows.indptr, rows.indices, as_floats(rows.data, dtype))

    def to_scipy(self) -> Any:
        """Return a `scipy.sparse.csr_array` with one value per entry."""
        from scipy.sparse import csr_array

        return csr_array((self.expanded_values(), *_scipy_indices(self)), shape=self.shape)


@dataclass(frozen=True, eq=False)
class CSC(Compressed):
    """Compressed sparse columns: column c holds the entries indptr[c] to indptr[c + 1], by increasing row."""

    major_axis: ClassVar[int] = 1
    major_name: ClassVar[str] = "column"

    @classmethod
    def from_scipy(cls, matrix: Any, dtype: type[np.floating[Any]] = np.float32) -> CSC:
        """Build from any SciPy sparse matrix or array; duplicates are summed, values converted to `dtype`."""
        columns = _canonical(matrix, "tocsc")
        return cls.from_arrays(columns.shape, columns.indptr, columns.indices, as_floats(columns.data, dtype))

    def to_scipy(self) -> Any:
        """Return a `scipy.sparse.csc_array` with one value per entry."""
        from scipy.sparse import csc_array

        return csc_array((self.expanded_values(), *_scipy_indices(self)), shape=self.shape)


def _canonical(matrix: Any, conversion: str) -> Any:
    """Return a copy of a SciPy matrix in another format, its indices sorted and its duplicates summed."""
    if not hasattr(matrix, conversion):
        raise MatrixError(f"a {type(matrix).__name__} is no SciPy sparse matrix; `from_dense` takes arrays")
    copy = getattr(matrix, conversion)(copy=True)
    copy.sum_duplicates()
    return copy


def _scipy_indices(matrix: Compressed) -> tuple[Array, Array]:
    """SciPy wants indices and offsets of one signed type: int32, or int64 for 2^31 entries and more."""
    dtype = np.int32 if matrix.nnz < 1 << 31 else np.int64
    return matrix.indices.astype(dtype), matrix.indptr.astype(dtype)


@compiled
def _first_fault(indptr: Array, indices: Array, width: int) -> tuple[int, int]:
    """Return (group, entry) of the first index that is out of range or not above its predecessor, else (-1, -1)."""
    for group in range(indptr.size - 1):
        previous = np.int64(-1)
        for at in range(indptr[group], indptr[group + 1]):
            index = np.int64(indices[at])
            if index <= previous or index >= width:
                return group, at
            previous = index
    return -1, -1
