"""Bound steps: the steps of a plan with their weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sparsenn.backends import Features, LayerCounts, NumberCheck, RowsLeft, SparseChain, SparseProblem
from sparsenn.backends.kernel_records import SPARSE_OPERATION, WHOLE_OPERATION, ConvolutionKernel, SparseKernel
from sparsenn.backends.launching import launch_of
from sparsenn.backends.stepwise import Stepwise, chain_of
from sparsenn.engine.finite import HALF_PRECISION, BatchGuard
from sparsenn.engine.plan import Plan
from sparsenn.engine.result import LayerStatistics, layer_statistics
from sparsenn.engine.steps import Step
from sparsenn.engine.weight_cache import WeightCache
from sparsenn.formats import CSR, Array
from sparsenn.layers import FullyConnected, PerPosition, connected_layer, positions_of
from sparsenn.runtime.spans import span
from sparsenn.runtime.timing import Timer, now


class RunContext(NamedTuple):
    """The context of a batch's run through the steps."""

    timer: Timer | None = None
    statistics: list[LayerStatistics] | None = None  # of layers that have run; without, nothing waits for the device
    watch: BatchGuard | None = None
    check: NumberCheck | None = None  # of the rows themselves
    report: Callable[[int], None] = lambda layers: None  # called with the number of layers done
    following: bool = False  # whether another batch needs the weights of the first step again


QUIET = RunContext()  # the context of rows that are not counted, timed or checked

BoundStep: TypeAlias = tuple[Callable[..., RowsLeft], Callable[..., Any] | None, SparseChain | None]
"""The functions of a step, and the chain that has buffers for rows.

The first takes rows, a run context, and other values that the step reads. The second takes matrices alone, to a matrix:
nothing is checked or counted. It is None where rows may leave. Neither refers to the executable, which is freed with
its session.
"""


def bind_step(plan: Plan, step: Step, stack: Any, weights: WeightCache) -> BoundStep:
    """Bind a step of a plan to its prepared layers."""
    is_shared = isinstance(plan.merged.network[step.first], PerPosition)
    if step.kernel.operation == SPARSE_OPERATION and not is_shared:
        return _sparse_step(plan, step, stack)
    return _dense_step(plan, step, stack, weights)


def _sparse_step(plan: Plan, step: Step, stack: Any) -> BoundStep:
    """Bind sparse layers: rows of zeros may leave, and equal rows become one."""
    network, backend, options, first = plan.merged.network, plan.backend, plan.options, step.first
    droppable_from = max(0, plan.droppable_from - first) if options.compaction else len(step.layers)
    form = plan.rows.form if 0 in network.nodes[first].sources else "dense"
    # a value that a later layer reads has a row for each of these
    in_order = bool(set(network.live[first]) & set(network.live[step.last]))
    chain = _chain(plan, step, stack, form, droppable_from, options.deduplication and not in_order)

    def run(rows: RowsLeft, context: RunContext) -> RowsLeft:
        start = now(context.timer)
        multiplicity = None
        if context.statistics is not None:
            multiplicity = rows.row_map.on_host(backend.fetch).multiplicity(rows.features.shape[0])
        report = [lambda done: context.report(first + done)] if isinstance(chain, Stepwise) else []
        left = chain.run(rows.features, context.statistics is not None, multiplicity, *report)
        if context.statistics is not None:
            with span("wait for the device", "wait"):
                backend.queue.wait()
            seconds = now(context.timer) - start
            context.statistics.extend(layer_statistics(plan.network, step, chain.counts(), seconds, step.seconds))
        if context.watch is not None:
            context.watch.after(step.kernel, left.features, first, step.last)
        if in_order and left.row_map.rows is not None:
            left = RowsLeft(backend.spread(left, None))
        row_map = left.row_map
        dropped = row_map.rows is not None and droppable_from < len(step.layers)
        if rows.row_map.rows is not None:  # on the host, as between all steps
            row_map = rows.row_map.then(row_map.on_host(backend.fetch))
        return RowsLeft(left.features, row_map, dropped)

    return run, None if step.drops_rows else lambda rows: chain.run(rows, False, None).features, chain


