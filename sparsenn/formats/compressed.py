"""CSR and CSC: entries grouped by row (or column) behind an array of offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import numpy as np

from sparsenn.errors import MatrixError, UnsortedError, UsageError
from sparsenn.formats.arrays import (
    Array,
    as_floats,
    as_indices,
    check_arrays,
    check_shape,
    check_values,
    collapse_iso,
    convert_scipy,
    falls,
    frozen,
    index_dtype,
    is_own,
    own,
    read_only,
    real_numbers,
    size,
)
from sparsenn.formats.rebuilt import Rebuilt
from sparsenn.printable import one_line
from sparsenn.runtime.jit import compiled
from sparsenn.runtime.workers import map_threads

_PIECE = 1 << 20  # entries that a thread checks at a time

Self = TypeVar("Self", bound="Compressed")


@dataclass(frozen=True, eq=False)
class Compressed(Rebuilt):
    """What CSR and CSC have in common: groups of entries along the *major* axis, indexed along the *minor* one.

    Arrays in host memory are read-only through the matrix: views of them are held where the caller could write to them.

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
        The parts are no arrays, or their lengths or types do not fit together. `validate` checks the entries
        themselves.
    """

    major_axis: ClassVar[int]
    major_name: ClassVar[str]

    shape: tuple[int, int]
    indptr: Array
    indices: Array
    values: Array
    _checked: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", check_shape(self.shape))
        check_arrays(self, "indptr", "indices", "values")
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

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """Offsets, indices and values."""
        return self.indptr, self.indices, self.values

    @property
    def is_checked(self) -> bool:
        """Whether every entry has been checked, and nobody can have written to the arrays since."""
        return self._checked and not any(array.flags.writeable for array in self.arrays)

    def expanded_values(self) -> Array:
        """Return one value per entry, also for an iso-valued matrix; read-only in host memory."""
        return read_only(self._one_per_entry()) if self.iso else self.values

    def _one_per_entry(self) -> Array:
        return np.broadcast_to(self.values, (self.nnz,)).copy()

    def checked(self: Self) -> Self:
        """Return the matrix with every entry checked and arrays that nobody else writes to.

        That is the matrix itself where it is so already, or where its arrays are read-only, else a copy.

        Raises
        ------
        MatrixError
            As `validate`; or the arrays are not in host memory.
        """
        if self.is_checked:
            return self
        self._require_host()
        if all(map(is_own, self.arrays)):
            return self.validate()
        return type(self)(self.shape, *map(own, self.arrays)).validate()

    def validate(self: Self) -> Self:
        """Check every entry, on all threads where there are many, and return self.

        What has been checked once is not checked again, unless somebody else can write to its arrays.

        Raises
        ------
        UnsortedError
            Indices of a group do not increase strictly: unsorted, or a position given twice.
        MatrixError
            Offsets do not run from 0 to nnz without decreasing, an index is out of range, or a value is NaN or
            infinite; or the arrays are not in host memory.
        """
        if self.is_checked:
            return self
        self._require_host()
        if not self._sound():
            self._explain()
        if all(map(is_own, self.arrays)):
            object.__setattr__(self, "_checked", True)
        return self

    def _require_host(self) -> None:
        if not all(isinstance(array, np.ndarray) for array in self.arrays):
            raise MatrixError("the arrays are on a device; a matrix is checked in host memory")

    def _sound(self) -> bool:
        if not self._offsets_sound():
            return False
        if self.nnz <= _PIECE:
            return self._groups_sound((0, self.groups))
        cuts = np.searchsorted(self.indptr, np.arange(_PIECE, self.nnz, _PIECE))
        spans = pairwise(np.unique([0, *cuts, self.groups]).tolist())
        return all(map_threads(self._groups_sound, spans))

    def _offsets_sound(self) -> bool:
        return self.indptr[0] == 0 and self.indptr[-1] == self.nnz and not falls(self.indptr)

    def _groups_sound(self, span: tuple[int, int]) -> bool:
        """Whether the entries of groups `start` to `stop` are as they must be."""
        first, last = self.indptr[span[0]], self.indptr[span[1]]
        values = self.values if self.iso else self.values[first:last]
        return bool(_indices_sound(self.indptr, self.indices, self.width, *span)) and bool(np.isfinite(values).all())

    def _explain(self) -> None:
        if not self._offsets_sound():
            raise MatrixError(f"indptr must rise from 0 to {self.nnz:,} and never fall")
        at = self._first_fault()
        if at is not None:
            group = int(np.searchsorted(self.indptr, at, side="right")) - 1
            found = int(self.indices[at])
            where = f"{self.major_name} {group}, entry {at}"
            if not 0 <= found < self.width:
                raise MatrixError(f"{where}: index {found} is outside 0..{self.width - 1}")
            before = int(self.indices[at - 1])
            fault = (
                "occurs twice" if found == before else f"follows {before}; a {self.major_name}'s indices must increase"
            )
            raise UnsortedError(f"{where}: index {found} {fault}")
        finite = np.isfinite(self.values)
        if not finite.all():
            at = int(np.flatnonzero(~finite)[0])
            raise MatrixError(f"entry {at}: the value {self.values[at]} is not finite")

    def _first_fault(self) -> int | None:
        """Return the first entry whose index is out of range or not above the one before it in its group."""
        faults = (self.indices < 0) | (self.indices >= self.width)
        falls = np.zeros_like(faults)
        falls[1:] = self.indices[1:] <= self.indices[:-1]
        starts = self.indptr[:-1]
        falls[starts[starts < self.nnz]] = False
        found = np.flatnonzero(faults | falls)
        return int(found[0]) if found.size else None

    def slice_groups(self: Self, start: int, stop: int) -> Self:
        """Return groups `start` to `stop` (rows of a CSR, columns of a CSC), sharing indices and values.

        Groups of a matrix that is checked are.

        Raises
        ------
        UsageError
            A bound is no integer, or they are not in order within the groups.
        """
        start, stop = size(start, "start", 0), size(stop, "stop", 0)
        if not start <= stop <= self.groups:
            raise UsageError(f"there are no {self.major_name}s {start} to {stop} of {self.groups:,}")
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        shape = (stop - start, self.shape[1]) if self.major_axis == 0 else (self.shape[0], stop - start)
        values = self.values if self.iso else self.values[first:last]
        offsets = self.indptr[start : stop + 1] - first
        if not self.is_checked:
            return type(self)(shape, offsets, self.indices[first:last], values)
        part = type(self)(shape, frozen(offsets), self.indices[first:last], values)
        object.__setattr__(part, "_checked", True)
        return part

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a matrix that is checked as one to be checked again."""
        build, parts = super().__reduce__()
        return (_checked_again, (build, *parts)) if self.is_checked else (build, parts)

    @classmethod
    def from_arrays(cls: type[Self], shape: tuple[int, int], indptr: Array, indices: Array, values: Array) -> Self:
        """Build from arrays of any integer type; equal values are stored once. Entries are not checked.

        Raises
        ------
        MatrixError
            An index does not fit the index type, lengths disagree, or they are no numbers.
        """
        shape = check_shape(shape)
        offsets = real_numbers(indptr, "offsets (indptr) hold", MatrixError)
        if offsets.dtype.kind not in "iu":
            raise MatrixError(f"indptr is {offsets.dtype}; offsets are integers")
        return cls(
            shape,
            np.ascontiguousarray(offsets, dtype=np.int64),
            as_indices("indices", real_numbers(indices, "indices hold", MatrixError), shape[1 - cls.major_axis]),
            collapse_iso(np.ascontiguousarray(real_numbers(values, "values hold", MatrixError))),
        )

    @classmethod
    def from_scipy(cls: type[Self], matrix: Any, dtype: type[np.floating[Any]] = np.float32) -> Self:
        """Build from any SciPy sparse matrix or array; duplicates are summed, values converted to `dtype`.

        Parameters
        ----------
        matrix : scipy.sparse matrix or array
            Any format. CuPy's are copied to the host.
        dtype : type, default float32
            Float32 or float64, to which values are converted.

        Returns
        -------
        CSR or CSC
            The same entries; duplicates are summed.
        """
        canonical = _canonical(matrix, "tocsr" if cls.major_axis == 0 else "tocsc")
        made = cls.from_arrays(canonical.shape, canonical.indptr, canonical.indices, as_floats(canonical.data, dtype))
        for array in made.arrays:
            frozen(array)
        return made

    def to_scipy(self) -> Any:
        """Return the matrix in SciPy's form.

        Returns
        -------
        scipy.sparse.csr_array or scipy.sparse.csc_array
            With one value per entry.
        """
        from scipy import sparse

        build = sparse.csr_array if self.major_axis == 0 else sparse.csc_array
        return build(_scipy_arrays(self), shape=self.shape)


