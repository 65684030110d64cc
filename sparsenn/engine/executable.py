"""Executable: a plan bound to weights on the device, and the loop over its steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sparsenn.backends import Features, LayerCounts, RowsLeft, RowsWatch
from sparsenn.backends.foreign import ForeignNetwork
from sparsenn.backends.kernel_records import SPARSE_OPERATION, WHOLE_OPERATION, ConvolutionKernel
from sparsenn.engine.bound_steps import QUIET, BoundStep, RunContext, bind_step
from sparsenn.engine.finite import OverflowGuard
from sparsenn.engine.inputs import to_input_type
from sparsenn.engine.plan import Plan
from sparsenn.engine.replay_cache import MAX_HOST_BYTES, HostCall, ReplayCache
from sparsenn.engine.steps import Step
from sparsenn.engine.timer import section
from sparsenn.engine.weight_cache import WeightCache
from sparsenn.formats import CSR, Array
from sparsenn.layers import Flatten, ForeignLayer
from sparsenn.runtime.spans import span, watchers

__all__ = ["Executable"]

_ReplayKey: TypeAlias = tuple[object, tuple[int, int], Any, bool]
"""Key of the executable, shape and type of the rows, and whether they are not watched."""


class Executable:
    """A plan whose steps can run; `key` is the first item of its replays' keys."""

    def __init__(self, plan: Plan, weights: WeightCache, overflow_guard: OverflowGuard, replays: ReplayCache) -> None:
        self.plan, self.key = plan, object()
        self._replays = replays
        self._weights = weights
        self._overflow_guard = overflow_guard
        self._steps: dict[int, BoundStep] = {}
        self._flows = _flows(plan)
        self._is_rehearsed = False
        self.direct: Callable[[Array], Any] | None = None
        """The function that takes dense rows through all steps to outputs that the caller owns, and does no more.

        None until all steps are bound; where a step before the last drops rows; and where weights stream.
        """

    @property
    def nbytes(self) -> int:
        """Bytes that are cached for rows, replays excluded."""
        return sum(step.nbytes for step in self._steps.values())

    def outputs(self, features: Features, context: RunContext, replays: bool = True) -> Any:
        """Return outputs in memory that the caller owns, by a replay if that is faster."""
        if context.watch is not None or isinstance(features, CSR) or watchers["step"] or self.plan.streams:
            return self._outputs_of(self.run(features, context))
        outputs = self._replayed(features) if replays and self.is_capturable else None
        if outputs is None:
            outputs = self._outputs(None, features)
        context.report(len(self.plan.network))
        return outputs

    def _replayed(self, rows: Array) -> Any:
        """Return outputs by a replay; None in the first call with such rows, and where there is no replay."""
        is_first = self._replays.get(self._replay_key(rows, None)) is None
        replay = self._replay(rows, None)
        results = None if is_first else replay(lambda features: (self._outputs(None, features),), rows)
        return None if results is None else results[0]

    def _replay(self, rows: Array, watch: RowsWatch | None) -> Any:
        """Return the replay of rows on the device, made if it is not cached; None where there is none."""
        if not self.is_capturable or 0 in rows.shape:
            return None
        key = self._replay_key(rows, watch)
        replay = self._replays.get(key)
        if replay is None:
            replay = self.plan.backend.queue.replay(key[1], on_host=False)
            if replay is not None:
                self._replays.put(key, replay)
        return replay

    def _replay_key(self, rows: Any, watch: RowsWatch | None) -> _ReplayKey:
        return self.key, rows.shape, rows.dtype, watch is None

    def repeated_call(self, source: Any, rows: Array, watch: RowsWatch | None) -> Callable[[Any], Any] | None:
        """Return a function of arrays like `source`, whose rows are `rows` on the device, to new outputs of its type.

        None where there is none. It returns None for other arrays, and in a capture.
        """
        backend, replays, keeps_half, kind = self.plan.backend, self._replays, self.plan.keeps_half, type(source)
        is_converted = rows.dtype == np.float16 and not keeps_half
        key, replay = self._replay_key(rows, watch), None if is_converted else self._replay(rows, watch)

        def run(features: Array) -> tuple[Any]:
            placed: Any = backend.place(features, keeps_half)
            return (self._outputs(watch, placed),)

        call = backend.queue.repeated_call(run, source, rows, replay)
        if call is None:
            return None

        def outputs_of(inputs: Any) -> Any:
            outputs = call(inputs)
            if replay is not None:
                replays.get(key)  # which is one of those called last
            return outputs if outputs is None or type(outputs) is kind else to_input_type(inputs, outputs)

        return outputs_of

    def captured(self, rows: Array) -> Any:
        """Return outputs of rows on the device, for a capture: no number is checked, and nothing is reported."""
        return self._outputs(None, rows)

    @property
    def foreign_network(self) -> ForeignNetwork | None:
        """The whole network in ONNX Runtime, once its step is bound; None where kernels compute."""
        is_whole = self.plan.kernel.operation == WHOLE_OPERATION and self.plan.leaves_outputs
        bound = self._steps.get(0) if is_whole else None
        return None if bound is None else self._weights.of_layers(self.plan.compiled, self.plan.steps[0])

    def host_call(self, source: Array, rows: Array, is_checked: bool) -> Callable[[Any], Any] | None:
        """Return a function of arrays in host memory like `source`, whose rows are `rows`, to outputs there.

        None where there is no replay. It returns None for other arrays, and where a check of numbers fails: the steps,
        run one by one, then report the number.
        """
        plan, shape, dtype, rows_shape = self.plan, source.shape, source.dtype, rows.shape
        is_read = dtype in plan.backend.row_types and (dtype != np.float16 or plan.keeps_half)
        is_read = is_read and source.flags.c_contiguous and rows.flags.c_contiguous
        if not is_read or not self.is_capturable or not 0 < rows.nbytes <= MAX_HOST_BYTES:
            return None
        key, backend = (self.key, rows_shape, dtype, is_checked, "host"), plan.backend

        def outputs_of(inputs: Any) -> Array | None:
            if type(inputs) is not np.ndarray or inputs.shape != shape or inputs.dtype != dtype:
                return None
            if not inputs.flags.c_contiguous:
                return None
            call = self._replays.get(key)
            if call is None:
                guard = self._overflow_guard if plan.has_half else None
                watch = self._replays.host_watch if is_checked else None
                call = HostCall(backend, rows_shape, watch, guard, 2 * len(plan.merged.network))
                self._replays.put(key, call)
            with backend.queue:
                outputs: Array | None = call(
                    lambda features, guard: self._outputs_of(self.run(features, RunContext(watch=guard))), inputs
                )
            return outputs

        return outputs_of

    @cached_property
    def is_capturable(self) -> bool:
        """Whether a device can replay the plan: not if a step drops rows, whose number the next step has to await."""
        if self.plan.backend.in_host_memory or self.plan.streams:
            return False
        if any(isinstance(layer, ForeignLayer) for layer in self.plan.merged.network):
            return False
        return not any(step.drops_rows for step in self.plan.steps[:-1])

    def _outputs(self, watch: RowsWatch | None, features: Array) -> Any:
        if watch is not None:
            watch.scan(features)
        if self.direct is not None:
            return self.direct(features)
        with np.errstate(all="ignore"):
            return self._outputs_of(self.run(features, QUIET))

    def _outputs_of(self, left: RowsLeft) -> Any:
        if left.row_map.rows is None and self.plan.leaves_outputs:
            return left.features
        return self.plan.backend.spread(left, self.plan.merged.expansion)

    def run(self, features: Features, context: RunContext) -> RowsLeft:
        """Take rows through all layers, Y' = act(Y·W + b); the next run may write over the memory of the result."""
        if not self._is_rehearsed:
            self.rehearse(features, context)
        values, rows = {0: features}, RowsLeft(features)
        last, traced = len(self.plan.steps) - 1, bool(watchers["step"])
        for number, step in enumerate(self.plan.steps):
            if rows.row_map.rows is not None and not rows.features.shape[0] and step.first >= self.plan.droppable_from:
                return self._without_rows(rows, number, context)  # and no layer makes others of rows of zeros
            bound = self._step(number, context)
            with span(step.title, "step", **step.details, rows=rows.features.shape[0]) if traced else nullcontext():
                rows = self._run_step(bound, number, rows, values, context)
            del bound  # whose weights, if they stream, end before the next step's begin
            if number < last and rows.row_map.rows is not None:
                rows = self._without_unused(rows)
            self._store(number, rows.features, values)
            context.report(step.last)
        return rows

    def rehearse(self, features: Features, context: RunContext = QUIET) -> None:
        """Bind steps while their kernels are compiled side by side, without a wait for the last kernels."""
        self._is_rehearsed = True
        if not (self.plan.backend.queue.rehearses and self.is_capturable):
            return
        values, rows = {0: features}, RowsLeft(features)
        for number, step in enumerate(self.plan.steps):
            bound = self._step(number, context)
            if step.drops_rows:
                return
            with self.plan.backend.queue.rehearsal():
                rows = self._run_step(bound, number, rows, values, QUIET)
                self._store(number, rows.features, values)
        with self.plan.backend.queue.rehearsal():
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
            if len(self._steps) == len(plan.steps):
                self.direct = self._direct()
        return bound

    def _direct(self) -> Callable[[Array], Any] | None:
        plan, flows = self.plan, self._flows
        *before, last = (self._steps[number] for number in range(len(flows)))
        if any(step.launch is None for step in before):
            return None
        backend, expansion, leaves_outputs = plan.backend, plan.merged.expansion, plan.leaves_outputs

        def finish(*matrices: Array) -> Any:
            left = last.run_quietly(*matrices)
            is_output = leaves_outputs and left.row_map.rows is None
            return left.features if is_output else backend.spread(left, expansion)

        end = last.launch if leaves_outputs and last.launch is not None else finish
        launches: list[Any] = [*(step.launch for step in before), end]

        def run(rows: Array) -> Any:
            values, outputs = {0: rows}, rows
            for launch, (sources, value, is_copied, dead) in zip(launches, flows, strict=True):
                outputs = launch(*[values[source] for source in sources])
                values[value] = outputs.copy() if is_copied else outputs
                for each in dead:
                    del values[each]
            return outputs

        known = end if not before and flows[0].sources == (0,) else run
        is_without_numpy = self.is_capturable or plan.kernel.operation == WHOLE_OPERATION
        return known if is_without_numpy else np.errstate(all="ignore")(known)

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
        flows.append(_Flow(_sources(plan, step), step.last, is_copied, tuple(dead)))
    return flows


def _sources(plan: Plan, step: Step) -> tuple[int, ...]:
    """Return the values that a step reads: of layers that run as a stack one, of a convolution and its sum both."""
    if step.kernel.operation == WHOLE_OPERATION:
        return (0,)
    outside = (each for number in step.layers for each in plan.network.nodes[number].sources if each <= step.first)
    sources = tuple(outside)
    return sources[:1] if isinstance(step.kernel, ConvolutionKernel) and step.kernel.run_stack else sources


def _borrowed(plan: Plan) -> frozenset[int]:
    """Return the nodes whose outputs lie in buffers of sparse layers, which later steps write over."""
    borrowed: set[int] = set()
    for step in plan.steps:
        node = plan.network.nodes[step.first]
        is_view = isinstance(node.layer, Flatten) and node.sources[0] in borrowed
        if step.kernel.operation == SPARSE_OPERATION or is_view:
            borrowed.add(step.last)
    return frozenset(borrowed)
