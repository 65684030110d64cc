"""Panels: a tile of rows side by side along the vector lanes, taken through many layers while it stays in cache.

A panel holds up to `TILE` rows as a matrix of a line for each neuron, whose numbers, whole vectors of them, are those
of the rows. An output neuron is a weighted sum of a few panel lines, so every multiply-add works on full vector
registers whatever the sparsity pattern.
Zeros are multiplied too: a lane of a vector costs far less than a scattered scalar update. Where rows of CSR are sparse
enough, their first layer is computed from their non-zeros alone, each scattered through its row of weights.

A layer with many weights is computed block by block of its inputs, so that their lines stay in the first-level cache
while every output adds up its products with them.

Rows that have died leave the panel as soon as a quarter of it is dead; the rest move together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import carray

from sparsenn.backends.chains import SAME_ROWS, Features, LayerCounts, RowMap, RowsLeft, SparseProblem
from sparsenn.backends.cpu.packed import blocks_of
from sparsenn.backends.cpu.panel_layers import (
    ACTIVATIONS,
    BIAS,
    CLIPS,
    COPIES,
    SLICE_WORK,
    SLICES_OF_THREAD,
    STARTS,
    WEIGHT_BYTES,
    WIDTHS,
    enter_rows,
    finish_line,
    lanes_across,
    run_layers,
)
from sparsenn.backends.cpu.processor import CACHE_BYTES, PANELS, shared_seconds
from sparsenn.backends.cpu.row_threads import NO_THREADS, row_threads
from sparsenn.backends.cpu.rows import distinct_rows
from sparsenn.backends.cpu.scratch import Scratch
from sparsenn.backends.cpu.slices import MOST_THREADS, pointer_of
from sparsenn.backends.cpu.stack import Stack, StackSize
from sparsenn.backends.cpu.tiles import TILE, VECTOR
from sparsenn.backends.kernel_records import SparseKernel, StepInput, StepOutput
from sparsenn.backends.machine import Machine
from sparsenn.backends.registry import register
from sparsenn.backends.sizes import FLOAT_BYTES, parts_of
from sparsenn.formats import CSR, Array, from_dense
from sparsenn.formats.arrays import read_only
from sparsenn.layers import SparseLinear
from sparsenn.runtime.jit import compiled
from sparsenn.runtime.workers import chunks, map_threads, thread_count

CHUNK_WORK = 1 << 23
"""Multiply-adds, if no row dies, that a thread takes at a time: more work than the hand-over."""

CALL_SECONDS = 8e-6  # what a launch takes around the work

EDGE_LANES = 10  # lanes that are multiplied in the time of a weight's other instructions

TILES = 4  # of a layer that threads share, at most: each slice reads its weights once for as many


@compiled
def _finish_scatter(job: Array, layer: int, panel: Array, stride: int, lanes: int, counts: Array) -> None:
    kind = carray(pointer_of(job[ACTIVATIONS]), 1, np.int64)[layer]
    clip = carray(pointer_of(job[CLIPS]), 1, np.float32)[layer]
    slot = carray(pointer_of(job[STARTS]), 1, np.int64)[layer]
    bias, copies = carray(pointer_of(job[BIAS]), 1, np.float32), carray(pointer_of(job[COPIES]), 1, np.int32)
    counts[:lanes] = 0
    for output in range(carray(pointer_of(job[WIDTHS]), 1, np.int64)[layer + 1]):
        finish_line(kind, clip, bias[slot + output], copies[slot + output], panel, output * stride, lanes, counts)


@compiled
def run_csr(indptr: Array, indices: Array, values: Array, by_rows: Any, scatter: bool, start: int, stop: int,
            job: Array, first: int, last: int, weights: Array, droppable_from: int, buffer: Array, source: int,
            target: int, most: int, out: Array, survivors: Array, counters: Array, state: Array) -> int:  # fmt: skip
    """Run CSR rows start to stop in panels of at most `most`; returns how many were written to `out`, from start on.

    buffer : panels of `source` and `target` numbers, then counts of `most` rows for each slice of a layer.
    """
    widths = carray(pointer_of(job[WIDTHS]), 1, np.int64)
    live, rows = np.empty(most, np.int64), np.empty(most, np.int64)
    a, b = buffer[:source], buffer[source : source + target]
    counts = buffer[source + target :].view(np.int32)
    pointers, targets, multipliers = by_rows
    iso, written = values.size == 1, start
    for base in range(start, stop, most):
        lanes = min(most, stop - base)
        across = lanes_across(lanes)
        step = np.uintp(across)
        a[: across * (widths[first + 1] if scatter else widths[first])] = np.float32(0)
        edges = 0
        for lane in range(lanes):
            rows[lane] = base + lane
            for entry in range(indptr[base + lane], indptr[base + lane + 1]):
                value = values[0] if iso else values[entry]
                if scatter:
                    column = indices[entry]
                    edges += pointers[column + 1] - pointers[column]
                    for edge in range(np.uintp(pointers[column]), np.uintp(pointers[column + 1])):
                        a[np.uintp(targets[edge]) * step + np.uintp(lane)] += value * multipliers[edge]
                else:
                    a[np.uintp(indices[entry]) * step + np.uintp(lane)] = value
        if scatter:
            _finish_scatter(job, first, a, across, across, counts)
        lanes = run_layers(job, first, last, first + (1 if scatter else 0), edges, a, b, rows, lanes, counts, live,
                           weights, droppable_from, out, written, counters, state)  # fmt: skip
        survivors[written : written + lanes] = rows[:lanes]
        written += lanes
    return written - start


@compiled
def run_dense(features: Array, start: int, stop: int, job: Array, first: int, last: int, weights: Array,
              droppable_from: int, buffer: Array, source: int, target: int, most: int, out: Array, survivors: Array,
              counters: Array, state: Array) -> int:  # fmt: skip
    """Run dense rows as `run_csr`, none of them by scattering."""
    live, rows = np.empty(most, np.int64), np.empty(most, np.int64)
    a, b = buffer[:source], buffer[source : source + target]
    counts = buffer[source + target :].view(np.int32)
    written = start
    for base in range(start, stop, most):
        lanes = min(most, stop - base)
        for lane in range(lanes):
            rows[lane] = base + lane
        enter_rows(job, first, features, base, lanes, a, counts, state)
        lanes = run_layers(job, first, last, first, 0, a, b, rows, lanes, counts, live, weights, droppable_from, out,
                           written, counters, state)  # fmt: skip
        survivors[written : written + lanes] = rows[:lanes]
        written += lanes
    return written - start


_scratch = Scratch()


def _panel_rows(rows: int, threads: int) -> int:
    """Return the rows of a panel at most: as even for all threads as whole vectors are, and `TILE` of them at most."""
    share = parts_of(rows, threads)
    panels = parts_of(share, TILE)
    return max(1, parts_of(share, panels * VECTOR)) * VECTOR if rows else VECTOR


def _chunk(rows: int, edges: int, threads: int) -> int:
    """Return the rows that a thread takes at a time: whole panels, as many for all threads."""
    panel = _panel_rows(rows, threads)
    panels = parts_of(parts_of(rows, threads), panel)
    most = max(1, min(panels, CHUNK_WORK // max(1, edges * panel)))
    return parts_of(panels, parts_of(panels, most)) * panel


def _is_shared(rows: int, edges: int, threads: int, is_single: bool) -> bool:
    """Return whether threads share each layer of a panel.

    Panels are too few, or to hand them over takes longer; or there is one layer, `is_single`, for whose slices all
    threads are of use.
    """
    most = min(threads, MOST_THREADS)
    return (is_single and most == threads) or rows < TILE * most or rows * edges < CHUNK_WORK


class _Memory(NamedTuple):
    """The numbers of a panel that is read, and of one that is written, the rows of a panel, and numbers in all."""

    source: int
    target: int
    most: int
    size: int


def _memory(size: StackSize, most: int, slices: int, is_single: bool) -> _Memory:
    """Return the memory of a thread for panels, of some rows at most, of layers of a size."""
    source = (size.inputs + 1 if is_single else size.widest + 1) * most
    target = (size.widest + 1) * min(most, TILE)
    return _Memory(source, target, most, source + target + slices * parts_of(most, TILE) * TILE)


def _shared_memory(size: StackSize, rows: int, threads: int, is_single: bool) -> _Memory:
    tiles = 1
    if is_single:  # tiles are read again for each slice, weights for each group of tiles
        fitting = max(CACHE_BYTES // 2, WEIGHT_BYTES * size.edges) // (FLOAT_BYTES * TILE * size.inputs)
        tiles = max(1, min(parts_of(rows, TILE), TILES, fitting))
    return _memory(size, tiles * TILE, SLICES_OF_THREAD * min(threads, MOST_THREADS), is_single)


def _launch(step: StepInput, scatter: bool) -> StepOutput:
    stack: Stack = step.stack
    size, rows, threads = stack.size_of(step.first, step.last), step.features.shape[0], thread_count()
    features = step.features
    if scatter and not isinstance(features, CSR):
        features = from_dense(features)
    is_single = step.last == step.first + 1 and not isinstance(features, CSR)
    is_shared, state = _is_shared(rows, size.edges, threads, is_single), NO_THREADS
    if is_shared:
        memory, state = _shared_memory(size, rows, threads, is_single), row_threads()
    else:
        memory = _memory(size, _panel_rows(rows, threads), 1, False)
    layers, survivors = step.last - step.first if step.counting else 0, np.empty(rows, np.int64)
    if step.last == len(stack.layers):
        out = np.empty((rows, size.outputs), np.float32)
    else:
        out = stack.workspace.next(rows, size.outputs)

    def run(bounds: tuple[int, int]) -> tuple[int, Array]:
        """Write the rows that are left behind one another, from the place of the first; return how many."""
        counters, buffer = np.zeros((layers, 4), np.int64), _scratch.take("panels", memory.size)
        shared: tuple[Any, ...] = (
            *bounds, stack.job(), step.first, step.last, step.multiplicity, step.droppable_from, buffer, *memory[:3],
            out, survivors, counters, state,
        )  # fmt: skip
        if isinstance(features, CSR):
            by_rows = stack.by_rows(step.first) if scatter else stack.no_rows
            entries = features.indptr, features.indices, features.values
            return run_csr(*entries, by_rows, scatter, *shared), counters
        return run_dense(read_only(np.ascontiguousarray(features, np.float32)), *shared), counters

    work = [(0, rows)] if is_shared else [*chunks(rows, _chunk(rows, size.edges, threads))]
    done = map_threads(run, work)
    count = _close_up(out, survivors, [start for start, _ in work], [written for written, _ in done])
    counted = np.sum([each for _, each in done], axis=0).tolist() if layers else ()
    return StepOutput(
        features=out[:count],
        row_map=SAME_ROWS if count == rows else RowMap.of_survivors(survivors[:count], rows),
        counts=tuple(
            LayerCounts("scatter" if scatter and layer == 0 else "panel", *each) for layer, each in enumerate(counted)
        ),
    )


def _close_up(out: Array, survivors: Array, starts: Sequence[int], counts: Sequence[int]) -> int:
    """Move some rows from each start together; return how many there are."""
    count = 0
    for start, some in zip(starts, counts, strict=True):
        if start != count:
            out[count : count + some] = out[start : start + some]
            survivors[count : count + some] = survivors[start : start + some]
        count += some
    return count


def _uncounted(stack: Stack, problem: SparseProblem) -> Callable[[Features], RowsLeft] | None:
    """Return a function that takes rows through layers that threads share, with nothing around the compiled call."""
    layers = len(stack.layers)
    size, droppable_from, threads = stack.size_of(0, layers), problem.droppable_from, thread_count()
    if problem.form != "dense" or not _is_shared(problem.rows, size.edges, threads, layers == 1):
        return None
    memory = _shared_memory(size, problem.rows, threads, layers == 1)
    job, no_rows, no_counters = stack.job(), np.zeros(0, np.int64), np.zeros((0, 4), np.int64)

    def run(features: Features) -> RowsLeft:
        rows = features.shape[0]
        out, survivors = np.empty((rows, size.outputs), np.float32), np.empty(rows, np.int64)
        numbers, buffer = read_only(np.ascontiguousarray(features, np.float32)), _scratch.take("panels", memory.size)
        count = run_dense(numbers, 0, rows, job, 0, layers, no_rows, droppable_from, buffer, *memory[:3], out,
                          survivors, no_counters, row_threads())  # fmt: skip
        return RowsLeft(out) if count == rows else RowsLeft(out[:count], RowMap.of_survivors(survivors[:count], rows))

    return run


def launch_panel(step: StepInput) -> StepOutput:
    """Run any number of layers in panels; the first one by scattering if `step.scatter` asks for it."""
    return _launch(step, step.scatter)


def launch_scatter(step: StepInput) -> StepOutput:
    """Run one layer by scattering each non-zero through its row of weights (Gustavson's row-wise product)."""
    return _launch(step, scatter=True)


def panel_seconds(machine: Machine, layers: Sequence[SparseLinear], rows: int) -> float:
    """Estimate the time of layers in one launch, no row of which dies."""
    threads, edges = machine.multiprocessors, sum(layer.edges for layer in layers)
    values = (layers[0].inputs + layers[-1].outputs) * rows
    products = sum(layer.edges + blocks_of(layer) * layer.outputs for layer in layers)
    if _is_shared(rows, edges, threads, len(layers) == 1):
        lanes = parts_of(rows, VECTOR) * VECTOR
        busy = max(1, min(threads, MOST_THREADS, products * lanes // (len(layers) * SLICE_WORK)))
        work = products * (lanes + parts_of(lanes, TILE) * EDGE_LANES) * threads / busy
        return CALL_SECONDS + PANELS.seconds(machine, work, FLOAT_BYTES * values)
    lanes = _panel_rows(rows, threads)
    rounds = parts_of(parts_of(rows, lanes), threads) * threads
    work = rounds * products * (lanes + EDGE_LANES)
    return CALL_SECONDS + shared_seconds(PANELS, machine, threads, work, FLOAT_BYTES * values)


PANEL = register(
    SparseKernel(
        name="panel",
        device="cpu",
        summary="rows along the vector lanes, many layers while a tile of rows stays in cache",
        launch=launch_panel,
        auto=True,
        fuses=True,
        seconds=panel_seconds,
        uncounted=_uncounted,
        distinct_rows=distinct_rows,
        reproducible=True,
        own_outputs=True,
        is_compiled=True,
    )
)
SCATTER = register(
    SparseKernel(
        name="scatter",
        device="cpu",
        summary="only non-zeros, each scattered through its row of weights",
        launch=launch_scatter,
        distinct_rows=distinct_rows,
        reproducible=True,
    )
)
