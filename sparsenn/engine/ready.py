"""Ready: a plan whose steps can run, with their weights on the device; and the loop over them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

from sparsenn.backends import (
    Backend,
    DenseKernel,
    Features,
    LayerCounts,
    NumberCheck,
    Replay,
    RowsLeft,
    SparseChain,
    SparseKernel,
    SparseProblem,
    Stepwise,
    run_images,
)
from sparsenn.backends.steps import IMAGE_OPERATION
from sparsenn.engine.clock import Clock, Unwatched
from sparsenn.engine.finite import HalfRange, RangeWatch
from sparsenn.engine.image_tiles import run_tiles, spans
from sparsenn.engine.plan import Plan
from sparsenn.engine.steps import CONV_OPERATION, DENSE_OPERATION, OPERATION, Step
from sparsenn.engine.tally import Tally
from sparsenn.engine.weights import Weights
from sparsenn.formats import CSR, Array
from sparsenn.layers import CombiningLayer, Flatten, SparseLinear
from sparsenn.spans import span, watchers

__all__ = ["QUIET", "Pass", "Ready"]

MAX_REPLAYS = 8
"""Shapes of rows that an executable replays; the one that was used least recently goes first."""


@dataclass
class Pass:
    """What goes along with rows on their way through the steps.

    Parameters
    ----------
    clock : the run's, or one that is never read.
    tally : what is counted and timed, layer by layer; None where nothing is: then nothing waits for the device.
    watch : of numbers that half precision cannot hold; None where nothing is looked at.
    check : of the rows themselves; None where they are not looked at.
    keep_half : whether float16 rows stay float16.
    report : told how many layers are done.
    following : whether more rows follow, so that the weights of the first step are wanted again.
    """

    clock: Clock | Unwatched
    tally: Tally | None = None
    watch: RangeWatch | None = None
    check: NumberCheck | None = None
    keep_half: bool = False
    report: Callable[[int], None] = lambda layers: None
    following: bool = False


QUIET = Pass(Unwatched())
"""What goes along with rows when nothing is counted, timed or checked."""


class _ReadyStep(Protocol):
    """A step that can run.

    Attributes
    ----------
    nbytes : memory that it keeps for rows.
    """

    @property
    def nbytes(self) -> int: ...

    def run(self, rows: RowsLeft, going: Pass, *others: Features) -> RowsLeft:
        """Take rows through the layers of the step; `others` are what a layer combines with them."""
        ...


class Ready:
    """A plan whose steps can run.

    Parameters
    ----------
    plan : what to run.
    weights : the session's, prepared once and shared by all its plans; or in parts, where the plan streams them.
    half_range : of the session's network.
    """

    def __init__(self, plan: Plan, weights: Weights, half_range: HalfRange) -> None:
        self.plan = plan
        self._weights = weights
        self._half_range = half_range
        self._steps: dict[int, _ReadyStep] = {}
        self._spans = spans(plan)
        self._borrowed = _borrowed(plan)
        self._replays: OrderedDict[tuple[Any, ...], Replay] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Memory that is cached for rows, in bytes."""
        steps = sum(step.nbytes for step in self._steps.values())
        return steps + sum(replay.nbytes for replay in self._replays.values())

    def outputs(self, features: Features, going: Pass) -> Any:
        """Return each input's outputs, in memory that the caller owns.

        Where no number has to be looked at between layers, rows of a shape that comes again are replayed, if the device
        gains by that.
        """
        if going.watch is not None:
            return self._spread(self.run(features, going), features.shape[0])
        outputs = self._replayed(features, going)
        going.report(len(self.plan.network))
        return outputs

    def _replayed(self, features: Features, going: Pass) -> Any:
        plan = self.plan
        if plan.streams or isinstance(features, CSR) or watchers["step"] or not self._is_capturable:
            return self._spread(self.run(features, going), features.shape[0])
        key = features.shape, features.dtype
        replay = self._replays.get(key)
        if replay is not None:
            self._replays.move_to_end(key)
            return replay(self._outputs, features)
        outputs, replay = self._outputs(features), plan.backend.replay()
        if replay is not None:
            if len(self._replays) >= MAX_REPLAYS:
                plan.backend.before_drop()
                self._replays.popitem(last=False)
            self._replays[key] = replay
        return outputs

    @cached_property
    def _is_capturable(self) -> bool:
        """Whether no step but the last drops rows: the next one waits for the device to say how many are left."""
        before = [step.kernel for step in self.plan.steps[:-1]]
        return not any(isinstance(kernel, SparseKernel) and kernel.drops_rows for kernel in before)

    def _outputs(self, features: Array) -> Any:
        """Return outputs of dense rows, and report nothing: by one launch, if that is all there is to do."""
        launch = self.launch if self.plan.leaves_outputs else None
        return self._spread(self.run(features, QUIET), features.shape[0]) if launch is None else launch(features)

    def _spread(self, left: RowsLeft, count: int) -> Any:
        """Return each input's outputs, in memory that the caller owns."""
        if left.owner is None and self.plan.leaves_outputs:
            return left.features
        return self.plan.backend.spread(left, self.plan.merged.expansion, count)

    @property
    def launch(self) -> Callable[[Array], Array] | None:
        """What takes dense rows through all layers by one launch; None where there is more to do, or nothing ready."""
        only = self._steps.get(0) if len(self.plan.steps) == 1 else None
        return only.launch if isinstance(only, _DenseStep | _SparseStep) else None

    def run(self, features: Features, going: Pass) -> RowsLeft:
        """Take rows through all layers: Y' = act(Y·W + b), step by step.

        The result may lie in memory that the next run overwrites.
        """
        values, rows = {0: features}, RowsLeft(features)
        last, traced = len(self.plan.steps) - 1, bool(watchers["step"])
        for number, end in self._spans:
            step = self.plan.steps[number]
            if self._is_over(rows, step):
                return self._without_rows(rows, number, going)
            if end > number + 1:
                rows = self._tiles(number, end, rows, going)
            else:
                ready = self._step(number, going)
                details = {**step.details, "rows": rows.features.shape[0]} if traced else {}
                with span(step.title, "step", **details) if traced else nullcontext():
                    rows = self._run_step(ready, number, rows, values, going)
            if number < last and rows.owner is not None:
                rows = _tightened(rows)
            self._store(end - 1, rows.features, values)
            going.report(self.plan.steps[end - 1].last)
        return rows

    def _run_step(
        self, ready: _ReadyStep, number: int, rows: RowsLeft, values: dict[int, Features], going: Pass
    ) -> RowsLeft:
        """Run a step on what it reads, all of which has the rows that the step before it left."""
        first, *others = (values[source] for source in self.plan.network.nodes[self.plan.steps[number].first].sources)
        return ready.run(rows if first is rows.features else replace(rows, features=first), going, *others)

    def _store(self, number: int, features: Features, values: dict[int, Features]) -> None:
        """Store what a step gives until it has been read, and drop what has been."""
        network, value = self.plan.network, self.plan.steps[number].last
        if value in self._borrowed and network.consumers[value][-1:] > (value + 1,) and not isinstance(features, CSR):
            features = features.copy()
        values[value] = features
        for read in values.keys() - network.live[value]:
            del values[read]

    def _tiles(self, first: int, end: int, rows: RowsLeft, going: Pass) -> RowsLeft:
        """Run steps of images tile by tile."""
        plan = self.plan
        steps = [(number, self._step(number, going)) for number in range(first, end)]
        tallies: list[Tally] = []

        def run(tile: RowsLeft) -> RowsLeft:
            mine = replace(going, tally=None if going.tally is None else Tally.of(plan.network))
            values = {plan.steps[first].first: tile.features}
            for number, step in steps:
                tile = self._run_step(step, number, tile, values, mine)
                self._store(number, tile.features, values)
            if mine.tally is not None:
                tallies.append(mine.tally)
            return tile

        features, outputs = plan.backend.as_dense(rows.features), plan.network.sizes[plan.steps[end - 1].last]
        start = going.clock.now()
        with span(f"{plan.steps[first].title} to {plan.steps[end - 1].last}, in tiles", "step"):
            rows = run_tiles(run, rows, features, outputs)
        if going.tally is not None:
            for tally in tallies:
                going.tally.join(tally)
            going.tally.scale(plan.steps[first].first, plan.steps[end - 1].last, going.clock.now() - start)
        return rows

    def _step(self, number: int, going: Pass) -> _ReadyStep:
        """Return a step, made ready on first use; where weights stream, in every run."""
        found = self._steps.get(number)
        if found is not None:
            return found
        plan, step = self.plan, self.plan.steps[number]
        following = number + 1 if number + 1 < len(plan.steps) else 0 if going.following else None
        with plan.problem.turn(step, plan.streams), going.clock.part("prepare", f"ready {step.title}"):
            stack = self._weights.get(plan, number, following)
            made = _prepared(plan, step, stack, self._weights)
        if not plan.streams:
            self._steps[number] = made
        return made

    def _is_over(self, rows: RowsLeft, step: Step) -> bool:
        """Whether no row is left to compute, and none will be revived; known only where rows were tightened."""
        return rows.owner is not None and rows.features.shape[0] == 0 and step.first >= self.plan.droppable_from

    def _without_rows(self, rows: RowsLeft, number: int, going: Pass) -> RowsLeft:
        """Count the steps from `number` on as run on no rows."""
        plan = self.plan
        for step in plan.steps[number:]:
            if going.tally is not None:
                grouped = 0 if plan.options.deduplication and step.kernel.operation == OPERATION else None
                counts = [LayerCounts(step.kernel.name, 0, 0, 0, 0, grouped) for _ in step.layers]
                going.tally.add(step.first, counts, [0.0] * len(counts), 0.0)
            going.report(step.last)
        numbers = rows.features.values if isinstance(rows.features, CSR) else rows.features
        return RowsLeft(np.zeros((0, plan.merged.network.outputs), numbers.dtype), rows.owner)


