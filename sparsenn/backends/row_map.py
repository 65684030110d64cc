"""Row maps: which computed row stands for which input row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenn.formats import CSR, Array
from sparsenn.formats.conversion import scan


@dataclass(frozen=True, eq=False)
class RowMap:
    """Which computed row stands for each input row."""

    rows: Array | None = None  # (inputs,) int32 or int64, -1 for a row of zeros; None for the inputs' own numbers

    @classmethod
    def of_survivors(cls, survivors: Array, inputs: int) -> RowMap:
        """Return the map of inputs to rows, from the input of each row, in any order."""
        if survivors.size == inputs and bool((survivors == np.arange(inputs)).all()):
            return SAME_ROWS
        rows = np.full(inputs, -1, np.int64)
        rows[survivors] = np.arange(survivors.size)
        return cls(rows)

    def on_host(self, fetch: Callable[[Any], Any]) -> RowMap:
        """Return the map in host memory; `fetch` copies an array there."""
        return self if self.rows is None else RowMap(np.asarray(fetch(self.rows)))

    def then(self, later: RowMap) -> RowMap:
        """Return the map from this map's inputs to the rows that a later one maps its rows to."""
        if self.rows is None or later.rows is None:
            return later if self.rows is None else self
        if not later.rows.size:  # no input has a row
            return self
        return RowMap((later.rows[self.rows] + 1) * (self.rows >= 0) - 1)

    def take(self, start: int, stop: int) -> tuple[Array, RowMap]:
        """Return the rows that inputs `start` to `stop` have, increasing, and the map of these inputs to those."""
        if self.rows is None:
            return np.arange(start, stop), SAME_ROWS
        rows = self.rows[start:stop]
        used, places = np.unique(rows[rows >= 0], return_inverse=True)
        taken = np.full(rows.size, -1, np.int64)
        taken[rows >= 0] = places
        return used, RowMap(taken)

    def scatter(self, rows: Array, columns: Array | None = None) -> Array:
        """Return the row of each input in a new array, zeros where there is none; `columns` are those of `rows`."""
        if self.rows is None:
            return rows.copy() if columns is None else np.take(rows, columns, axis=1)
        live = self.rows >= 0
        present = rows[self.rows[live]]
        if columns is not None:
            present = np.take(present, columns, axis=1)
        scattered = np.zeros((self.rows.size, *present.shape[1:]), rows.dtype)
        scattered[live] = present
        return scattered

    def gather(self, rows: CSR) -> CSR:
        """Return the sparse row of each input, an empty one where there is none; on the host."""
        if self.rows is None:
            return rows
        starts, lengths = (np.append(each, 0)[self.rows] for each in (rows.indptr[:-1], np.diff(rows.indptr)))
        indptr = scan(lengths)
        entries = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], lengths)
        values = rows.values if rows.iso else rows.values[entries]
        return CSR((self.rows.size, rows.shape[1]), indptr, rows.indices[entries], values)

    def multiplicity(self, computed: int, before: Array | None = None) -> Array | None:
        """Return how many inputs each computed row stands for, int64, exact up to 2^53; None for one each.

        `before` is (inputs,) int64, how many inputs each input of this map stands for; None for one.
        """
        if self.rows is None:
            return before
        live = self.rows >= 0
        return np.bincount(self.rows[live], None if before is None else before[live], computed).astype(np.int64)


SAME_ROWS = RowMap()  # each input has the row of its own number