@dataclass(frozen=True, eq=False)
class CSR(Compressed):
    """Compressed sparse rows: row r holds the entries indptr[r] to indptr[r + 1], by increasing column.

    Parameters
    ----------
    shape : (int, int)
        Rows and columns.
    indptr : array, shape (rows + 1,), int64
        Where each row's entries begin, and after the last row the number of all.
    indices : array, shape (nnz,), uint16 or int32
        Column of each entry, strictly increasing within a row; uint16 up to 65,536 columns.
    values : array, shape (nnz,) or (1,), float32 or float64
        Value of each entry; or one, if all entries share it (iso-valued).
    """

    major_axis: ClassVar[int] = 0
    major_name: ClassVar[str] = "row"

    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class CSC(Compressed):
    """Compressed sparse columns: column c holds the entries indptr[c] to indptr[c + 1], by increasing row.

    Parameters
    ----------
    shape : (int, int)
        Rows and columns.
    indptr : array, shape (columns + 1,), int64
        Where each column's entries begin, and after the last column the number of all.
    indices : array, shape (nnz,), uint16 or int32
        Row of each entry, strictly increasing within a column; uint16 up to 65,536 rows.
    values : array, shape (nnz,) or (1,), float32 or float64
        Value of each entry; or one, if all entries share it (iso-valued).
    """

    major_axis: ClassVar[int] = 1
    major_name: ClassVar[str] = "column"

    __repr__ = one_line