def _tightened(rows: RowsLeft) -> RowsLeft:
    """Return rows without those that belong to no input; waits for the device."""
    assert rows.owner is not None
    used = int(rows.owner.max()) + 1 if rows.owner.size else 0
    features: Any = rows.features
    return rows if used == features.shape[0] else RowsLeft(features[:used], rows.owner)


def _multiplicity(backend: Backend, rows: RowsLeft) -> Array | None:
    """Return how many inputs share each row, on the host; None for one each."""
    if rows.owner is None:
        return None
    owner = np.asarray(backend.fetch(rows.owner))
    return np.bincount(owner[owner >= 0], minlength=int(rows.features.shape[0])).astype(np.int64)


def _joined(before: Array | None, after: Array | None) -> Array | None:
    """Return each input's row after a step, given its row before and what each row became."""
    if before is None or after is None:
        return after if before is None else before
    return (after[before] + 1) * (before >= 0) - 1


def _prepared(plan: Plan, step: Step, stack: Any, weights: Weights) -> _ReadyStep:
    """Return a runnable step of a plan, given its prepared layers."""
    if step.kernel.operation == OPERATION:
        return _SparseStep(plan, step, stack)
    if step.kernel.operation == DENSE_OPERATION:
        return _DenseStep(plan, step, stack, weights)
    assert step.kernel.operation in (CONV_OPERATION, IMAGE_OPERATION)
    if isinstance(plan.network[step.first], CombiningLayer):
        return _CombiningStep(plan, step)
    return _ImageStep(plan, step, stack)


