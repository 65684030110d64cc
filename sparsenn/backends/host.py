"""Methods shared by backends that compute in host memory: rows are not copied unless they must be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparsenn.backends.chains import Features, RowsLeft, SparseRows
from sparsenn.backends.contract import Backend, Queue
from sparsenn.backends.host_arrays import is_on_host, largest_number
from sparsenn.backends.launching import combine_rows, combined_width
from sparsenn.errors import UsageError
from sparsenn.formats import CSR, Array, from_dense
from sparsenn.layers import CombiningLayer, ForeignLayer
from sparsenn.runtime.memory import free_memory
from sparsenn.runtime.workers import NUMBERS, chunks, map_threads


def checked_rows(rows: SparseRows) -> CSR:
    """Return sparse rows on the host as CSR, in float32 or, where they are that, float64."""
    values = rows.values if rows.values.dtype == np.float64 else rows.values.astype(np.float32)
    offsets = rows.indptr.astype(np.int64)
    return CSR.from_arrays(rows.shape, offsets - offsets[:1], rows.indices, values).validate()


def _has_nonzero(features: Features) -> Array:
    if isinstance(features, CSR):
        return np.asarray(np.diff(features.indptr) > 0)
    return np.asarray(features.any(axis=1))


def combine(layer: CombiningLayer, matrices: Sequence[Array]) -> Array:
    """Combine matrices on all cores, some rows at a time."""
    if isinstance(layer, ForeignLayer):
        return combine_rows(layer, matrices)
    rows, widths = matrices[0].shape[0], [matrix.shape[1] for matrix in matrices]
    together = max(1, NUMBERS // max(1, *widths))
    ranges = chunks(rows, together)
    if len(ranges) < 2:
        return combine_rows(layer, matrices)
    combined = np.empty((rows, combined_width(layer, widths)), matrices[0].dtype)

    def run(rows: tuple[int, int]) -> None:
        combined[slice(*rows)] = combine_rows(layer, [matrix[slice(*rows)] for matrix in matrices])

    map_threads(run, ranges)
    return combined


class HostMemory(Backend):
    """The methods that move and check rows, for backends in host memory: nothing is queued or captured."""

    in_host_memory = True
    row_types: tuple[np.dtype[Any], ...] = (np.dtype(np.float32),)
    queue = Queue()

    def free_memory(self) -> int:
        """Return the host's free memory."""
        return free_memory() or 0

    def device_rows(self, inputs: Any) -> CSR | SparseRows | Array | None:
        """Return None, or refuse rows that are on a GPU."""
        if not is_on_host(inputs):
            raise UsageError("the rows are on a GPU: use device cuda, or copy them to the host")
        return None

    def fetch(self, features: Features | SparseRows) -> Any:
        """Return a copy of a matrix; sparse rows are never written over."""
        return features if isinstance(features, CSR | SparseRows) else features.copy()

    def fetch_later(self, matrix: Array, target: Array) -> Callable[[], None]:
        """Copy a matrix, and return a function that does nothing."""
        np.copyto(target, matrix, casting="unsafe")
        return lambda: None

    def spread(self, left: RowsLeft, expansion: Array | None) -> Array:
        """Return the row of each input, with a column for each output."""
        return left.scatter(expansion)

    def take_out(self, left: RowsLeft, own: bool) -> Callable[[], tuple[Array, RowsLeft]]:
        """Find the inputs that are alive, and copy rows that may be written over, as CSR never is."""
        features, row_map = left.features, left.row_map.on_host(np.array)
        is_live = np.ones(features.shape[0], np.bool_) if left.dropped else _has_nonzero(features)
        if not isinstance(features, CSR) and not own:
            features = features.copy()
        return lambda: (np.flatnonzero(row_map.scatter(is_live)), RowsLeft(features, row_map))

    def as_csr(self, matrix: Array) -> CSR:
        """Return a matrix as CSR."""
        return from_dense(matrix, matrix.dtype.type)

    def largest_number(self, features: Features) -> tuple[float, bool]:
        """Look at the numbers piece by piece."""
        return largest_number(features.values if isinstance(features, CSR) else features)
