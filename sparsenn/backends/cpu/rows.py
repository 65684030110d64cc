"""Taking rows, and grouping equal ones, whichever form the features have."""

from __future__ import annotations

from sparsenn.backends.chains import SAME_ROWS, Features, RowMap
from sparsenn.formats import CSR, Array
from sparsenn.formats.equality import equal_groups, equal_rows
from sparsenn.runtime.jit import compiled


def distinct_rows(features: Features) -> tuple[Features, RowMap]:
    """Return one of each set of equal rows: found by hash on all cores, then compared whole; dense ones are moved."""
    representatives, group = equal_groups(features) if isinstance(features, CSR) else equal_rows(features)
    if representatives.size == features.shape[0]:
        return features, SAME_ROWS
    return take_rows(features, representatives), RowMap(group)


@compiled
def _move_rows(matrix: Array, rows: Array) -> None:
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