def _borrowed(plan: Plan) -> frozenset[int]:
    """Return the nodes whose outputs lie in memory that later steps write over: that of sparse layers."""
    found: set[int] = set()
    for step in plan.steps:
        node = plan.network.nodes[step.first]
        is_view = isinstance(node.layer, Flatten) and node.sources[0] in found
        if step.kernel.operation == OPERATION or is_view:
            found.add(step.last)
    return frozenset(found)


class _SparseStep:
    """Sparse layers: rows of zeros may leave, and equal rows become one."""

    def __init__(self, plan: Plan, step: Step, stack: Any) -> None:
        self._step, self._backend = step, plan.backend
        kernel = step.kernel
        assert isinstance(kernel, SparseKernel)
        network, options = plan.merged.network, plan.options
        layers = network.layers_of(SparseLinear, step.first, step.last)
        droppable_from = max(0, plan.droppable_from - step.first) if options.compaction else len(network)
        self._drops = droppable_from < len(layers)
        form = plan.rows.form if 0 in network.nodes[step.first].sources else "dense"
        waits = set(network.live[step.first]) & set(network.live[step.last])
        self._in_order = bool(waits)  # what waits for a later layer has a row for each of these
        deduplication = options.deduplication and not self._in_order
        problem = SparseProblem(plan.rows.count, form, droppable_from, deduplication)
        self._chain: SparseChain
        self.launch: Callable[[Array], Array] | None = None
        if kernel.prepare is not None:
            self._chain = kernel.prepare(stack, problem)
            if not kernel.drops_rows:
                self.launch = partial(_outputs_of, self._chain)
        else:
            self._chain = Stepwise(plan.backend, kernel, stack, layers, problem, options.kernel == "auto")

    @property
    def nbytes(self) -> int:
        """Memory that is kept for rows, in bytes."""
        return self._chain.nbytes

    def run(self, rows: RowsLeft, going: Pass, *others: Features) -> RowsLeft:
        """Take rows through the layers of the step."""
        counting = going.tally is not None
        start = going.clock.now()
        multiplicity = _multiplicity(self._backend, rows) if counting else None
        if isinstance(self._chain, Stepwise):
            first = self._step.first
            left = self._chain.run(rows.features, counting, multiplicity, lambda done: going.report(first + done))
        else:
            left = self._chain.run(rows.features, counting, multiplicity)
        if going.tally is not None:
            with span("wait for the device", "wait"):
                self._backend.wait()
            seconds = going.clock.now() - start
            counts = self._chain.counts()
            going.tally.add(self._step.first, counts, _shares(counts, seconds), self._step.seconds)
        if going.watch is not None:
            going.watch.after(self._step.kernel, left.features, self._step.first, self._step.last)
        if self._in_order and left.owner is not None:
            left = RowsLeft(self._backend.spread(left, None, rows.features.shape[0]))
        dropped = left.owner is not None and self._drops
        return RowsLeft(left.features, _joined(rows.owner, left.owner), dropped)


