"""Bound steps: the steps of a plan with their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from sparsenn.backends import (
    Backend,
    Features,
    LayerCounts,
    NumberCheck,
    RowsLeft,
    SparseKernel,
    SparseProblem,
    Stepwise,
    launch_of,
)
from sparsenn.backends.kernel_records import SPARSE_OPERATION, WHOLE_OPERATION, ConvolutionKernel
from sparsenn.backends.stepwise import chain_of
from sparsenn.engine.finite import HALF_PRECISION, BatchGuard
from sparsenn.engine.plan import Plan
from sparsenn.engine.result import LayerCounter
from sparsenn.engine.steps import Step
from sparsenn.engine.timer import Timer, now
from sparsenn.engine.weight_cache import WeightCache
from sparsenn.formats import CSR, Array
from sparsenn.layers import FullyConnected, PerPosition, connected_layer, positions_of
from sparsenn.runtime.spans import span

__all__ = ["QUIET", "BoundStep", "RunContext", "bind_step"]


@dataclass
class RunContext:
    """The context of a batch's run through the steps."""

    timer: Timer | None = None
    counter: LayerCounter | None = None  # without one, nothing waits for the device
    watch: BatchGuard | None = None
    check: NumberCheck | None = None  # of the rows themselves
    report: Callable[[int], None] = lambda layers: None  # called with the number of layers done
    following: bool = False  # whether another batch needs the weights of the first step again


QUIET = RunContext()  # the context of rows that are not counted, timed or checked


def _multiplicity(backend: Backend, rows: RowsLeft) -> Array | None:
    """Return how many inputs share each row, on the host; None for one each."""
    return rows.row_map.on_host(backend.fetch).multiplicity(rows.features.shape[0])


class _SparseStep:
    """Sparse layers: rows of zeros may leave, and equal rows become one."""

    def __init__(self, plan: Plan, step: Step, stack: Any) -> None:
        self._step, self._backend = step, plan.backend
        network, options, layers = plan.merged.network, plan.options, len(step.layers)
        droppable_from = max(0, plan.droppable_from - step.first) if options.compaction else layers
        self._drops = droppable_from < layers
        form = plan.rows.form if 0 in network.nodes[step.first].sources else "dense"
        # a value that a later layer reads has a row for each of these
        self._in_order = bool(set(network.live[step.first]) & set(network.live[step.last]))
        self._chain = _chain(plan, step, stack, form, droppable_from, options.deduplication and not self._in_order)
        chain = self._chain  # functions do not refer to this object, so that it is freed with the session
        self.run_quietly: Callable[[Any], RowsLeft] = lambda rows: chain.run(rows, False, None)
        self.launch = None if step.drops_rows else lambda rows: chain.run(rows, False, None).features

    @property
    def nbytes(self) -> int:
        return int(self._chain.nbytes)

    def run(self, rows: RowsLeft, context: RunContext, *others: Features) -> RowsLeft:
        counting = context.counter is not None
        start = now(context.timer)
        multiplicity = _multiplicity(self._backend, rows) if counting else None
        if isinstance(self._chain, Stepwise):
            first = self._step.first
            left = self._chain.run(rows.features, counting, multiplicity, lambda done: context.report(first + done))
        else:
            left = self._chain.run(rows.features, counting, multiplicity)
        if context.counter is not None:
            with span("wait for the device", "wait"):
                self._backend.queue.wait()
            seconds = now(context.timer) - start
            context.counter.add(self._step.first, self._chain.counts(), seconds, self._step.seconds)
        if context.watch is not None:
            context.watch.after(self._step.kernel, left.features, self._step.first, self._step.last)
        if self._in_order and left.row_map.rows is not None:
            left = RowsLeft(self._backend.spread(left, None))
        dropped = left.row_map.rows is not None and self._drops
        row_map = left.row_map
        if rows.row_map.rows is not None:  # on the host, as between all steps
            row_map = rows.row_map.then(row_map.on_host(self._backend.fetch))
        return RowsLeft(left.features, row_map, dropped)


