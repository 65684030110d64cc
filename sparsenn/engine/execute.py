"""Execute: the layer loop. Batches of rows go through the layers; dead rows leave, equal rows become one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenn.backends import Features, LayerCounts, StepInput
from sparsenn.engine.plan import Plan, plan
from sparsenn.engine.result import BatchOutput, LayerStatistics, Result, Seconds
from sparsenn.errors import ShapeError
from sparsenn.formats import CSR, Array
from sparsenn.network import Network
from sparsenn.progress import Progress, silent

__all__ = ["execute", "infer"]


@dataclass
class _LayerTotal:
    """What is added up for one layer over all batches."""

    kernel: str = ""
    rows: int = 0
    active_inputs: int = 0
    nonzeros: int = 0
    performed_edges: int = 0
    distinct: int | None = None
    seconds: float = 0.0

    def add(self, counts: LayerCounts, seconds: float) -> None:
        self.kernel = self.kernel or counts.kernel
        self.rows += counts.rows
        self.active_inputs += counts.active_inputs
        self.nonzeros += counts.nonzeros
        self.performed_edges += counts.performed_edges
        self.seconds += seconds
        self.add_distinct(counts.distinct)

    def add_distinct(self, distinct: int | None) -> None:
        if distinct is not None:
            self.distinct = (self.distinct or 0) + distinct


@dataclass
class _Rows:
    """The rows in flight: their features, the inputs each stands for, and the row that each input has."""

    features: Features
    multiplicity: Array
    owner: Array

    @property
    def count(self) -> int:
        return int(self.features.shape[0])

    def replace(self, features: Features, moved: Array) -> None:
        """Go on with `features`; `moved` says which of them each row has become, -1 for one that died."""
        alive = moved >= 0
        self.multiplicity = _sum_by(moved[alive], self.multiplicity[alive], features.shape[0])
        self.owner = np.append(moved, -1)[self.owner]  # owner -1 reads, and keeps, the last -1
        self.features = features


def execute(plan: Plan, inputs: CSR, progress: Progress = silent) -> Result:
    """Run a plan. One run at a time: its backend keeps buffers from launch to launch, and from run to run.

    Parameters
    ----------
    plan : made by `sparsenn.plan` for inputs of this shape.
    inputs : CSR of shape (rows, network.inputs).
    progress : told of every layer done; steps are layers times batches.

    Raises
    ------
    ShapeError
        The inputs are not those the plan was made for.
    """
    if inputs.shape != (plan.inputs, plan.network.inputs):
        raise ShapeError(f"the plan is for inputs of shape {(plan.inputs, plan.network.inputs)}, not {inputs.shape}")
    start = time.perf_counter()
    totals = [_LayerTotal() for _ in plan.network]
    batches, categories, transfer = [], [np.zeros(0, np.int64)], 0.0
    stacks: dict[tuple[int, int], Any] = {}
    for number, (first, last) in enumerate(plan.batches):
        moved = time.perf_counter()
        features = plan.backend.place(inputs.slice_groups(first, last))
        transfer += time.perf_counter() - moved
        rows = _Rows(features, np.ones(last - first, np.int64), np.arange(last - first))
        _run_batch(plan, rows, totals, stacks, _batch_progress(progress, number, plan))
        moved = time.perf_counter()
        batch = BatchOutput(plan.backend.fetch(rows.features), rows.owner)
        transfer += time.perf_counter() - moved
        categories.append(first + np.flatnonzero(batch.active()))
        batches.append(batch)
    compute = time.perf_counter() - start - transfer
    return Result(
        plan=plan,
        inputs=plan.inputs,
        neurons=plan.network.inputs,
        layers=len(plan.network),
        edges=plan.network.edges,
        categories=np.concatenate(categories),
        statistics=_statistics(plan.network, totals),
        seconds=Seconds(plan=plan.seconds, transfer=transfer, compute=compute),
        batches=tuple(batches),
    )


def _run_batch(
    plan: Plan, rows: _Rows, totals: Sequence[_LayerTotal], stacks: dict[tuple[int, int], Any], progress: Progress
) -> None:
    """Take one batch of rows through all layers."""
    depth = plan.depth(1, 1.0)
    for segment in plan.segments:
        first, last = segment
        stack = stacks.get(segment)
        if stack is None:
            stack = plan.backend.prepare(plan.merged.network.layers[first:last], plan.merged.copies[first:last])
            if len(plan.segments) == 1:
                stacks[segment] = stack
        layer = first
        while layer < last:
            if not rows.count and layer >= plan.droppable_from:
                _count_nothing(plan, totals, layer, last, progress)
                rows.features = np.zeros((0, plan.merged.network[last - 1].outputs), np.float32)
                break
            stop = min(layer + depth, last)
            before = rows.count
            _run_layers(plan, rows, stack, first, layer, stop, totals)
            depth = plan.depth(depth, 1 - rows.count / max(1, before))
            layer = stop
            progress("layers", layer, len(plan.network))


def _run_layers(
    plan: Plan, rows: _Rows, stack: Any, origin: int, layer: int, stop: int, totals: Sequence[_LayerTotal]
) -> None:
    """One launch: Y' = act(Y·W + b) for layers `layer` to `stop`; then dead rows go, and equal rows become one."""
    start = time.perf_counter()
    step = StepInput(
        stack=stack,
        first=layer - origin,
        last=stop - origin,
        features=rows.features,
        multiplicity=rows.multiplicity,
        droppable_from=(plan.droppable_from if plan.compaction else len(plan.network)) - origin,
        scatter=plan.scatters(layer, rows.features),
        deduplicate=plan.deduplication,
    )
    output = plan.kernel.launch(step)
    rows.replace(output.features, output.owners(rows.count))
    if plan.deduplication and not plan.kernel.groups_rows:
        _deduplicate(plan, rows)
        totals[stop - 1].add_distinct(rows.count)
    seconds = time.perf_counter() - start
    edges = sum(counts.performed_edges for counts in output.counts)
    for number, counts in enumerate(output.counts, start=layer):
        share = counts.performed_edges / edges if edges else 1 / len(output.counts)
        totals[number].add(counts, seconds * share)


