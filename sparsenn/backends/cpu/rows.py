"""Taking rows, and grouping equal ones, whichever form the features have."""

from __future__ import annotations

import numpy as np

from sparsenn.backends.base import Features
from sparsenn.formats import CSR, Array
from sparsenn.formats.conversion import scan
from sparsenn.formats.equality import equal_groups, equal_rows

__all__ = ["group_rows", "take_rows"]


def group_rows(features: Features) -> tuple[Array, Array]:
    """Group rows that are equal bit for bit; see `Backend.equal_rows`."""
    return equal_groups(features) if isinstance(features, CSR) else equal_rows(features)


def take_rows(features: Features, rows: Array) -> Features:
    """Return the given rows (int64, any order) of CSR or dense features."""
    if not isinstance(features, CSR):
        return features[rows]
    lengths = np.diff(features.indptr)[rows]
    offsets = scan(lengths)
    entries = np.repeat(features.indptr[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
    values = features.values if features.iso else features.values[entries]
    return CSR((rows.size, features.shape[1]), offsets, features.indices[entries], values)
