"""ELL: a rectangle of entries, the same number of slots for every row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsenn.errors import MatrixError
from sparsenn.formats.arrays import Array, check_shape, check_values, index_dtype

__all__ = ["ELL"]


@dataclass(frozen=True, eq=False)
class ELL:
    """ELLPACK format, best where all rows hold about the same number of entries.

    Parameters
    ----------
    shape : (rows, columns).
    lengths : (rows,) int32, entries of each row; slots past a row's length are padding.
    indices : (rows, slots) column of each entry, strictly increasing within a row; padding is 0.
    values : (rows * slots,) float32 or float64, row after row, padding is 0; or (1,) if all entries share one value.

    Raises
    ------
    MatrixError
        The arrays' shapes or types do not fit together. `validate` checks the entries themselves.
    """

    shape: tuple[int, int]
    lengths: Array
    indices: Array
    values: Array

    def __post_init__(self) -> None:
        check_shape(self.shape)
        if self.lengths.dtype != np.int32 or self.lengths.shape != (self.shape[0],):
            raise MatrixError(f"lengths are {self.lengths.dtype} {self.lengths.shape}; want int32 ({self.shape[0]},)")
        if self.indices.ndim != 2 or self.indices.shape[0] != self.shape[0]:
            raise MatrixError(f"indices have shape {self.indices.shape}; want ({self.shape[0]}, slots)")
        if self.indices.dtype != index_dtype(self.shape[1]):
            raise MatrixError(
                f"indices are {self.indices.dtype}; {self.shape[1]:,} columns take {index_dtype(self.shape[1])}"
            )
        check_values(self.values, self.indices.size)

    @property
    def slots(self) -> int:
        """Entries that each row has room for."""
        return int(self.indices.shape[1])

    @property
    def nnz(self) -> int:
        """Number of stored entries, padding not counted."""
        return int(self.lengths.sum())

    @property
    def iso(self) -> bool:
        """Whether one stored value serves all entries."""
        return self.values.size == 1

    def validate(self) -> ELL:
        """Check every entry and return self.

        Raises
        ------
        MatrixError
            A length exceeds the slots, an index is out of range or does not increase, padding is not zero, or a
            value is NaN or infinite.
        """
        wrong_rows = np.flatnonzero((self.lengths < 0) | (self.lengths > self.slots))
        if wrong_rows.size:
            row = int(wrong_rows[0])
            raise MatrixError(f"row {row}: a length of {int(self.lengths[row])} is outside 0..{self.slots}")
        used = np.arange(self.slots) < self.lengths[:, None]
        indices = self.indices.astype(np.int64)
        wrong = used & ((indices < 0) | (indices >= self.shape[1]))
        wrong[:, 1:] |= used[:, 1:] & (indices[:, 1:] <= indices[:, :-1])
        if wrong.any():
            row, slot = (int(axis[0]) for axis in np.nonzero(wrong))
            raise MatrixError(
                f"row {row}, slot {slot}: index {int(indices[row, slot])} is out of range or out of order"
            )
        if bool(self.indices[~used].any()) or (not self.iso and bool(self.values.reshape(used.shape)[~used].any())):
            raise MatrixError("padding must be zero")
        if not np.isfinite(self.values).all():
            raise MatrixError("a value is not finite")
        return self
