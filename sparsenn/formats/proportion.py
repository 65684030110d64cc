"""Finding groups (rows of a CSR, columns of a CSC) that are multiples of each other.

Whether two groups are multiples is decided exactly: each is divided by its first number that is not zero, in float64,
and quotients of float32 numbers are equal in float64 only where they are equal. For a/b and c/d are, but for powers of
two, quotients of integers of 24 bits; where ad ≠ bc, they differ by a part of at least 2^-48 of themselves, and
rounding moves a quotient by 2^-53 of itself at most. No quotient leaves the normal numbers of float64: they lie between
2^-277 and 2^277.
"""

from __future__ import annotations

import numpy as np

from sparsenn.formats.arrays import Array
from sparsenn.formats.compressed import Compressed
from sparsenn.formats.equality import equal_groups, equal_patterns
from sparsenn.runtime.jit import compiled


def proportional_groups(matrix: Compressed) -> tuple[Array, Array, Array]:
    """Group rows of a CSR, or columns of a CSC, that are multiples of each other with entries at the same places.

    Entries are taken as float32; stored zeros of either sign are equal, and differ from no entry.

    Returns
    -------
    representatives : the first member of each group, increasing; int64.
    group : (rows or columns,) int64, the group of each.
    leading : (rows or columns,) float64: members of a group are to each other as these are. Of groups of several it is
        the first number that is not zero; where there is none, it is the same for all members.
    """
    representatives, group = equal_patterns(matrix)
    if matrix.iso:
        return representatives, group, np.full(matrix.groups, float(np.float32(matrix.values[0])) or 1.0)
    leading = np.ones(matrix.groups)
    values = matrix.values.astype(np.float32, copy=False)
    if representatives.size < matrix.groups:
        if _ends_differ(matrix.indptr, values, group):
            return (*(np.arange(matrix.groups),) * 2, leading)
        quotients = np.empty(matrix.nnz)
        _divide(matrix.indptr, values, leading, quotients)
        representatives, group = equal_groups(type(matrix)(matrix.shape, matrix.indptr, matrix.indices, quotients))
    return representatives, group, leading


def _ends_differ(indptr: Array, values: Array, patterns: Array) -> bool:
    """Whether the quotients of last and first values differ for all groups of like patterns: a quick test."""
    filled = np.diff(indptr) > 0
    first, last = values[indptr[:-1][filled]].astype(np.float64), values[indptr[1:][filled] - 1]
    quotients = np.zeros(filled.size)
    quotients[filled] = np.divide(last, first, where=first != 0, out=np.zeros_like(first))
    return np.unique(patterns + 1j * quotients).size == patterns.size


@compiled
def _divide(indptr: Array, values: Array, leading: Array, quotients: Array) -> None:
    """Divide each group's values by the first that is not zero, which goes to `leading`."""
    for group in range(indptr.size - 1):
        first, last = indptr[group], indptr[group + 1]
        for entry in range(first, last):
            if values[entry] != 0:
                leading[group] = values[entry]
                break
        for entry in range(first, last):
            quotients[entry] = np.float64(values[entry]) / leading[group] + 0.0  # no zero is negative
