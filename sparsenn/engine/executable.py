"""Executable: a plan bound to weights on the device, the loop over its steps, and the functions that replay it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any, TypeAlias, cast

import numpy as np

from sparsenn.backends import Features, LayerCounts, RowsLeft, RowsWatch
from sparsenn.backends.foreign import ForeignNetwork
from sparsenn.backends.kernel_records import SPARSE_OPERATION, WHOLE_OPERATION, ConvolutionKernel, SparseKernel
from sparsenn.engine.bound_steps import QUIET, BoundStep, RunContext, bind_step
from sparsenn.engine.finite import LoggingGuard
from sparsenn.engine.plan import Plan
from sparsenn.engine.result import layer_statistics
from sparsenn.engine.weight_cache import WeightCache
from sparsenn.formats import CSR, Array
from sparsenn.formats.libraries import to_input_type
from sparsenn.layers import Flatten
from sparsenn.runtime.spans import span, watchers
from sparsenn.runtime.timing import section

MAX_HOST_BYTES = 1 << 20
"""Bytes of rows: larger ones are copied to the device by several threads, while the first rows are computed."""

LARGE_LAYER = 4 << 20  # bytes of weights whose copy to a device takes as long as all other work on a layer

_Flow: TypeAlias = tuple[tuple[int, ...], int, bool, tuple[int, ...]]
"""The values that a step reads, and the one it leaves, by their nodes, where 0 is the input; whether the latter is
copied, as a later step writes over it before its last consumer has run; and the values that nothing reads after it."""


class Executable:
    """A plan whose steps can run; the keys of its replays begin with `key`."""

    def __init__(self, plan: Plan, weights: WeightCache) -> None:
        self.plan, self.key = plan, object()
        self._weights = weights
        self._steps: dict[int, BoundStep] = {}
        self._flows = _flows(plan)
        self.direct: Callable[[Array], Any] | None = None
        """The function that takes dense rows through all steps to outputs that the caller owns, and does no more.

        None until all steps are bound; where a step before the last drops rows; and where weights stream.
        """

    @property
    def nbytes(self) -> int:
        """Bytes that are cached for rows, replays excluded."""
        return sum(int(chain.nbytes) for _, _, chain in self._steps.values() if chain is not None)

    def outputs(self, features: Features, context: RunContext, replays: bool = True) -> Any:
        """Return outputs in memory that the caller owns, from the second such rows on by a replay if that is faster."""
        if context.watch is not None or isinstance(features, CSR) or watchers["step"] or self.plan.streams:
            return _outputs_of(self.plan, self.run(features, context))
        results = None
        if replays and self.is_capturable:
            is_first = self._weights.replay(self._replay_key(features, False)) is None
            replay = self._replay(features, False)
            results = None if is_first else replay(lambda rows: (self.compute(rows),), features)
        outputs = self.compute(features) if results is None else results[0]
        context.report(len(self.plan.network))
        return outputs

    def compute(self, features: Array, watch: RowsWatch | None = None) -> Any:
        """Return outputs of a matrix, for captures as well: only a watch checks numbers, and nothing is reported."""
        if watch is not None:
            with watch.scanning(features):
                return self.compute(features)
        if self.direct is not None:
            return self.direct(features)
        with np.errstate(all="ignore"):
            return _outputs_of(self.plan, self.run(features, QUIET))

    def compute_rows(self, rows: Any, watch: RowsWatch | None = None) -> Any:
        """Return outputs of a matrix on the device, for captures, copied only where its type changes."""
        placed: Any = self.plan.backend.place(rows, self.plan.keeps_half)
        return self.compute(placed, watch)

    def _replay_key(self, rows: Any, is_watched: bool, on_host: bool = False) -> tuple[Any, ...]:
        return self.key, rows.shape, rows.dtype, is_watched, on_host

    def _replay(self, rows: Array, is_watched: bool, on_host: bool = False) -> Any:
        """Return the replay of rows like these, made if it is not cached; None where there is none."""
        if not self.is_capturable or 0 in rows.shape:
            return None
        make: Any = partial(self.plan.backend.queue.replay, rows.shape, on_host=on_host)
        return self._weights.replay(self._replay_key(rows, is_watched, on_host), make)

    def repeated_call(self, source: Any, rows: Array, watch: RowsWatch | None) -> Callable[[Any], Any] | None:
        """Return a function of arrays like `source`, whose rows are `rows` on the device, to new outputs of its type.

        None where there is none. It returns None for other arrays, and in a capture.
        """
        weights, kind = self._weights, type(source)
        key, replay = self._replay_key(rows, watch is not None), self._replay(rows, watch is not None)
        call = self.plan.backend.queue.repeated_call(
            lambda features: (self.compute_rows(features, watch),), source, rows, replay
        )
        if call is None:
            return None

        def outputs_of(inputs: Any) -> Any:
            outputs = call(inputs)
            if replay is not None:
                weights.replay(key)  # which is one of those called last
            return outputs if outputs is None or type(outputs) is kind else to_input_type(inputs, outputs)

        return outputs_of

    @property
    def foreign_network(self) -> ForeignNetwork | None:
        """The whole network in ONNX Runtime, once its step is bound; None where kernels compute."""
        is_whole = self.plan.kernel.operation == WHOLE_OPERATION and self.plan.leaves_outputs
        is_bound = is_whole and 0 in self._steps
        return self._weights.of_layers(self.plan.compiled, self.plan.steps[0]) if is_bound else None

    def host_call(self, source: Array, rows: Array, is_checked: bool) -> Callable[[Any], Any] | None:
        """Return a function of arrays in host memory like `source`, whose rows are `rows`, to outputs there.

        None where there is no replay. It returns None for other arrays, where the replay is cached no more, and where a
        check of numbers fails: the steps, run one by one, then report the number.
        """
        plan, weights, shape, dtype = self.plan, self._weights, source.shape, source.dtype
        is_read = dtype in plan.backend.row_types and (dtype != np.float16 or plan.keeps_half)
        is_read = is_read and source.flags.c_contiguous and rows.flags.c_contiguous
        if not is_read or not 0 < rows.nbytes <= MAX_HOST_BYTES:
            return None
        key, replay = self._replay_key(rows, is_checked, True), self._replay(rows, is_checked, on_host=True)
        if replay is None:
            return None
        watch = weights.host_watch if is_checked else None  # of such calls alone
        guard: LoggingGuard | None = None

        def run(features: Array) -> tuple[Array, ...]:
            nonlocal guard
            if watch is not None:
                watch.scan(features)
            if not plan.has_half:
                return (_outputs_of(plan, self.run(features, QUIET)),)
            log: Any = plan.backend.number_check(2 * len(plan.merged.network))  # a guard makes no more scans
            guard = LoggingGuard(plan.compiled.overflow_guard, log.scan)
            return _outputs_of(plan, self.run(features, RunContext(watch=guard))), log.results

        def outputs_of(inputs: Any) -> Any:
            if type(inputs) is not np.ndarray or inputs.shape != shape or inputs.dtype != dtype:
                return None
            if not inputs.flags.c_contiguous or weights.replay(key) is not replay:
                return None
            with plan.backend.queue:
                results = replay(run, inputs)
                if results is None or (watch is not None and watch.take_fault()):
                    return None
                if guard is not None:
                    largest, faulty = results[1].T
                    scans = list(zip(largest.view(np.float32).tolist(), (faulty == 0).tolist(), strict=True))
                    if not guard.approves(scans):
                        return None
                return results[0]

        return outputs_of

    @cached_property
    def is_capturable(self) -> bool:
        """Whether a device can replay the plan: not if a step drops rows, whose number the next step has to await."""
        plan, has_foreign = self.plan, self.plan.merged.network.has_foreign_layers
        is_cut = has_foreign or any(step.drops_rows for step in plan.steps[:-1])
        return not (plan.backend.in_host_memory or plan.streams or is_cut)

    def run(self, features: Features, context: RunContext) -> RowsLeft:
        """Take rows through all layers, Y' = act(Y·W + b); the next run may write over the memory of the result."""
        if not self._steps:
            self.rehearse(features, context)
        values, rows = {0: features}, RowsLeft(features)
        traced = bool(watchers["step"])
        for number, step in enumerate(self.plan.steps):
            if rows.row_map.rows is not None and not rows.features.shape[0] and step.first >= self.plan.droppable_from:
                return self._without_rows(rows, number, context)  # and no layer makes others of rows of zeros
            bound = self._step(number, context)
            with span(step.title, "step", **step.details, rows=rows.features.shape[0]) if traced else nullcontext():
                rows = self._run_step(bound, number, rows, values, context)
            del bound  # whose weights, if they stream, end before the next step's begin
            context.report(step.last)
        return rows

    def rehearse(self, features: Features, context: RunContext = QUIET) -> None:
        """Bind steps while their kernels are compiled side by side, without a wait for the last kernels."""
        if not (self.plan.backend.queue.rehearses and self.is_capturable):
            return
        values, rows = {0: features}, RowsLeft(features)
        for number, step in enumerate(self.plan.steps):
            bound = self._step(number, context)
            if step.drops_rows:
                return
            with self.plan.backend.queue.rehearsal():
                rows = self._run_step(bound, number, rows, values, QUIET)
        with self.plan.backend.queue.rehearsal():
            _outputs_of(self.plan, rows)

    def _run_step(
        self, bound: BoundStep, number: int, rows: RowsLeft, values: dict[int, Features], context: RunContext
    ) -> RowsLeft:
        """Run a step on the values that it reads, all of which have the rows that the previous step left."""
        sources, value, is_copied, dead = self._flows[number]
        first, *others = [values[source] for source in sources]
        rows = bound[0](rows if first is rows.features else rows._replace(features=first), context, *others)
        if number + 1 < len(self._flows) and rows.row_map.rows is not None:  # drop rows that belong to no input
            row_map = rows.row_map.on_host(self.plan.backend.fetch)
            places: Any = row_map.rows
            used, all_rows = int(places.max()) + 1 if places.size else 0, cast(Any, rows.features)
            rows = RowsLeft(all_rows if used == all_rows.shape[0] else all_rows[:used], row_map, rows.dropped)
        features = rows.features
        # stored until its last consumer has run
        values[value] = features.copy() if is_copied and not isinstance(features, CSR) else features
        for each in dead:
            del values[each]
        return rows

    def _step(self, number: int, context: RunContext) -> BoundStep:
        """Return a step with its weights, bound on first use; where weights stream, in every run."""
        bound = self._steps.get(number)
        if bound is not None:
            return bound
        plan, step = self.plan, self.plan.steps[number]
        following = number + 1 if number + 1 < len(plan.steps) else 0 if context.following else None
        layers = plan.compiled.merged.network.layers[step.first : step.last]
        is_large = sum(layer.weight_bytes for layer in layers) > LARGE_LAYER * len(layers)
        # small layers take mostly Python code, in which threads hinder each other: one device prepares them at a time
        lock = nullcontext() if is_large or plan.streams else plan.compiled.lock
        with lock, section(context.timer, "prepare", f"bind {step.title}"):
            stack = self._weights.get(plan, number, following)
            bound = bind_step(plan, step, stack, self._weights)
        if not plan.streams:
            self._steps[number] = bound
            if len(self._steps) == len(plan.steps):
                self.direct = self._direct()
        return bound

    def _direct(self) -> Callable[[Array], Any] | None:
        plan, flows = self.plan, self._flows
        launch: Any
        chain: Any
        *before, (_, launch, chain) = (self._steps[number] for number in range(len(flows)))
        if any(each is None for _, each, _ in before):
            return None

        def finish(*matrices: Array) -> Any:
            left = RowsLeft(launch(*matrices)) if chain is None else chain.run(*matrices, False, None)
            return _outputs_of(plan, left)

        end = finish if launch is None or not plan.leaves_outputs else launch
        launches: list[Any] = [*(each for _, each, _ in before), end]

        def run(rows: Array) -> Any:
            values, outputs = {0: rows}, rows
            for each_launch, (sources, value, is_copied, dead) in zip(launches, flows, strict=True):
                outputs = each_launch(*[values[source] for source in sources])
                values[value] = outputs.copy() if is_copied else outputs
                for each in dead:
                    del values[each]
            return outputs

        known = end if not before and flows[0][0] == (0,) else run
        is_compiled = all(isinstance(step.kernel, SparseKernel) and step.kernel.is_compiled for step in plan.steps)
        is_without_numpy = is_compiled or self.is_capturable or plan.kernel.operation == WHOLE_OPERATION
        return known if is_without_numpy else np.errstate(all="ignore")(known)

    def _without_rows(self, rows: RowsLeft, number: int, context: RunContext) -> RowsLeft:
        """Count the steps from `number` on as run on no rows."""
        plan = self.plan
        for step in plan.steps[number:]:
            if context.statistics is not None:
                grouped = 0 if plan.options.deduplication and step.kernel.operation == SPARSE_OPERATION else None
                counts = [LayerCounts(step.kernel.name, 0, 0, 0, 0, grouped) for _ in step.layers]
                context.statistics.extend(layer_statistics(plan.network, step, counts, 0.0, 0.0))
            context.report(step.last)
        numbers = rows.features.values if isinstance(rows.features, CSR) else rows.features
        return RowsLeft(np.zeros((0, plan.merged.network.outputs), numbers.dtype), rows.row_map)


