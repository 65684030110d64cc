"""Row by row: each row by itself through all layers in one compiled call, only its non-zeros multiplied.

For a row or two, what is around panels (`panel`) costs more than the arithmetic. Here a row stays within two lines of
memory in the first-level cache, and layers that are large enough are shared among threads, slice by slice of their
outputs (`slices`, `row_threads`). A second kernel, `gathered_rows`, also multiplies inputs that are zero, as it gathers
them along the vector lanes: where few are zero, this takes less time on many processors. The order of summation is that
of the panels: for each output, inputs ascending, with fused multiply-adds, then the bias; what is left out is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numba import carray

from sparsenn.backends.chains import Features, LayerCounts, RowsLeft, SparseProblem
from sparsenn.backends.cpu.processor import shared_seconds
from sparsenn.backends.cpu.row_sums import MOST_ROWS, can_gather
from sparsenn.backends.cpu.row_threads import NO_THREADS, row_threads, run_slices
from sparsenn.backends.cpu.slices import (
    COPIES,
    COUNT,
    FIELDS,
    GATHERED,
    GROUP,
    HOW,
    INPUTS,
    IS_SPLIT,
    LAYER,
    OUTPUTS,
    SLICES,
    SLOTS,
    TARGET,
    TOGETHER,
    WIDEST,
    RowMemory,
    count_edges,
    edge_cost,
    list_inputs,
    pointer_of,
    rows_together,
    sharing_threads,
)
from sparsenn.backends.cpu.stack import Stack, Workspace
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

NAME, GATHERING = "rows", "gathered_rows"

SHARED_EDGES = 1 << 20
"""Multiply-adds, if no input were zero, from which on rows are shared among threads, where layers are too small to be:
below, calling them costs more."""


@compiled
def _nonzeros(copies: int, outputs: int, numbers: Array, line: Array, base: int) -> Any:
    found = np.int64(0)
    for output in range(outputs):
        found += numbers[copies + output] if line[base + output] != np.float32(0) else 0
    return found


@compiled
def _take_rows(row: int, rows: int, count: int, layers: int, job: Array, out: Array, many: int, droppable_from: int,
               state: Array, counters: Array) -> bool:  # fmt: skip
    """Take rows, `count` inputs of which are listed, to their outputs; returns False, and writes none, if all die.

    Only single rows are counted.
    """
    numbers, offsets = carray(pointer_of(job[1]), 1, np.int64), carray(pointer_of(job[2]), 1, np.uint32)
    columns, factors = carray(pointer_of(job[6]), 1, np.uint32), carray(pointer_of(job[7]), 1, np.float32)
    lines, alive = carray(pointer_of(job[8]), 1, np.float32), carray(pointer_of(job[9]), 1, np.int64)
    across = job[WIDEST]
    source: Any = MOST_ROWS * across
    target: Any = 0
    for layer in range(layers):
        record = FIELDS * layer
        outputs, slices = numbers[record + OUTPUTS], numbers[record + SLICES]
        if layer > 0:
            inputs = numbers[record + INPUTS]
            how = numbers[record + HOW]
            count = list_inputs(rows, lines, source, across, inputs, columns, factors, across + 1, how)
        job[LAYER], job[GROUP], job[COUNT], job[TARGET] = layer, rows, count, target
        run_slices(state, job, slices, numbers[record + IS_SPLIT] != 0)
        nonzeros = np.int64(0)
        for each in range(rows):
            for number in range(slices):
                nonzeros += alive[each * job[SLOTS] + number]
        if counters.shape[0] > 0:
            counters[layer, 0] += 1
            counters[layer, 1] += many if nonzeros > 0 else 0
            counters[layer, 2] += many * _nonzeros(numbers[record + COPIES], outputs, numbers, lines, target)
            counters[layer, 3] += count_edges(numbers, offsets, layer, columns, count)
        if nonzeros == 0 and layer >= droppable_from:
            return False
        source, target = target, MOST_ROWS * across - target
    for each in range(rows):
        for output in range(out.shape[1]):
            out[row + each, output] = lines[source + each * across + output]
    return True


@compiled
def run_rows(features: Array, start: int, stop: int, layers: int, job: Array, out: Array, multiplicity: Array,
             droppable_from: int, state: Array, counters: Array) -> None:  # fmt: skip
    """Take dense rows start to stop through all layers, a few at a time, or one by one where they are counted.

    job : of `RowMemory`. multiplicity : (rows,) int64, how many inputs each row stands for. state : of `row_threads`,
        or empty. counters : (layers, 4) int64, added to: rows, active inputs, non-zeros, multiply-adds; (0, 4) for no
        counting.
    """
    columns, factors = carray(pointer_of(job[6]), 1, np.uint32), carray(pointer_of(job[7]), 1, np.float32)
    flat, inputs, how = features.reshape(-1), features.shape[1], carray(pointer_of(job[1]), 1, np.int64)[HOW]
    row = start
    while row < stop:
        left = stop - row
        groups = (left + job[TOGETHER] - 1) // job[TOGETHER]
        rows = (left + groups - 1) // groups if counters.shape[0] == 0 else 1
        count = list_inputs(rows, flat, row * inputs, inputs, inputs, columns, factors, job[WIDEST] + 1, how)
        many = multiplicity[row]
        if not _take_rows(row, rows, count, layers, job, out, many, droppable_from, state, counters):
            out[row : row + rows, :] = np.float32(0)
        row += rows


@compiled
def run_sparse_rows(indptr: Array, indices: Array, entries: Array, start: int, stop: int, layers: int, job: Array,
                    out: Array, multiplicity: Array, droppable_from: int, state: Array,
                    counters: Array) -> None:  # fmt: skip
    """Take CSR rows start to stop through all layers, one by one; see `run_rows`."""
    columns, factors = carray(pointer_of(job[6]), 1, np.uint32), carray(pointer_of(job[7]), 1, np.float32)
    numbers = carray(pointer_of(job[1]), 1, np.int64)
    is_gathered, inputs = numbers[HOW] == GATHERED, numbers[INPUTS]
    for row in range(start, stop):
        count = indptr[row + 1] - indptr[row]
        if is_gathered:
            for column in range(inputs + 1):
                factors[column] = np.float32(0)
        for place in range(count):
            entry = indptr[row] + place
            to = np.int64(indices[entry]) if is_gathered else place
            columns[place], factors[to] = np.uint32(indices[entry]), entries[0 if entries.size == 1 else entry]
        if not _take_rows(row, 1, count, layers, job, out, multiplicity[row], droppable_from, state, counters):
            out[row, :] = np.float32(0)


class RowByRow:
    """A `SparseChain` of these kernels, for one thread at a time. It keeps every row, and computes all equal ones."""

    def __init__(self, stack: Stack, problem: SparseProblem, name: str = NAME) -> None:
        self._name, self._layers = name, len(stack.layers)
        self._weights = stack.slices if name == NAME else stack.gathered
        self._inputs, self._outputs = stack.layers[0].inputs, stack.layers[-1].outputs
        self._droppable_from = problem.droppable_from
        self._memory = RowMemory(self._weights)
        self._ones = np.ones(problem.rows, np.int64)
        self._uncounted = np.zeros((0, 4), np.int64)
        self._counters = self._uncounted

    @property
    def nbytes(self) -> int:
        """Memory that it keeps for rows, in bytes."""
        return int(self._memory.nbytes + self._ones.nbytes)

    def run(self, features: Features, counting: bool, multiplicity: Array | None = None) -> RowsLeft:
        """Take rows through all layers; see `SparseChain`. Rows that have died are left as zeros."""
        rows = features.shape[0]
        if rows > self._ones.size or features.shape[1] != self._inputs:
            limits = f"up to {self._ones.size:,} rows of {self._inputs:,} numbers"
            raise ShapeError(f"a chain that was made for {limits} was given rows of shape {features.shape}")
        out = np.empty((rows, self._outputs), np.float32)
        many = self._ones if multiplicity is None else multiplicity
        if rows > 1 and not self._weights.is_split and rows * self._weights.edges >= SHARED_EDGES:
            self._counters = self._shared(features, out, many, counting)
            return RowsLeft(out)
        self._counters = np.zeros((self._layers, 4), np.int64) if counting else self._uncounted
        state = row_threads() if self._weights.is_split else NO_THREADS
        self._run_of(features)(0, rows, self._layers, self._memory.job, out, many, self._droppable_from,
                               state, self._counters)  # fmt: skip
        return RowsLeft(out)

    def counts(self) -> tuple[LayerCounts, ...]:
        """Return what the last run counted, layer by layer; nothing if it was not told to."""
        return tuple(LayerCounts(self._name, *map(int, counted)) for counted in self._counters)

    @staticmethod
    def _run_of(features: Features) -> Callable[..., None]:
        if isinstance(features, CSR):
            return partial(run_sparse_rows, features.indptr, features.indices, features.values)
        return partial(run_rows, read_only(np.ascontiguousarray(features)))

    def _shared(self, features: Features, out: Array, multiplicity: Array, counting: bool) -> Array:
        """Share rows among threads; returns the counters."""
        rows, layers = features.shape[0], self._layers if counting else 0
        tasks = _tasks(rows, self._weights.edges, thread_count())
        run = self._run_of(features)

        def take(bounds: tuple[int, int]) -> Array:
            counters, memory = np.zeros((layers, 4), np.int64), RowMemory(self._weights)
            run(*bounds, self._layers, memory.job, out, multiplicity, self._droppable_from,
                NO_THREADS, counters)  # fmt: skip
            return counters

        work = chunks(rows, max(1, parts_of(rows, tasks)))
        return sum(map_threads(take, work), np.zeros((layers, 4), np.int64))


def _tasks(rows: int, edges: int, threads: int) -> int:
    return max(1, min(TASKS * threads, rows, rows * edges // SHARED_EDGES))


def _threads_of_rows(layers: Sequence[SparseLinear], rows: int, threads: int) -> int:
    """Return how many of some threads take rows of their own: one where they share layers."""
    if any(sharing_threads(layer, threads) > 1 for layer in layers):
        return 1
    return min(_tasks(rows, sum(layer.edges for layer in layers), threads), threads)


@example
def _row_examples() -> None:
    weights = CSC((1, 1), np.array([0, 1]), np.zeros(1, np.uint16), np.ones(1, np.float32))
    stack = Stack([SparseLinear(weights, None, ReLU())], [np.ones(1, np.int64)], Workspace())
    row_threads()
    for name in (NAME, GATHERING):
        chain = RowByRow(stack, SparseProblem(1, "dense", 1, False), name)
        for features in (np.ones((1, 1), np.float32), from_dense(np.ones((1, 1)))):
            chain.run(features, False)


PRIOR = Prior(compute=1.0)
EDGE_BYTES = 8  # bytes of a weight with its index
VALUE_EDGES = 8  # weights that are multiplied in the time in which an input finds its row of weights
LIVE = 0.5  # the share of non-zeros that ReLU is taken to leave
GATHERED_EDGE = 0.5  # time of a weight that is gathered, in that of one that is scattered, on an Intel Xeon


def rows_seconds(machine: Machine, layers: Sequence[SparseLinear], rows: int) -> float:
    """Estimate the time of layers for rows without zeros, none of which dies."""
    threads = _threads_of_rows(layers, rows, machine.multiprocessors)
    groups, products, live = parts_of(rows, rows_together(layers)), 0.0, 1.0
    for layer in layers:
        cost = live * groups * (edge_cost(layer, parts_of(rows, groups)) + VALUE_EDGES * layer.inputs)
        products += cost / sharing_threads(layer, machine.multiprocessors) if threads == 1 else cost
        live = LIVE if isinstance(layer.activation, ReLU) else 1.0
    return shared_seconds(PRIOR, machine, threads, products, products * EDGE_BYTES)


def gathered_seconds(machine: Machine, layers: Sequence[SparseLinear], rows: int) -> float:
    """Estimate the time of layers for rows whose inputs are all gathered; infinite where the processor cannot."""
    if not all(can_gather(layer.inputs) for layer in layers):
        return float("inf")
    threads, products = _threads_of_rows(layers, rows, machine.multiprocessors), 0.0
    for layer in layers:
        cost = GATHERED_EDGE * rows * layer.edges
        products += cost / sharing_threads(layer, machine.multiprocessors) if threads == 1 else cost
    return shared_seconds(PRIOR, machine, threads, products, products * EDGE_BYTES)


ROWS = register(
    SparseKernel(
        name=NAME,
        device="cpu",
        summary="row by row through all layers, non-zeros alone; for few rows",
        auto=True,
        fuses=True,
        seconds=rows_seconds,
        prepare=RowByRow,
        keeps_rows=True,
        reproducible=True,
        own_outputs=True,
        is_compiled=True,
    )
)
GATHERED_ROWS = register(
    SparseKernel(
        name=GATHERING,
        device="cpu",
        summary="row by row through all layers, inputs gathered along the vector lanes; for few rows",
        needs=("AVX-512 (without it, as `rows`)",),
        auto=True,
        fuses=True,
        seconds=gathered_seconds,
        prepare=partial(RowByRow, name=GATHERING),
        keeps_rows=True,
        reproducible=True,
        own_outputs=True,
        is_compiled=True,
    )
)