def _canonical(matrix: Any, conversion: str) -> Any:
    """Return a copy of a SciPy matrix in another format, its indices sorted and its duplicates summed."""
    copy = convert_scipy(matrix, conversion, copy=True)
    copy.sum_duplicates()
    return copy


def _scipy_arrays(matrix: Compressed) -> tuple[Array, Array, Array]:
    """Return copies for SciPy: indices and offsets of one signed type, int64 for 2^31 entries and more."""
    dtype = np.int32 if matrix.nnz < 1 << 31 else np.int64
    return matrix._one_per_entry(), matrix.indices.astype(dtype), matrix.indptr.astype(dtype)


def _checked_again(kind: type[Self], shape: tuple[int, int], *arrays: Array) -> Self:
    """Build a matrix from arrays that were read from a pickle or copied, and check it."""
    return kind(shape, *(frozen(array) if array.base is None else array for array in arrays)).checked()


@compiled
def _indices_sound(indptr: Array, indices: Array, width: int, start: int, stop: int) -> bool:
    """Whether the indices of groups `start` to `stop` are in range and rise within each; the offsets are sound.

    A loop without an early end runs on vector registers: all places where indices do not rise are counted, then those
    between two groups, where that is allowed, are taken off. Of indices that rise only the ends need be in range.
    """
    base = indptr[start]
    found = indices[base : indptr[stop]]
    falls, outside = 0, 0
    for at in range(1, found.size):
        falls += found[at] <= found[at - 1]
    for group in range(start, stop):
        first, last = indptr[group] - base, indptr[group + 1] - base
        if first < last:
            falls -= first > 0 and found[first] <= found[first - 1]
            outside += found[first] < 0 or found[last - 1] >= width
    return bool(falls == 0 and outside == 0)
