"""Execute: the layer loop. Batches of rows go through the layers; dead rows leave, equal rows become one."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsenn.backends import Features, Kernel, LayerCounts, StepInput
from sparsenn.engine.clock import Clock
from sparsenn.engine.finite import HalfRange, RangeWatch, check_inputs
from sparsenn.engine.plan import Plan, plan
from sparsenn.engine.result import BatchOutput, LayerStatistics, Result
from sparsenn.engine.sections import Pace, Section
from sparsenn.engine.segments import PreparedSegments
from sparsenn.errors import OutOfMemoryError, ShapeError
from sparsenn.formats import CSR, Array
from sparsenn.network import Network
from sparsenn.progress import Progress, silent

__all__ = ["execute", "infer"]


@dataclass
class _LayerTotal:
    """What is added up for one layer, over a batch or over all of them."""

    kernel: str = ""
    rows: int = 0
    active_inputs: int | None = 0
    nonzeros: int | None = 0
    performed_edges: int = 0
    distinct: int | None = None
    seconds: float = 0.0

    def add(self, counts: LayerCounts, seconds: float) -> None:
        self.kernel = self.kernel or counts.kernel
        self.rows += counts.rows
        self.active_inputs = _sum_known(self.active_inputs, counts.active_inputs)
        self.nonzeros = _sum_known(self.nonzeros, counts.nonzeros)
        self.performed_edges += counts.performed_edges
        self.seconds += seconds
        self.add_distinct(counts.distinct)

    def add_distinct(self, distinct: int | None) -> None:
        if distinct is not None:
            self.distinct = (self.distinct or 0) + distinct

    def add_batch(self, batch: _LayerTotal) -> None:
        counted = batch.rows, batch.active_inputs, batch.nonzeros, batch.performed_edges
        self.add(LayerCounts(batch.kernel, *counted, batch.distinct), batch.seconds)


def _sum_known(one: int | None, other: int | None) -> int | None:
    """Add two counts; what is not known stays so."""
    return None if one is None or other is None else one + other


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


class _Steps:
    """Progress over all batches, in layers times batches as planned; it never goes back, whatever is done again."""

    def __init__(self, progress: Progress, plan: Plan) -> None:
        self._progress = progress
        self._layers, self._inputs = len(plan.network), plan.inputs
        self._total = self._layers * len(plan.batches)
        self._reached = 0

    def report(self, first: int, last: int, layers: int) -> None:
        """Take note that the inputs before `first` are done, and those from there to `last` up to so many layers."""
        done = first * self._layers + (last - first) * layers
        self._reached = max(self._reached, self._total * done // (self._inputs * self._layers))
        self._progress("layers", self._reached, self._total)


@dataclass(frozen=True)
class _Run:
    """What all batches of a run share."""

    plan: Plan
    weights: PreparedSegments
    clock: Clock
    steps: _Steps
    half_range: HalfRange


@dataclass
class _Batch:
    """Inputs `first` to `last` on their way through the layers.

    totals : what has been counted, by layer.
    watch : of numbers that half precision cannot hold.
    pace : how often rows are looked at.
    """

    first: int
    last: int
    rows: _Rows
    totals: Sequence[_LayerTotal]
    watch: RangeWatch
    pace: Pace = field(default_factory=Pace)


def execute(plan: Plan, inputs: CSR, progress: Progress = silent) -> Result:
    """Run a plan, as `sparsenn.execute` does, which says more, with inputs that are CSR of (rows, network.inputs)."""
    if inputs.shape != (plan.inputs, plan.network.inputs):
        raise ShapeError(f"the plan is for inputs of shape {(plan.inputs, plan.network.inputs)}, not {inputs.shape}")
    if plan.has_image_layers:
        check_inputs(inputs)
    clock = Clock(plan.backend)
    totals = [_LayerTotal() for _ in plan.network]
    batches, categories = [], [np.zeros(0, np.int64)]
    first, size, too_many = 0, plan.batch_size, 0
    with PreparedSegments(plan) as weights:
        run = _Run(plan, weights, clock, _Steps(progress, plan), HalfRange(plan.network, plan.backend))
        while first < plan.inputs:
            last = min(first + size, plan.inputs)
            counted = [_LayerTotal() for _ in plan.network]
            fitting = None
            try:
                batch = _run_batch(run, inputs.slice_groups(first, last), first, counted)
            except (OutOfMemoryError, MemoryError) as error:
                if last - first == 1:
                    raise
                fitting = error.fitting if isinstance(error, OutOfMemoryError) else 0
            if fitting is not None:  # past the handler: only now are the failed batch's arrays let go of
                too_many = too_many or last - first
                half = (last - first) // 2  # at least: what is free may be told wrong, or lie in pieces
                size = min(fitting, half) if fitting > 0 else half
                weights.drop()
                gc.collect()
                plan.backend.release()
                continue
            for total, part in zip(totals, counted, strict=True):
                total.add_batch(part)
            categories.append(first + np.flatnonzero(batch.active()))
            batches.append(batch)
            first = last
    return Result(
        plan=plan,
        inputs=plan.inputs,
        neurons=plan.network.inputs,
        layers=len(plan.network),
        edges=plan.network.multiply_adds,
        categories=np.concatenate(categories),
        statistics=_statistics(plan.network, totals),
        seconds=clock.seconds(plan.seconds),
        batches=tuple(batches),
        notes=_notes(too_many, size),
    )


def _notes(too_many: int, taken: int) -> tuple[str, ...]:
    if not too_many:
        return ()
    return (f"Memory did not suffice for {too_many:,} rows at a time: {taken:,} were taken.",)


def _run_batch(run: _Run, inputs: CSR, first: int, totals: Sequence[_LayerTotal]) -> BatchOutput:
    """Take one batch of inputs, the first of them number `first`, through all layers."""
    plan, count = run.plan, inputs.shape[0]
    with run.clock.part("transfer"):
        features = plan.backend.place(inputs)
    rows = _Rows(features, np.ones(count, np.int64), np.arange(count))
    del features  # `rows` alone holds them, so that a launch's inputs go once its outputs are there
    batch = _Batch(first, first + count, rows, totals, run.half_range.watch())
    for number, section in enumerate(plan.sections):
        if not _finished(run, batch, section, section.first):
            _run_segment(run, batch, number)
    with run.clock.part("transfer"):
        return BatchOutput(plan.backend.fetch(rows.features), rows.owner)


def _run_segment(run: _Run, batch: _Batch, number: int) -> None:
    """Take a batch through the layers of one segment; its weights are let go of on return."""
    plan, rows, section = run.plan, batch.rows, run.plan.sections[number]
    layer, last = section.first, section.last
    following = number + 1 if number + 1 < len(plan.segments) else 0 if batch.last < plan.inputs else None
    with run.clock.part("prepare"):
        stack = run.weights.get(number, following)
    while layer < last:
        if _finished(run, batch, section, layer):
            return
        kernel, before = section.kernel_for(layer, rows.count), rows.count
        stop = section.end(kernel, layer, batch.pace, plan.compaction or plan.deduplication)
        stop = batch.watch.before(kernel, rows.features, layer, stop)
        launched = stack
        if section.is_whole and (layer, stop) != (section.first, last):
            with run.clock.part("prepare"):
                launched = run.weights.part(section.part(layer, stop))
        _run_layers(run, batch, section, kernel, launched, layer, stop)
        section.keep_pace(batch.pace, before, rows.count)
        layer = stop
        run.steps.report(batch.first, batch.last, layer)


def _run_layers(run: _Run, batch: _Batch, section: Section, kernel: Kernel, stack: Any, layer: int, stop: int) -> None:
    """One launch: Y' = act(Y·W + b) for layers `layer` to `stop`; then dead rows go, and equal rows become one."""
    plan, rows, totals, origin = run.plan, batch.rows, batch.totals, section.first
    start = run.clock.now()
    step = StepInput(
        stack=stack,
        first=layer - origin,
        last=stop - origin,
        features=rows.features,
        multiplicity=rows.multiplicity,
        droppable_from=(plan.droppable_from if plan.compaction else len(plan.network)) - origin,
        scatter=plan.adaptive and section.scatters(layer, rows.features),
        deduplicate=plan.deduplication,
    )
    output = section.launch(kernel, step, layer, stop)
    batch.watch.after(kernel, output.features, layer, stop)
    rows.replace(output.features, output.owners(rows.count))
    if plan.deduplication and section.groups_after(kernel, stop):
        _deduplicate(plan, rows)
        totals[stop - 1].add_distinct(rows.count)
    seconds = run.clock.now() - start
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


