"""Executable: a plan bound to weights on the device, and the loop over its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from sparsenn.backends import Features, LayerCounts, RowsLeft, RowsWatch, SparseKernel
from sparsenn.backends.kernel_records import SPARSE_OPERATION
from sparsenn.engine.bound_steps import QUIET, BoundStep, RunContext, bind_step
from sparsenn.engine.finite import HALF_PRECISION, BatchGuard, OverflowGuard
from sparsenn.engine.host_call import HostCall
from sparsenn.engine.image_tiles import run_tiles, spans
from sparsenn.engine.layer_counter import LayerCounter
from sparsenn.engine.plan import Plan
from sparsenn.engine.replay_cache import ReplayCache
from sparsenn.engine.steps import Step
from sparsenn.engine.timer import now, section
from sparsenn.engine.weight_cache import WeightCache
from sparsenn.formats import CSR, Array
from sparsenn.layers import Flatten
from sparsenn.runtime.spans import span, watchers

__all__ = ["Executable"]


class Executable:
    """A plan whose steps can run; `key` is the first item of its replays' keys."""

    def __init__(self, plan: Plan, weights: WeightCache, overflow_guard: OverflowGuard, replays: ReplayCache) -> None:
        self.plan, self.key = plan, object()
        self._replays = replays
        self._weights = weights
        self._overflow_guard = overflow_guard
        self._steps: dict[int, BoundStep] = {}
        self._spans = spans(plan)
        self._borrowed = _borrowed(plan)
        self._is_rehearsed = False
        self._is_one_step = len(plan.steps) == 1 and len(plan.network.nodes[0].sources) == 1

    @property
    def nbytes(self) -> int:
        """Bytes that are cached for rows, replays excluded."""
        return sum(step.nbytes for step in self._steps.values())

    def outputs(
        self, features: Features, context: RunContext, watch: RowsWatch | None = None, replays: bool = True
    ) -> Any:
        """Return each input's outputs, in memory that the caller owns; `watch` checks the features first.

        Where no number has to be checked between layers, rows of a shape that comes again are replayed, if that is
        faster.
        """
        if context.watch is not None or isinstance(features, CSR) or watchers["step"] or self.plan.streams:
            if watch is not None:
                watch.scan(features)
            return self._outputs_of(self.run(features, context))
        outputs = self.replayed(features, features.shape, watch) if replays else None
        if outputs is None:
            outputs = self._outputs(watch, features)
        context.report(len(self.plan.network))
        return outputs

    def replayed(self, rows: Array, shape: tuple[int, int], watch: RowsWatch | None = None) -> Any:
        """Return outputs of contiguous rows on the device, by a replay; None without one, and in its first call."""
        if not self.is_capturable or watchers["step"]:
            return None
        key = self.key, shape, rows.dtype, watch is None
        replay = self._replays.get(key)
        if replay is None:
            replay = self.plan.backend.replay(shape, on_host=False) if rows.size else None
            if replay is not None:
                self._replays.put(key, replay)
            return None
        results = replay(partial(self._results, watch), rows)
        return None if results is None else results[0]

    def _results(self, watch: RowsWatch | None, features: Array) -> tuple[Any]:
        return (self._outputs(watch, features),)

    def host_outputs(self, rows: Array, shape: tuple[int, int], is_checked: bool) -> Array | None:
        """Return outputs of rows in host memory, there; None without a replay, or where a check of numbers fails.

        The caller then runs the steps one by one, which report the number. `shape` is that of the rows as a matrix.
        """
        if watchers["step"]:
            return None
        key = self.key, shape, rows.dtype, is_checked, "host"
        call = self._replays.get(key)
        if call is None:
            steps = self.plan.steps
            is_watched = any(step.kernel.precision == HALF_PRECISION for step in steps)
            guard = self._overflow_guard if is_watched else None
            watch = self._replays.host_watch if is_checked else None
            call = HostCall(self.plan.backend, shape, watch, guard, 2 * len(steps))
            self._replays.put(key, call)
        outputs: Array | None = call(self._guarded, rows)
        return outputs

    def _guarded(self, features: Array, guard: BatchGuard | None) -> Any:
        return self._outputs_of(self.run(features, RunContext(watch=guard)))

    @cached_property
    def is_capturable(self) -> bool:
        """Whether a device can replay the plan: not if a step drops rows, whose number the next step has to await."""
        if self.plan.backend.in_host_memory or self.plan.streams:
            return False
        before = [step.kernel for step in self.plan.steps[:-1]]
        return not any(isinstance(kernel, SparseKernel) and kernel.drops_rows for kernel in before)

    def _outputs(self, watch: RowsWatch | None, features: Array) -> Any:
        """Return outputs of dense rows, and report nothing: by one launch, if the plan is one."""
        if watch is not None:
            watch.scan(features)
        launch = self.launch if self.plan.leaves_outputs else None
        return self._outputs_of(self.run(features, QUIET)) if launch is None else launch(features)

    def _outputs_of(self, left: RowsLeft) -> Any:
        if left.row_map.rows is None and self.plan.leaves_outputs:
            return left.features
        return self.plan.backend.spread(left, self.plan.merged.expansion)

    @property
    def launch(self) -> Callable[[Array], Array] | None:
        """A function that takes dense rows through all layers by one launch; None for other plans, and before a run."""
        only = self._steps.get(0) if len(self.plan.steps) == 1 else None
        return None if only is None else only.launch

    def run(self, features: Features, context: RunContext) -> RowsLeft:
        """Take rows through all layers: Y' = act(Y·W + b), step by step.

        The result may lie in memory that the next run overwrites.
        """
        if not self._is_rehearsed:
            self.rehearse(features, context)
        if self._is_one_step and not watchers["step"]:
            left = self._step(0, context).run(RowsLeft(features), context)
            context.report(self.plan.steps[0].last)
            return left
        values, rows = {0: features}, RowsLeft(features)
        last, traced = len(self.plan.steps) - 1, bool(watchers["step"])
        for number, end in self._spans:
            step = self.plan.steps[number]
            if self._is_over(rows, step):
                return self._without_rows(rows, number, context)
            if end > number + 1:
                rows = self._tiles(number, end, rows, context)
            else:
                run = self._run_traced if traced else self._run_step
                rows = run(self._step(number, context), number, rows, values, context)
            if number < last and rows.row_map.rows is not None:
                rows = _without_unused(replace(rows, row_map=rows.row_map.on_host(self.plan.backend.fetch)))
            self._store(end - 1, rows.features, values)
            context.report(self.plan.steps[end - 1].last)
        return rows

    def rehearse(self, features: Features, context: RunContext = QUIET) -> None:
        """Bind steps, and have their kernels compiled side by side, while the weights of later steps are prepared.

        The first run does so, unless it has been done. It does not wait for the last kernels.
        """
        self._is_rehearsed = True
        if not (self.plan.backend.rehearses and self.is_capturable):
            return
        values, rows = {0: features}, RowsLeft(features)
        for number, step in enumerate(self.plan.steps):
            bound = self._step(number, context)
            if isinstance(step.kernel, SparseKernel) and step.kernel.drops_rows:
                return
            with self.plan.backend.rehearsal():
                rows = self._run_step(bound, number, rows, values, QUIET)
                self._store(number, rows.features, values)
        with self.plan.backend.rehearsal():
            self._outputs_of(rows)

    def _run_traced(
        self, bound: BoundStep, number: int, rows: RowsLeft, values: dict[int, Features], context: RunContext
    ) -> RowsLeft:
        step = self.plan.steps[number]
        with span(step.title, "step", **step.details, rows=rows.features.shape[0]):
            return self._run_step(bound, number, rows, values, context)

    def _run_step(
        self, bound: BoundStep, number: int, rows: RowsLeft, values: dict[int, Features], context: RunContext
    ) -> RowsLeft:
        """Run a step on the values that it reads, all of which have the rows that the previous step left."""
        first, *others = (values[source] for source in self.plan.network.nodes[self.plan.steps[number].first].sources)
        return bound.run(rows if first is rows.features else replace(rows, features=first), context, *others)

    def _store(self, number: int, features: Features, values: dict[int, Features]) -> None:
        """Store the value of a step until its last consumer has run, and drop values without further consumers."""
        network, value = self.plan.network, self.plan.steps[number].last
        if value in self._borrowed and network.consumers[value][-1:] > (value + 1,) and not isinstance(features, CSR):
            features = features.copy()
        values[value] = features
        for dead in values.keys() - network.live[value]:
            del values[dead]

    def _tiles(self, first: int, end: int, rows: RowsLeft, context: RunContext) -> RowsLeft:
        plan = self.plan
        steps = [(number, self._step(number, context)) for number in range(first, end)]
        counters: list[LayerCounter] = []

        def run(tile: RowsLeft) -> RowsLeft:
            own = replace(context, counter=None if context.counter is None else LayerCounter.of(plan.network))
            values = {plan.steps[first].first: tile.features}
            for number, step in steps:
                tile = self._run_step(step, number, tile, values, own)
                self._store(number, tile.features, values)
            if own.counter is not None:
                counters.append(own.counter)
            return tile

        features, outputs = plan.backend.as_dense(rows.features), plan.network.sizes[plan.steps[end - 1].last]
        start = now(context.timer)
        with span(f"{plan.steps[first].title} to {plan.steps[end - 1].last}, in tiles", "step"):
            rows = run_tiles(run, rows, features, outputs)
        if context.counter is not None:
            for counter in counters:
                context.counter.add_all(counter)
            context.counter.scale(plan.steps[first].first, plan.steps[end - 1].last, now(context.timer) - start)
        return rows

    def _step(self, number: int, context: RunContext) -> BoundStep:
        """Return a step with its weights, bound on first use; where weights stream, in every run."""
        bound = self._steps.get(number)
        if bound is not None:
            return bound
        plan, step = self.plan, self.plan.steps[number]
        following = number + 1 if number + 1 < len(plan.steps) else 0 if context.following else None
        with plan.compiled.lock_of(step, plan.streams), section(context.timer, "prepare", f"bind {step.title}"):
            stack = self._weights.get(plan, number, following)
            bound = bind_step(plan, step, stack, self._weights)
        if not plan.streams:
            self._steps[number] = bound
        return bound

    def _is_over(self, rows: RowsLeft, step: Step) -> bool:
        """Whether no row is left to compute, and none will be revived; known only after `_without_unused`."""
        return rows.row_map.rows is not None and rows.features.shape[0] == 0 and step.first >= self.plan.droppable_from

    def _without_rows(self, rows: RowsLeft, number: int, context: RunContext) -> RowsLeft:
        """Count the steps from `number` on as run on no rows."""
        plan = self.plan
        for step in plan.steps[number:]:
            if context.counter is not None:
                grouped = 0 if plan.options.deduplication and step.kernel.operation == SPARSE_OPERATION else None
                counts = [LayerCounts(step.kernel.name, 0, 0, 0, 0, grouped) for _ in step.layers]
                context.counter.add(step.first, counts, [0.0] * len(counts), 0.0)
            context.report(step.last)
        numbers = rows.features.values if isinstance(rows.features, CSR) else rows.features
        return RowsLeft(np.zeros((0, plan.merged.network.outputs), numbers.dtype), rows.row_map)


def _without_unused(rows: RowsLeft) -> RowsLeft:
    """Return rows without those that belong to no input; their map is on the host."""
    places = rows.row_map.rows
    assert places is not None
    used = int(places.max()) + 1 if places.size else 0
    features: Any = rows.features
    return rows if used == features.shape[0] else RowsLeft(features[:used], rows.row_map)


def _borrowed(plan: Plan) -> frozenset[int]:
    """Return the nodes whose outputs lie in buffers of sparse layers, which later steps write over."""
    borrowed: set[int] = set()
    for step in plan.steps:
        node = plan.network.nodes[step.first]
        is_view = isinstance(node.layer, Flatten) and node.sources[0] in borrowed
        if step.kernel.operation == SPARSE_OPERATION or is_view:
            borrowed.add(step.last)
    return frozenset(borrowed)
