"""Row by row: each row by itself through all layers in one compiled call, its non-zeros scattered through the weights.

For a row or two, what is around panels (`panel`) costs more than the arithmetic. Here a row stays within two lines of
memory in the first-level cache, and only non-zeros are multiplied. The order of summation is that of the panels: for
each output, inputs ascending, with fused multiply-adds, then the bias; what is left out is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.chains import Features, LayerCounts, RowsLeft, SparseProblem
from sparsenn.backends.cpu.activation import IDENTITY, RELU, activate_line
from sparsenn.backends.cpu.processor import shared_seconds
from sparsenn.backends.cpu.stack import LayersByRows, Stack, Workspace
from sparsenn.backends.kernel_records import SparseKernel
from sparsenn.backends.machine import Machine
from sparsenn.backends.prior import Prior
from sparsenn.backends.registry import register
from sparsenn.backends.sizes import parts_of
from sparsenn.errors import ShapeError
from sparsenn.formats import CSC, CSR, Array, from_dense
from sparsenn.formats.arrays import read_only
from sparsenn.layers import ReLU, SparseLinear
from sparsenn.runtime.jit import compiled, example
from sparsenn.runtime.workers import TASKS, chunks, map_threads, thread_count

__all__ = ["ROWS", "RowByRow", "rows_seconds", "run_rows", "run_sparse_rows"]

NAME = "rows"

SHARED_EDGES = 1 << 20
"""Multiply-adds, if no input were zero, from which on rows are shared among threads: below, calling them costs more."""

NUMBERS = 5  # numbers of a layer in `LayersByRows.numbers`


@compiled
def _scatter(value: Any, column: Any, pointers: int, numbers: Array, targets: Array, values: Array, line: Array,
             base: int) -> int:  # fmt: skip
    first, last = numbers[pointers + column], numbers[pointers + column + 1]
    for edge in range(np.uintp(first), np.uintp(last)):
        line[np.uintp(base) + np.uintp(targets[edge])] += value * values[edge]
    edges: int = last - first
    return edges


@compiled
def _finish(kind: int, bias: int, outputs: int, values: Array, line: Array, base: int) -> Any:
    """Add the bias to a line of sums and apply the activation; returns how many outputs are not zero."""
    zero, top = np.float32(0), values[bias + outputs]
    at, shift, alive = np.uintp(base), np.uintp(bias), np.int32(0)
    if kind == RELU:
        for output in range(np.uintp(outputs)):
            z = line[at + output] + values[shift + output]
            z = zero if z < zero else z
            z = top if z > top else z
            line[at + output] = z
            alive += np.int32(1) if z != zero else np.int32(0)
        return alive
    for output in range(np.uintp(outputs)):
        line[at + output] += values[shift + output]
    if kind != IDENTITY:
        activate_line(kind, line, base, outputs, top)
    for output in range(np.uintp(outputs)):
        alive += np.int32(1) if line[at + output] != zero else np.int32(0)
    return alive


@compiled
def _nonzeros(copies: int, outputs: int, numbers: Array, line: Array, base: int) -> Any:
    found = np.int64(0)
    for output in range(outputs):
        found += numbers[copies + output] if line[base + output] != np.float32(0) else 0
    return found


@compiled
def _take_row(row: int, entered: int, first: int, last: int, edges: int, numbers: Array, targets: Array,
              values: Array, lines: Array, out: Array, many: int, droppable_from: int,
              counters: Array) -> bool:  # fmt: skip
    """Take a row through layers to its outputs; returns False if it has died, and then writes no outputs.

    entered : `first + 1` if the middle line holds the first layer's sums, which took `edges` multiply-adds; else
        `first`.
    """
    middle = lines.size // 2
    source, target = 0, middle
    for layer in range(first, last):
        record = 1 + NUMBERS * layer
        inputs, outputs, kind = numbers[record], numbers[record + 1], numbers[record + 2]
        pointers, bias = numbers[record + 3], numbers[record + 4]
        if layer >= entered:
            edges = 0
            for output in range(np.uintp(outputs)):
                lines[np.uintp(target) + output] = np.float32(0)
            for column in range(inputs):
                value = lines[source + column]
                if value != np.float32(0):
                    edges += _scatter(value, column, pointers, numbers, targets, values, lines, target)
        alive = _finish(kind, bias, outputs, values, lines, target)
        if counters.shape[0] > 0:
            counters[layer - first, 0] += 1
            counters[layer - first, 1] += many if alive > 0 else 0
            counters[layer - first, 2] += many * _nonzeros(pointers + inputs + 1, outputs, numbers, lines, target)
            counters[layer - first, 3] += edges
        if alive == 0 and layer >= droppable_from:
            return False
        source, target = target, source
    for output in range(out.shape[1]):
        out[row, output] = lines[source + output]
    return True


@compiled
def run_rows(features: Array, start: int, stop: int, first: int, last: int, numbers: Array, targets: Array,
             values: Array, lines: Array, out: Array, multiplicity: Array, droppable_from: int, is_live: Array,
             counters: Array) -> None:  # fmt: skip
    """Take dense rows start to stop through layers first to last.

    multiplicity : (rows,) int64, how many inputs each row stands for. is_live : (rows,) bool; outputs of others are
        zeros. counters : (layers, 4) int64, added to: rows, active inputs, non-zeros, multiply-adds; (0, 4) for no
        counting.
    """
    inputs = numbers[1 + NUMBERS * first]
    for row in range(start, stop):
        for column in range(inputs):
            lines[column] = features[row, column]
        is_live[row] = _take_row(row, first, first, last, 0, numbers, targets, values, lines, out, multiplicity[row],
                              droppable_from, counters)  # fmt: skip
        if not is_live[row]:
            out[row, :] = np.float32(0)


@compiled
def run_sparse_rows(indptr: Array, indices: Array, entries: Array, start: int, stop: int, first: int, last: int,
                    numbers: Array, targets: Array, values: Array, lines: Array, out: Array, multiplicity: Array,
                    droppable_from: int, is_live: Array, counters: Array) -> None:  # fmt: skip
    """Take CSR rows start to stop through layers first to last, as `run_rows`."""
    record, middle, iso = 1 + NUMBERS * first, lines.size // 2, entries.size == 1
    outputs, pointers = numbers[record + 1], numbers[record + 3]
    for row in range(start, stop):
        edges = 0
        for output in range(outputs):
            lines[middle + output] = np.float32(0)
        for entry in range(indptr[row], indptr[row + 1]):
            value = entries[0] if iso else entries[entry]
            edges += _scatter(value, np.intp(indices[entry]), pointers, numbers, targets, values, lines, middle)
        is_live[row] = _take_row(row, first + 1, first, last, edges, numbers, targets, values, lines, out,
                              multiplicity[row], droppable_from, counters)  # fmt: skip
        if not is_live[row]:
            out[row, :] = np.float32(0)


class RowByRow:
    """A `SparseChain` of this kernel, for one thread at a time. It keeps every row, and computes all equal ones."""

    def __init__(self, stack: Stack, problem: SparseProblem) -> None:
        weights = stack.all_by_rows
        self._numbers, self._targets, self._values = weights.numbers, weights.targets, weights.values
        self._weights, self._layers, self._inputs = weights, len(stack.layers), stack.layers[0].inputs
        self._droppable_from = problem.droppable_from
        self._lines = np.empty(2 * weights.widest, np.float32)
        self._out = np.empty((problem.rows, stack.layers[-1].outputs), np.float32)
        self._ones = np.ones(problem.rows, np.int64)
        self._kept = np.empty(problem.rows, np.bool_)
        self._uncounted = np.zeros((0, 4), np.int64)
        self._counters = self._uncounted

    @property
    def nbytes(self) -> int:
        """Memory that it keeps for rows, in bytes."""
        return int(self._lines.nbytes + self._out.nbytes + self._ones.nbytes + self._kept.nbytes)

    def run(self, features: Features, counting: bool, multiplicity: Array | None = None) -> RowsLeft:
        """Take rows through all layers; see `SparseChain`. Rows that have died are left as zeros."""
        rows = features.shape[0]
        if rows > self._out.shape[0] or features.shape[1] != self._inputs:
            limits = f"up to {self._out.shape[0]:,} rows of {self._inputs:,} numbers"
            raise ShapeError(f"a chain that was made for {limits} was given rows of shape {features.shape}")
        out = self._out if rows == self._out.shape[0] else self._out[:rows]
        many = self._ones if multiplicity is None else multiplicity
        if rows > 1 and rows * self._weights.edges >= SHARED_EDGES:
            span = 0, self._layers
            self._counters = _shared(
                self._weights, features, span, out, many, self._droppable_from, self._kept, counting
            )
            return RowsLeft(out)
        self._counters = np.zeros((self._layers, 4), np.int64) if counting else self._uncounted
        if isinstance(features, CSR):
            run_sparse_rows(features.indptr, features.indices, features.values, 0, rows, 0, self._layers,
                            self._numbers, self._targets, self._values, self._lines, out, many,
                            self._droppable_from, self._kept, self._counters)  # fmt: skip
        else:
            run_rows(read_only(features), 0, rows, 0, self._layers, self._numbers, self._targets, self._values,
                     self._lines, out, many, self._droppable_from, self._kept, self._counters)  # fmt: skip
        return RowsLeft(out)

    def counts(self) -> tuple[LayerCounts, ...]:
        """Return what the last run counted, layer by layer; nothing if it was not told to."""
        return _counts(self._counters)


def _counts(counters: Array) -> tuple[LayerCounts, ...]:
    return tuple(LayerCounts(NAME, *map(int, counted)) for counted in counters)


def _tasks(rows: int, edges: int, threads: int) -> int:
    return max(1, min(TASKS * threads, rows, rows * edges // SHARED_EDGES))


def _shared(weights: LayersByRows, features: Features, span: tuple[int, int], out: Array, multiplicity: Array,
            droppable_from: int, is_live: Array, counting: bool) -> Array:  # fmt: skip
    rows = features.shape[0]
    layers = span[1] - span[0] if counting else 0
    tasks = _tasks(rows, weights.edges, thread_count())
    run = (
        partial(run_sparse_rows, features.indptr, features.indices, features.values)
        if isinstance(features, CSR)
        else partial(run_rows, read_only(features))
    )

    def take(bounds: tuple[int, int]) -> Array:
        counters, lines = np.zeros((layers, 4), np.int64), np.empty(2 * weights.widest, np.float32)
        run(*bounds, *span, weights.numbers, weights.targets, weights.values, lines, out, multiplicity,
            droppable_from, is_live, counters)  # fmt: skip
        return counters

    work = chunks(rows, max(1, parts_of(rows, tasks)))
    counters: Array = sum(map_threads(take, work), np.zeros((layers, 4), np.int64))
    return counters


@example
def _row_examples() -> None:
    weights = CSC((1, 1), np.array([0, 1]), np.zeros(1, np.uint16), np.ones(1, np.float32))
    stack = Stack([SparseLinear(weights, None, ReLU())], [np.ones(1, np.int64)], Workspace())
    chain = RowByRow(stack, SparseProblem(1, "dense", 1, False))
    for features in (np.ones((1, 1), np.float32), from_dense(np.ones((1, 1)))):
        chain.run(features, False)


PRIOR = Prior(compute=1.0)
EDGE_BYTES = 8  # bytes of a weight with its index
VALUE_EDGES = 8  # weights that are multiplied in the time in which an input finds its row of weights
LIVE = 0.5  # the share of non-zeros that ReLU is taken to leave


def rows_seconds(machine: Machine, layers: Sequence[SparseLinear], rows: int) -> float:
    """Estimate the time of layers for rows without zeros, none of which dies."""
    products, live = 0.0, 1.0
    for layer in layers:
        products += live * (layer.edges + VALUE_EDGES * layer.inputs)
        live = LIVE if isinstance(layer.activation, ReLU) else 1.0
    weights = sum(layer.edges for layer in layers)
    threads = min(_tasks(rows, weights, machine.multiprocessors), machine.multiprocessors)
    return shared_seconds(PRIOR, machine, threads, rows * products, rows * products * EDGE_BYTES)


ROWS = register(
    SparseKernel(
        name=NAME,
        device="cpu",
        summary="row by row through all layers, non-zeros alone; for few rows",
        auto=True,
        fuses=True,
        seconds=rows_seconds,
        prepare=RowByRow,
        reproducible=True,
    )
)