def _dense_step(plan: Plan, step: Step, stack: Any, weights: WeightCache) -> BoundStep:
    """Bind layers with dense outputs, run in one launch unless hidden values have to be checked."""
    launch = _launch(plan, step, stack)
    takes_sparse = step.kernel.sparse_rows and not isinstance(plan.merged.network[step.first], PerPosition)

    def readable(features: Features) -> Any:
        if not isinstance(features, CSR) or takes_sparse:
            return features
        with span("to dense rows", "convert"):
            return plan.backend.as_dense(features)

    def run(rows: RowsLeft, context: RunContext, *others: Features) -> RowsLeft:
        start = now(context.timer)
        matrices = (readable(rows.features), *map(readable, others))
        outputs = launch(*matrices) if context.watch is None else watched(matrices, context.watch)
        left = RowsLeft(outputs, rows.row_map)
        if context.statistics is not None:
            counts = _dense_counts(plan, step, matrices[0], left)
            seconds = now(context.timer) - start
            context.statistics.extend(layer_statistics(plan.network, step, counts, seconds, step.seconds))
        return left

    def watched(matrices: tuple[Any, ...], watch: BatchGuard) -> Array:
        kernel, first = step.kernel, step.first
        if isinstance(kernel, ConvolutionKernel) and kernel.run_stack and kernel.precision == HALF_PRECISION:
            watch.before(kernel, matrices[0], first, step.last)
            return kernel.run_stack(
                stack, *matrices, scan=lambda at, numbers: watch.after(kernel, numbers, first + at, first + at + 1)
            )
        while first < step.last:
            stop, some = watch.before(kernel, matrices[0], first, step.last), launch
            if (first, stop) != (step.first, step.last):
                layers = step.of_layers(first, stop)
                some = _launch(plan, layers, weights.of_layers(plan.compiled, layers))
            matrices = (some(*matrices),)
            watch.after(kernel, matrices[0], first, stop)
            first = stop
        outputs: Array = matrices[0]
        return outputs

    return run, launch, None


def _dense_counts(plan: Plan, step: Step, inputs: Features, left: RowsLeft) -> list[LayerCounts]:
    """Count a launch, of which only the last layer's outputs are known; wait for the device."""
    backend, network, name = plan.backend, plan.merged.network, step.kernel.name
    with span("count, which waits for the device", "wait"):
        nonzeros = backend.count_nonzeros(left.features)  # type: ignore[arg-type]
    multiplicity = left.row_map.on_host(backend.fetch).multiplicity(nonzeros.size)
    weights = np.ones(nonzeros.size, np.int64) if multiplicity is None else multiplicity
    count, edges = int(inputs.shape[0]), list[int]()
    for number in step.layers:
        layer = network[number]
        if not isinstance(layer, FullyConnected):
            edges.append(layer.multiply_adds((count, *plan.network.input_shapes(number)[0])))
            continue
        is_sparse = isinstance(inputs, CSR) and number == step.first
        edges.append(layer.outputs * (inputs.nnz if is_sparse else count * layer.inputs))  # type: ignore[union-attr]
    active = int(weights[nonzeros > 0].sum())
    is_known = bool((plan.merged.copies[step.last - 1] == 1).all())  # else outputs stand for several neurons
    last = LayerCounts(name, nonzeros.size, active, int(nonzeros @ weights) if is_known else None, edges[-1])
    return [*(LayerCounts(name, nonzeros.size, None, None, done) for done in edges[:-1]), last]


def _launch(plan: Plan, step: Step, stack: Any) -> Callable[..., Array]:
    """Return the function that runs layers on row-major matrices; layers that positions share take a row a position."""
    layer, launch = plan.merged.network[step.first], launch_of(step.kernel, stack)
    if not isinstance(layer, PerPosition) or step.kernel.operation == WHOLE_OPERATION:
        return launch
    positions, inputs = layer.positions, layer.layer.inputs
    if step.kernel.operation == SPARSE_OPERATION:  # none of the rows is dropped
        backend, chain = plan.backend, _chain(plan, step, stack, "dense", len(step.layers), deduplicates=False)

        def launch(rows: Array) -> Array:
            left = chain.run(rows, False, None)
            is_whole = left.row_map.rows is None and not isinstance(left.features, CSR)
            return left.features if is_whole else backend.spread(left, None)

    def run(features: Array) -> Array:
        rows = features.shape[0]
        outputs = launch(features.reshape(rows * positions, inputs))
        return outputs.reshape(rows, positions * outputs.shape[1])

    return run


def _chain(plan: Plan, step: Step, stack: Any, form: str, droppable_from: int, deduplicates: bool) -> Any:
    network, kernel = plan.merged.network, step.kernel
    assert isinstance(kernel, SparseKernel)
    layers: list[Any] = [connected_layer(layer) for layer in network.layers[step.first : step.last]]
    rows = plan.rows.count * positions_of(network[step.first])
    problem = SparseProblem(rows, form, droppable_from, deduplicates)
    return chain_of(plan.backend, kernel, stack, layers, problem, plan.options.kernel == "auto")
