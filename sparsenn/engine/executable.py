"""Executable: a plan bound to weights on the device, and the loop over its steps."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from sparsenn.backends import Features, LayerCounts, RowsLeft, RowsWatch, SparseKernel
from sparsenn.backends.foreign import ForeignNetwork
from sparsenn.backends.kernel_records import (
    CONV_OPERATION,
    IMAGE_OPERATION,
    PANEL,
    SPARSE_OPERATION,
    WHOLE_OPERATION,
)
from sparsenn.engine.bound_steps import QUIET, BoundStep, RunContext, bind_step
from sparsenn.engine.finite import OverflowGuard
from sparsenn.engine.plan import Plan
from sparsenn.engine.replay_cache import HostCall, ReplayCache
from sparsenn.engine.result import LayerCounter
from sparsenn.engine.timer import now, section
from sparsenn.engine.weight_cache import WeightCache
from sparsenn.formats import CSR, Array
from sparsenn.layers import CombiningLayer, Flatten, ForeignLayer
from sparsenn.runtime.spans import span, watchers
from sparsenn.runtime.workers import chunks, map_threads, thread_count

__all__ = ["Executable"]


class Executable:
    """A plan whose steps can run; `key` is the first item of its replays' keys."""

    def __init__(self, plan: Plan, weights: WeightCache, overflow_guard: OverflowGuard, replays: ReplayCache) -> None:
        self.plan, self.key = plan, object()
        self._replays = replays
        self._weights = weights
        self._overflow_guard = overflow_guard
        self._steps: dict[int, BoundStep] = {}
        self._spans = _spans(plan)
        self._flows = _flows(plan)
        self._is_rehearsed = False
        self._is_one_step = len(plan.steps) == 1 and len(self._flows[0].sources) == 1

    @property
    def nbytes(self) -> int:
        """Bytes that are cached for rows, replays excluded."""
        return sum(step.nbytes for step in self._steps.values())

    def outputs(
        self, features: Features, context: RunContext, watch: RowsWatch | None = None, replays: bool = True
    ) -> Any:
        """Return outputs in memory that the caller owns, by a replay if that is faster; `watch` checks the features."""
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
        results = replay(lambda features: (self._outputs(watch, features),), rows)
        return None if results is None else results[0]

    def captured(self, rows: Array) -> Any:
        """Return outputs of rows on the device, for a capture: no number is checked, and nothing is reported."""
        return self._outputs(None, rows)

    def host_outputs(self, rows: Array, shape: tuple[int, int], is_checked: bool) -> Array | None:
        """Return outputs of rows in host memory, there; None without a replay, or where a check of numbers fails.

        The caller then runs the steps one by one, which report the number. `shape` is that of the rows as a matrix.
        """
        if watchers["step"]:
            return None
        key = self.key, shape, rows.dtype, is_checked, "host"
        call = self._replays.get(key)
        if call is None:
            guard = self._overflow_guard if self.plan.has_half else None
            watch = self._replays.host_watch if is_checked else None
            call = HostCall(self.plan.backend, shape, watch, guard, 2 * len(self.plan.steps))
            self._replays.put(key, call)
        outputs: Array | None = call(
            lambda features, guard: self._outputs_of(self.run(features, RunContext(watch=guard))), rows
        )
        return outputs

    @property
    def foreign_network(self) -> ForeignNetwork | None:
        """The whole network in ONNX Runtime, once its step is bound; None where kernels compute."""
        is_whole = self.plan.kernel.operation == WHOLE_OPERATION and self.plan.leaves_outputs
        bound = self._steps.get(0) if is_whole else None
        return None if bound is None else self._weights.of_layers(self.plan.compiled, self.plan.steps[0])

    @cached_property
    def is_capturable(self) -> bool:
        """Whether a device can replay the plan: not if a step drops rows, whose number the next step has to await."""
        if self.plan.backend.in_host_memory or self.plan.streams:
            return False
        if any(isinstance(layer, ForeignLayer) for layer in self.plan.merged.network):
            return False
        before = [step.kernel for step in self.plan.steps[:-1]]
        return not any(isinstance(kernel, SparseKernel) and kernel.drops_rows for kernel in before)

    def _outputs(self, watch: RowsWatch | None, features: Array) -> Any:
        """Return outputs of dense rows, and report nothing: by one launch, if the plan is one."""
        if watch is not None:
            watch.scan(features)
        only = self._steps.get(0) if len(self.plan.steps) == 1 and self.plan.leaves_outputs else None
        launch = None if only is None else only.launch
        return self._outputs_of(self.run(features, QUIET)) if launch is None else launch(features)

    def _outputs_of(self, left: RowsLeft) -> Any:
        if left.row_map.rows is None and self.plan.leaves_outputs:
            return left.features
        return self.plan.backend.spread(left, self.plan.merged.expansion)

    def run(self, features: Features, context: RunContext) -> RowsLeft:
        """Take rows through all layers, Y' = act(Y·W + b); the next run may write over the memory of the result."""
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
            if rows.row_map.rows is not None and not rows.features.shape[0] and step.first >= self.plan.droppable_from:
                return self._without_rows(rows, number, context)  # and no layer makes others of rows of zeros
            if end > number + 1:
                rows = self._tiles(number, end, rows, context)
                values = {self.plan.steps[end - 1].last: rows.features}
            else:
                bound = self._step(number, context)
                with span(step.title, "step", **step.details, rows=rows.features.shape[0]) if traced else nullcontext():
                    rows = self._run_step(bound, number, rows, values, context)
                del bound  # whose weights, if they stream, end before the next step's begin
                if number < last and rows.row_map.rows is not None:
                    rows = self._without_unused(rows)
                self._store(number, rows.features, values)
            context.report(self.plan.steps[end - 1].last)
        return rows

    def rehearse(self, features: Features, context: RunContext = QUIET) -> None:
        """Bind steps while their kernels are compiled side by side, without a wait for the last kernels."""
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

    def _run_step(
        self, bound: BoundStep, number: int, rows: RowsLeft, values: dict[int, Features], context: RunContext
    ) -> RowsLeft:
        """Run a step on the values that it reads, all of which have the rows that the previous step left."""
        first, *others = [values[source] for source in self._flows[number].sources]
        return bound.run(rows if first is rows.features else rows._replace(features=first), context, *others)

    def _store(self, number: int, features: Features, values: dict[int, Features]) -> None:
        """Store the value of a step until its last consumer has run, and drop values without further consumers."""
        _, value, is_copied, dead = self._flows[number]
        values[value] = features.copy() if is_copied and not isinstance(features, CSR) else features
        for each in dead:
            del values[each]

    def _tiles(self, first: int, end: int, rows: RowsLeft, context: RunContext) -> RowsLeft:
        """Take rows through steps of images, tile by tile on all cores."""
        plan, before, last = self.plan, self.plan.steps[first].first, self.plan.steps[end - 1].last
        steps = [(number, self._step(number, context)) for number in range(first, end)]
        counters: list[LayerCounter] = []
        features = plan.backend.as_dense(rows.features)
        count = features.shape[0]
        results = np.empty((count, plan.network.sizes[last]), features.dtype)

        def run(place: tuple[int, int]) -> None:
            own = replace(context, counter=None if context.counter is None else LayerCounter(plan.network))
            tile = RowsLeft(features[slice(*place)])
            values = {before: tile.features}
            with np.errstate(all="ignore"):
                for number, step in steps:
                    tile = self._run_step(step, number, tile, values, own)
                    self._store(number, tile.features, values)
                results[slice(*place)] = tile.features
            if own.counter is not None:
                counters.append(own.counter)

        start = now(context.timer)
        with span(f"{plan.steps[first].title} to {last}, in tiles", "step"):
            map_threads(run, chunks(count, max(1, min(PANEL, -(-count // thread_count())))))
        if context.counter is not None:
            for counter in counters:
                context.counter.add_all(counter)
            context.counter.scale(before, last, now(context.timer) - start)
        return RowsLeft(results, rows.row_map)

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

    def _without_unused(self, rows: RowsLeft) -> RowsLeft:
        """Return rows without those that belong to no input, and with their map on the host."""
        row_map = rows.row_map.on_host(self.plan.backend.fetch)
        features: Any = rows.features
        places: Any = row_map.rows
        used = int(places.max()) + 1 if places.size else 0
        return RowsLeft(features if used == features.shape[0] else features[:used], row_map, rows.dropped)

    def _without_rows(self, rows: RowsLeft, number: int, context: RunContext) -> RowsLeft:
        """Count the steps from `number` on as run on no rows."""
        plan = self.plan
        for step in plan.steps[number:]:
            if context.counter is not None:
                grouped = 0 if plan.options.deduplication and step.kernel.operation == SPARSE_OPERATION else None
                counts = [LayerCounts(step.kernel.name, 0, 0, 0, 0, grouped) for _ in step.layers]
                context.counter.add(step.first, counts, 0.0, 0.0)
            context.report(step.last)
        numbers = rows.features.values if isinstance(rows.features, CSR) else rows.features
        return RowsLeft(np.zeros((0, plan.merged.network.outputs), numbers.dtype), rows.row_map)


def _spans(plan: Plan) -> list[tuple[int, int]]:
    """Return the steps as ranges, the last excluded: single ones, or those that run tile by tile together.

    These are layers of images on the host with branches, all of which begin and end among them.
    """
    network, on_host, ranges = plan.network, plan.backend.in_host_memory and not plan.backend.doubles, []
    operations = (CONV_OPERATION, IMAGE_OPERATION) if on_host else ()
    for images, group in groupby(enumerate(plan.steps), lambda item: item[1].kernel.operation in operations):
        numbers, steps = zip(*group, strict=True)
        first, last = steps[0].first, steps[-1].last
        whole = network.live[first] == (first,) and network.live[last] == (last,)
        if images and whole and any(isinstance(layer, CombiningLayer) for layer in network.layers[first:last]):
            ranges.append((numbers[0], numbers[-1] + 1))
        else:
            ranges += [(number, number + 1) for number in numbers]
    return ranges


class _Flow(NamedTuple):
    """The values that a step reads and leaves, by their nodes; 0 is the input."""

    sources: tuple[int, ...]
    value: int
    is_copied: bool  # since a later step writes over it before its last consumer has run
    dead: tuple[int, ...]  # that nothing reads after this step


def _flows(plan: Plan) -> list[_Flow]:
    network, borrowed, flows, present = plan.network, _borrowed(plan), list[_Flow](), {0}
    for step in plan.steps:
        dead = (present | {step.last}).difference(network.live[step.last])
        present = (present | {step.last}) - dead
        is_copied = step.last in borrowed and network.consumers[step.last][-1:] > (step.last + 1,)
        sources = (0,) if step.kernel.operation == WHOLE_OPERATION else network.nodes[step.first].sources
        flows.append(_Flow(sources, step.last, is_copied, tuple(dead)))
    return flows


def _borrowed(plan: Plan) -> frozenset[int]:
    """Return the nodes whose outputs lie in buffers of sparse layers, which later steps write over."""
    borrowed: set[int] = set()
    for step in plan.steps:
        node = plan.network.nodes[step.first]
        is_view = isinstance(node.layer, Flatten) and node.sources[0] in borrowed
        if step.kernel.operation == SPARSE_OPERATION or is_view:
            borrowed.add(step.last)
    return frozenset(borrowed)