def _outputs_of(plan: Plan, left: RowsLeft) -> Any:
    if left.row_map.rows is None and plan.leaves_outputs:
        return left.features
    return plan.backend.spread(left, plan.merged.expansion)


def _flows(plan: Plan) -> list[_Flow]:
    network, flows, present = plan.network, list[_Flow](), {0}
    borrowed = set[int]()  # values in buffers of sparse layers, which later steps write over
    for step in plan.steps:
        node, kernel = network.nodes[step.first], step.kernel
        if kernel.operation == SPARSE_OPERATION or (isinstance(node.layer, Flatten) and node.sources[0] in borrowed):
            borrowed.add(step.last)
        # a step reads what its layers read from outside: of a stack one value, of a convolution and its sum both
        sources = tuple(each for at in step.layers for each in network.nodes[at].sources if each <= step.first)
        if kernel.operation == WHOLE_OPERATION:
            sources = (0,)
        elif isinstance(kernel, ConvolutionKernel) and kernel.run_stack:
            sources = sources[:1]
        dead = (present | {step.last}).difference(network.live[step.last])
        present = (present | {step.last}) - dead
        is_copied = step.last in borrowed and network.consumers[step.last][-1:] > (step.last + 1,)
        flows.append((sources, step.last, is_copied, tuple(dead)))
    return flows