def _outputs_of(chain: SparseChain, rows: Array) -> Array:
    """Take rows through a chain that drops none, uncounted; return its outputs."""
    features: Any = chain.run(rows, False, None).features
    outputs: Array = features
    return outputs


class _DenseStep:
    """Dense layers, or sparse ones whose zeros are stored: all in one launch, unless hidden values are looked at."""

    def __init__(self, plan: Plan, step: Step, stack: Any, weights: Weights) -> None:
        self._plan, self._step, self._weights = plan, step, weights
        assert isinstance(step.kernel, DenseKernel)
        self._kernel = step.kernel
        self.launch: Callable[[Array], Array] = partial(step.kernel.launch, stack)

    nbytes = 0

    def run(self, rows: RowsLeft, going: Pass, *others: Features) -> RowsLeft:
        """Take rows through the layers of the step."""
        start, step = going.clock.now(), self._step
        values: Any = rows.features
        if isinstance(values, CSR) and self._kernel.sparse_row_seconds is None:
            with span("to dense rows", "convert"):
                values = self._plan.backend.as_dense(values)
        outputs = self.launch(values) if going.watch is None else self._watched(values, going.watch)
        if going.tally is not None:
            count, layers = int(values.shape[0]), self._plan.merged.network.layers[step.first : step.last]
            edges = [count * layer.inputs * layer.outputs for layer in layers]  # type: ignore[union-attr]
            if isinstance(values, CSR):
                edges[0] = values.nnz * layers[0].outputs  # type: ignore[union-attr]
            copies = self._plan.merged.copies[step.last - 1]
            _count(self._plan.backend, going, step, edges, RowsLeft(outputs, rows.owner), start, copies)
        return RowsLeft(outputs, rows.owner)

    def _watched(self, values: Array, watch: RangeWatch) -> Array:
        """Run the layers, and check that numbers stay within half precision."""
        first = self._step.first
        while first < self._step.last:
            stop = watch.before(self._kernel, values, first, self._step.last)
            if (first, stop) == (self._step.first, self._step.last):
                values = self.launch(values)
            else:
                part = self._weights.part(self._plan.problem, self._step.part(first, stop))
                values = self._kernel.launch(part, values)
            watch.after(self._kernel, values, first, stop)
            first = stop
        return values