def _sum_by(groups: Array, numbers: Array, count: int) -> Array:
    """Add up int64 numbers by group; doubles in between are exact up to 2^53."""
    return np.bincount(groups, numbers, count).astype(np.int64)


def _deduplicate(plan: Plan, rows: _Rows) -> None:
    """Keep one of each set of equal rows, and let the inputs of the others share it."""
    representatives, group = plan.backend.equal_rows(rows.features)
    if representatives.size == rows.count:
        return
    rows.replace(plan.backend.take_rows(rows.features, representatives), group)


def _count_nothing(plan: Plan, totals: Sequence[_LayerTotal], first: int, last: int, progress: Progress) -> None:
    """Record layers that had no row left to compute."""
    for number in range(first, last):
        totals[number].add(LayerCounts(plan.kernel.name, 0, 0, 0, 0), 0.0)
        if plan.deduplication:
            totals[number].add_distinct(0)
    progress("layers", last, len(plan.network))


def _batch_progress(progress: Progress, batch: int, plan: Plan) -> Progress:
    """Count layers over all batches."""

    def report(task: str, done: int, total: int) -> None:
        progress(task, batch * total + done, total * len(plan.batches))

    return report


def _statistics(network: Network, totals: Sequence[_LayerTotal]) -> tuple[LayerStatistics, ...]:
    return tuple(
        LayerStatistics(
            layer=number,
            kernel=total.kernel,
            rows=total.rows,
            active_rows=total.active_inputs,
            distinct_rows=total.distinct,
            nonzeros=total.nonzeros,
            density=total.nonzeros / (total.active_inputs * layer.outputs) if total.active_inputs else 0.0,
            performed_edges=total.performed_edges,
            seconds=total.seconds,
        )
        for number, (layer, total) in enumerate(zip(network, totals, strict=True), start=1)
    )


def infer(network: Network, inputs: CSR, *, progress: Progress = silent, **options: Any) -> Result:
    """Plan and execute in one call.

    Parameters
    ----------
    network : the layers.
    inputs : CSR of shape (rows, network.inputs).
    progress : told of every layer done.
    options : the options of `sparsenn.plan`.

    Raises
    ------
    SparseNNError
        As `sparsenn.plan` and `execute` do.
    """
    return execute(plan(network, inputs, **options), inputs, progress)