class _DenseStep:
    """Layers with dense outputs, run in one launch unless hidden values have to be checked."""

    def __init__(self, plan: Plan, step: Step, stack: Any, weights: WeightCache) -> None:
        self._plan, self._step, self._weights = plan, step, weights
        launch = self.launch = _launch(plan, step, stack)
        self.run_quietly: Callable[..., RowsLeft] = lambda *matrices: RowsLeft(launch(*matrices))

    nbytes = 0

    def run(self, rows: RowsLeft, context: RunContext, *others: Features) -> RowsLeft:
        start, step = now(context.timer), self._step
        matrices = (self._readable(rows.features), *map(self._readable, others))
        outputs = self.launch(*matrices) if context.watch is None else self._watched(matrices, context.watch)
        left = RowsLeft(outputs, rows.row_map)
        if context.counter is not None:
            counts = self._counts(matrices[0], left)
            context.counter.add(step.first, counts, now(context.timer) - start, step.seconds)
        return left

    def _counts(self, inputs: Features, left: RowsLeft) -> list[LayerCounts]:
        """Count a launch, of which only the last layer's outputs are known; wait for the device.

        Where an output stands for several neurons, non-zeros are unknown.
        """
        backend, name, features = self._plan.backend, self._step.kernel.name, left.features
        with span("count, which waits for the device", "wait"):
            nonzeros = backend.count_nonzeros(features)  # type: ignore[arg-type]
        multiplicity = _multiplicity(backend, left)
        weights = np.ones(nonzeros.size, np.int64) if multiplicity is None else multiplicity
        *hidden, edges = (self._edges(number, inputs) for number in self._step.layers)
        active = int(weights[nonzeros > 0].sum())
        single = bool((self._plan.merged.copies[self._step.last - 1] == 1).all())
        last = LayerCounts(name, nonzeros.size, active, int(nonzeros @ weights) if single else None, edges)
        return [*(LayerCounts(name, nonzeros.size, None, None, done) for done in hidden), last]

    def _readable(self, features: Features) -> Any:
        """Return features as a dense matrix, unless the layers read sparse ones."""
        is_shared = isinstance(self._plan.merged.network[self._step.first], PerPosition)
        if not isinstance(features, CSR) or (self._step.kernel.sparse_rows and not is_shared):
            return features
        with span("to dense rows", "convert"):
            return self._plan.backend.as_dense(features)

    def _edges(self, number: int, inputs: Features) -> int:
        """Return the multiply-adds of a layer; `inputs` are those of the step."""
        layer, count = self._plan.merged.network[number], int(inputs.shape[0])
        if not isinstance(layer, FullyConnected):
            return layer.multiply_adds((count, *self._plan.network.input_shapes(number)[0]))
        is_sparse = isinstance(inputs, CSR) and number == self._step.first
        return layer.outputs * (inputs.nnz if is_sparse else count * layer.inputs)  # type: ignore[union-attr]

    def _watched(self, matrices: tuple[Any, ...], watch: BatchGuard) -> Array:
        step, kernel, first = self._step, self._step.kernel, self._step.first
        if isinstance(kernel, ConvolutionKernel) and kernel.run_stack and kernel.precision == HALF_PRECISION:
            watch.before(kernel, matrices[0], first, step.last)
            stack = self._weights.of_layers(self._plan.compiled, step)
            return kernel.run_stack(
                stack, *matrices, scan=lambda at, numbers: watch.after(kernel, numbers, first + at, first + at + 1)
            )
        while first < step.last:
            stop, launch = watch.before(kernel, matrices[0], first, step.last), self.launch
            if (first, stop) != (step.first, step.last):
                some = step.of_layers(first, stop)
                launch = _launch(self._plan, some, self._weights.of_layers(self._plan.compiled, some))
            matrices = (launch(*matrices),)
            watch.after(kernel, matrices[0], first, stop)
            first = stop
        outputs: Array = matrices[0]
        return outputs


def _launch(plan: Plan, step: Step, stack: Any) -> Callable[..., Array]:
    """Return the function that runs layers on row-major matrices; layers that positions share take a row a position."""
    layer = plan.merged.network[step.first]
    if not isinstance(layer, PerPosition) or step.kernel.operation == WHOLE_OPERATION:
        return launch_of(step.kernel, stack)
    rows_of = (
        launch_of(step.kernel, stack) if step.kernel.operation != SPARSE_OPERATION else _all_rows(plan, step, stack)
    )
    positions, inputs = layer.positions, layer.layer.inputs

    def run(features: Array) -> Array:
        rows = features.shape[0]
        outputs = rows_of(features.reshape(rows * positions, inputs))
        return outputs.reshape(rows, positions * outputs.shape[1])

    return run


def _all_rows(plan: Plan, step: Step, stack: Any) -> Callable[[Array], Array]:
    """Return the function that runs sparse layers on rows, none of which is dropped."""
    backend, chain = plan.backend, _chain(plan, step, stack, "dense", len(step.layers), deduplicates=False)

    def run(rows: Array) -> Array:
        left = chain.run(rows, False, None)
        is_whole = left.row_map.rows is None and not isinstance(left.features, CSR)
        return left.features if is_whole else backend.spread(left, None)

    return run


def _chain(plan: Plan, step: Step, stack: Any, form: str, droppable_from: int, deduplicates: bool) -> Any:
    network, kernel = plan.merged.network, step.kernel
    assert isinstance(kernel, SparseKernel)
    layers: list[Any] = [connected_layer(layer) for layer in network.layers[step.first : step.last]]
    rows = plan.rows.count * positions_of(network[step.first])
    problem = SparseProblem(rows, form, droppable_from, deduplicates)
    return chain_of(plan.backend, kernel, stack, layers, problem, plan.options.kernel == "auto")


BoundStep: TypeAlias = _SparseStep | _DenseStep


def bind_step(plan: Plan, step: Step, stack: Any, weights: WeightCache) -> BoundStep:
    """Bind a step of a plan to its prepared layers."""
    is_shared = isinstance(plan.merged.network[step.first], PerPosition)
    if step.kernel.operation == SPARSE_OPERATION and not is_shared:
        return _SparseStep(plan, step, stack)
    return _DenseStep(plan, step, stack, weights)