class _ImageStep:
    """A layer of images, or several that one kernel fuses."""

    def __init__(self, plan: Plan, step: Step, stack: Any) -> None:
        self._plan, self._step, self._stack = plan, step, stack

    nbytes = 0

    def run(self, rows: RowsLeft, going: Pass, *others: Features) -> RowsLeft:
        """Take rows through the layers."""
        start, step, backend = going.clock.now(), self._step, self._plan.backend
        values: Any = rows.features
        if isinstance(values, CSR):
            with span("to dense rows", "convert"):
                values = backend.as_dense(values)
        if going.watch is not None:
            going.watch.before(step.kernel, values, step.first, step.last)
        outputs = run_images(step.kernel, self._stack, values)
        if going.watch is not None:
            going.watch.after(step.kernel, outputs, step.first, step.last)
        if going.tally is not None:
            network = self._plan.network
            count = int(outputs.shape[0])
            shapes = [(count, *network.input_shapes(number)[0]) for number in step.layers]
            edges = [network[number].multiply_adds(shape) for number, shape in zip(step.layers, shapes, strict=True)]
            _count(backend, going, step, edges, RowsLeft(outputs, rows.owner), start)
        return RowsLeft(outputs, rows.owner)


class _CombiningStep:
    """A layer that combines what several steps gave."""

    def __init__(self, plan: Plan, step: Step) -> None:
        self._plan, self._step = plan, step

    nbytes = 0

    def run(self, rows: RowsLeft, going: Pass, *others: Features) -> RowsLeft:
        """Add or concatenate the rows."""
        start, step, backend = going.clock.now(), self._step, self._plan.backend
        layer = self._plan.network[step.first]
        assert isinstance(layer, CombiningLayer)
        matrices = [backend.as_dense(each) if isinstance(each, CSR) else each for each in (rows.features, *others)]
        outputs = backend.combine(layer, matrices)
        if going.watch is not None:
            going.watch.after(step.kernel, outputs, step.first, step.last)
        left = RowsLeft(outputs, rows.owner)
        if going.tally is not None:
            _count(backend, going, step, [0], left, start)
        return left


def _count(
    backend: Backend,
    going: Pass,
    step: Step,
    edges: list[int],
    outputs: RowsLeft,
    start: float,
    copies: Array | None = None,
) -> None:
    """Count what a launch with dense outputs computed; only the last layer's outputs are known.

    Parameters
    ----------
    edges : multiply-adds of each layer.
    copies : how many neurons each output stands for; where that is more than one, non-zeros are not known.
    """
    assert going.tally is not None
    features: Any = outputs.features
    with span("count, which waits for the device", "wait"):
        nonzeros = backend.count_nonzeros(features)
    multiplicity = _multiplicity(backend, outputs)
    weights = np.ones(nonzeros.size, np.int64) if multiplicity is None else multiplicity
    rows = nonzeros.size
    hidden = [LayerCounts(step.kernel.name, rows, None, None, done) for done in edges[:-1]]
    active = int(weights[nonzeros > 0].sum())
    single = copies is None or bool((copies == 1).all())
    last = LayerCounts(step.kernel.name, rows, active, int(nonzeros @ weights) if single else None, edges[-1])
    counts = [*hidden, last]
    going.tally.add(step.first, counts, _shares(counts, going.clock.now() - start), step.seconds)


def _shares(counts: Any, seconds: float) -> list[float]:
    """Share a step's time among its layers, in proportion to the multiply-adds done."""
    edges = sum(found.performed_edges for found in counts)
    return [seconds * (found.performed_edges / edges if edges else 1 / len(counts)) for found in counts]
