"""Rows on their way through a network: inputs, chains of sparse layers, surviving rows, and checks of numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

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


Features: TypeAlias = CSR | Array  # rows of features: CSR, or a dense row-major matrix of shape (rows, width)


class LayerCounts(NamedTuple):
    """Counts of a kernel in one layer: a tuple, as a run makes one per layer and tuples take the least time."""

    kernel: str
    rows: int
    active_inputs: int | None  # inputs whose output row has a non-zero; None where unknown
    nonzeros: int | None  # summed over the inputs and over all neurons of the layer; None likewise
    performed_edges: int  # multiply-adds done
    distinct: int | None = None  # rows that differ after this layer, where the kernel has grouped equal rows


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A caller's sparse rows: not checked, of any types of numbers, in host memory or a GPU's."""

    shape: tuple[int, int]  # (rows, width)
    indptr: Array  # (rows + 1,) integers; row r has the entries indptr[r] - indptr[0] to indptr[r + 1] - indptr[0]
    indices: Array  # (entries,) integers, the column of each entry
    values: Array  # (entries,) real numbers; or (1,) where all entries share one value

    def slice_rows(self, start: int, stop: int) -> SparseRows:
        """Return rows `start` to `stop`, sharing the arrays."""
        base = int(self.indptr[0])
        first, last = int(self.indptr[start]) - base, int(self.indptr[stop]) - base
        values = self.values[first:last] if self.values.size == self.indices.size else self.values
        return SparseRows(
            (stop - start, self.shape[1]), self.indptr[start : stop + 1], self.indices[first:last], values
        )

    def canonical(self) -> SparseRows:
        """Return these rows, in host memory, with the entries of each row by column, and duplicate entries summed."""
        from scipy.sparse import csr_array

        offsets = self.indptr - self.indptr[0]
        nnz = int(offsets[-1])
        values = self.values.astype(np.result_type(self.values.dtype, np.float32))  # small integers would wrap around
        one_each = np.repeat(values, nnz) if values.size == 1 else values[:nnz]
        matrix = csr_array((one_each, self.indices[:nnz].copy(), offsets), shape=self.shape)
        matrix.sum_duplicates()
        return SparseRows(self.shape, matrix.indptr, matrix.indices, matrix.data)


class RowsLeft(NamedTuple):
    """The rows that survive layers, on the device."""

    features: Features  # the rows; some may belong to no input
    row_map: RowMap = SAME_ROWS  # the row of each input, int32 or int64
    dropped: bool = False  # whether each row that the map names has a non-zero, as rows of zeros were dropped

    @property
    def inputs(self) -> int:
        """Number of input rows."""
        rows = self.row_map.rows
        return int(self.features.shape[0] if rows is None else rows.size)

    def scatter(self, columns: Array | None) -> Array:
        """Return the row of each input in a new matrix, zeros where there is none; on the host, as `RowMap.scatter`."""
        rows = self.features.to_scipy().toarray() if isinstance(self.features, CSR) else self.features
        return self.row_map.scatter(rows, columns)


@dataclass(frozen=True)
class SparseProblem:
    """The rows that a chain of sparse layers is prepared for, and which of them it need not compute."""

    rows: int  # of a run, at most
    form: str  # of the rows: `dense`, `half` (float16), `csr`, or `iso` for CSR of one value
    droppable_from: int  # layer, from 0, after which rows that are all zero may be dropped
    deduplicate: bool  # whether rows that are equal bit for bit are computed once


class SparseChain(Protocol):
    """Consecutive sparse layers, ready to run on rows of a form; one thread at a time."""

    @property
    def nbytes(self) -> int:
        """Memory for rows, in bytes."""

    def run(self, features: Features, counting: bool, multiplicity: Array | None = None) -> RowsLeft:
        """Take rows through all layers; on a GPU the work is queued on the current stream, and not waited for.

        The rows that it returns are in memory of the chain's own, which the next run writes over. `multiplicity` is
        (rows,) int64 on the host, how many inputs each row stands for, for counting only.
        """

    def counts(self) -> tuple[LayerCounts, ...]:
        """Return what the last run counted, layer by layer; waits for it."""


class NumberCheck(Protocol):
    """A check of batch after batch, on a device with memory of its own, for numbers that are not finite."""

    def scan(self, features: Features) -> None:
        """Scan all numbers of features on the device; on a GPU the scan is queued, and not waited for."""

    def passed(self) -> bool:
        """Return whether all scanned numbers were finite; waits for the device once."""


class RowsWatch(NumberCheck, Protocol):
    """A check of rows on a GPU that never waits: `passed` returns True, and `take_fault` reports faults later."""

    def scanning(self, features: Array) -> AbstractContextManager[None]:
        """Return a context in which kernels read features, and after which they have been scanned."""

    def take_fault(self) -> bool:
        """Return whether a scan that has ended found a number that is not finite, and forget the fault."""


class RowsCheck(Protocol):
    """A check of sparse rows that has been queued, and is not waited for."""

    @property
    def rows(self) -> CSR:
        """The rows in the types that kernels take, with one value for all entries, for chains that await the check."""

    def fetch(self) -> None:
        """Queue the copy of the results to the host, behind the work queued so far; wait for nothing."""

    def passed(self) -> bool:
        """Wait; return whether the rows are sound, begin at offset 0, and have one value.

        Where they are not, `Backend.place` sorts them, or reports the fault; this raises MatrixError where sorting is
        no help.
        """
