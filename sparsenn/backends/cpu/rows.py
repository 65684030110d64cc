"""Taking rows, and grouping equal ones, whichever form the features have."""

from __future__ import annotations

from sparsenn.backends.contract import Features, RowMap
from sparsenn.formats import CSR, Array
from sparsenn.formats.equality import equal_groups, equal_rows
from sparsenn.runtime.jit import compiled

__all__ = ["group_rows", "take_rows"]


def group_rows(features: Features) -> tuple[Array, Array]:
    """Group rows that are equal bit for bit; see `Backend.equal_rows`."""
    return equal_groups(features) if isinstance(features, CSR) else equal_rows(features)


@compiled
def _move_rows(matrix: Array, rows: Array) -> None:
    """Move row rows[k] to row k, for increasing `rows`."""
    for to in range(rows.size):
        if rows[to] != to:
            for column in range(matrix.shape[1]):
                matrix[to, column] = matrix[rows[to], column]


def take_rows(features: Features, rows: Array) -> Features:
    """Return the given rows (int64, increasing) of CSR or dense features; dense ones are moved in place."""
    if not isinstance(features, CSR):
        _move_rows(features, rows)
        return features[: rows.size]
    return RowMap(rows).gather(features)