def _finished(run: _Run, batch: _Batch, section: Section, layer: int) -> bool:
    """Whether no row is left to compute from `layer` on in its section, nor will be revived there; then count that."""
    plan, rows = run.plan, batch.rows
    if rows.count or layer < plan.droppable_from:
        return False
    distinct = 0 if plan.deduplication and section.finds_equal_rows else None
    for number, chosen in section.chosen(layer, rows=0).items():
        batch.totals[number].add(LayerCounts(chosen.kernel.name, 0, 0, 0, 0, distinct), 0.0)
    rows.features = np.zeros((0, plan.merged.network.sizes[section.last]), np.float32)
    run.steps.report(batch.first, batch.last, section.last)
    return True


def _statistics(network: Network, totals: Sequence[_LayerTotal]) -> tuple[LayerStatistics, ...]:
    return tuple(
        LayerStatistics(
            layer=number,
            kernel=total.kernel,
            rows=total.rows,
            active_rows=total.active_inputs,
            distinct_rows=total.distinct,
            nonzeros=total.nonzeros,
            density=_density(total, outputs),
            performed_edges=total.performed_edges,
            seconds=total.seconds,
        )
        for number, (outputs, total) in enumerate(zip(network.sizes[1:], totals, strict=True), start=1)
    )


def _density(total: _LayerTotal, outputs: int) -> float | None:
    if total.nonzeros is None or total.active_inputs is None:
        return None
    return total.nonzeros / (total.active_inputs * outputs) if total.active_inputs else 0.0


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
