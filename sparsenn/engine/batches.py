"""The batch loop: rows that a session was given, on their way through the layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from sparsenn.backends import Features, NumberCheck, RowsCheck, RowsLeft, RowsWatch
from sparsenn.engine.bound_steps import QUIET, RunContext
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.executable import Executable
from sparsenn.engine.finite import HALF_PRECISION, check_inputs
from sparsenn.engine.host_call import MAX_HOST_BYTES
from sparsenn.engine.inputs import Given
from sparsenn.engine.layer_counter import LayerCounter
from sparsenn.engine.plan import Plan
from sparsenn.engine.plan_cache import PlanCache, form_of_features
from sparsenn.engine.result import BatchOutput, Result, Seconds
from sparsenn.engine.shrinking_batches import ShrinkingBatches
from sparsenn.engine.timer import NullTimer, Timer
from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.runtime.spans import span

__all__ = ["BatchRunner", "Part", "Report", "joined"]

PIECE_BYTES = 64 << 20
"""Bytes of host rows that are copied to a GPU at a time, while earlier ones are computed: enough for eight threads to
fill pinned memory side by side, and a few milliseconds' work."""

MAX_COPIES = 2
"""Copies of outputs to the host that are under way at a time."""


class Report(Protocol):
    """A function that takes the number of rows done."""

    def __call__(self, first: int, last: int, layers: int) -> None:
        """Take note that rows before `first` are done, and rows `first` to `last` have passed so many layers."""
        ...


@dataclass(frozen=True, eq=False)
class Part:
    """The result of some of a run's rows.

    Parameters
    ----------
    plan : what ran them.
    rows : how many.
    categories : sorted int64, the inputs whose final row has a non-zero, counted from the run's first row.
    batches, notes : as `Result` has them.
    counter : what was counted; None where nothing was.
    """

    plan: Plan
    rows: int
    categories: Array
    batches: tuple[BatchOutput, ...]
    counter: LayerCounter | None
    notes: tuple[str, ...]


def joined(parts: Sequence[Part], plan: Plan, seconds: Seconds) -> Result:
    """Return the result of a run, of one part or more, in the order of their rows."""
    network = plan.network
    counters = [part.counter for part in parts if part.counter is not None]
    return Result(
        plan=plan,
        inputs=sum(part.rows for part in parts),
        neurons=network.inputs,
        layers=len(network),
        edges=network.multiply_adds,
        categories=_concatenated([part.categories for part in parts]),
        statistics=LayerCounter.summed(network, counters).statistics(network) if len(counters) == len(parts) else (),
        seconds=seconds,
        batches=tuple(batch for part in parts for batch in part.batches),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _concatenated(categories: Sequence[Array]) -> Array:
    """Return the categories of parts of the rows as one array of int64."""
    return categories[0] if len(categories) == 1 else np.concatenate([np.zeros(0, np.int64), *categories])


def _no_progress(first: int, last: int, layers: int) -> None:
    """Report to nobody."""


class BatchRunner:
    """Runs rows through the layers, batch by batch, with what a session has cached.

    Parameters
    ----------
    compiled : the session's network and how it is to be run.
    cache : what is cached.
    """

    def __init__(self, compiled: CompiledNetwork, cache: PlanCache) -> None:
        self._compiled, self._cache, self._backend = compiled, cache, compiled.backend
        self._watch: RowsWatch | None = None

    def _run_batches(
        self,
        given: Given,
        rows: tuple[int, int],
        size: int,
        context: RunContext,
        report: Report,
        run: Callable[[int, int, int, RunContext], None],
    ) -> tuple[str, ...]:
        """Run some of the given rows, at most `size` at a time, and fewer where memory does not suffice.

        Parameters
        ----------
        given : all rows of the run.
        rows : the first of them, counted from 0, and the one after the last.
        size : rows at a time.
        context : the context of each batch, but for what is reported of it.
        report : called with the number of layers done.
        run : runs a batch, given its first row, the one after its last, how many are run at a time, and its context.

        Returns
        -------
        What is to be said of memory that did not suffice.
        """
        first, last = rows
        attempts = ShrinkingBatches(last, size, self._cache.make_room, first)
        for start, stop in attempts:
            context = replace(context, following=stop < last, report=partial(report, start, stop))
            with attempts.trying(), span("batch", "batch", first=start, rows=stop - start):
                run(start, stop, attempts.size, context)
                attempts.done()
        self._refuse_infinite(given, context.check)
        return attempts.notes()

    # ---- With counts and times -----------------------------------------------------------------------------------

    def part(self, given: Given, first: int, last: int, size: int, counted: bool, timer: Timer, report: Report) -> Part:
        """Run some of the given rows, at most `size` at a time; how they run depends on all that are given.

        Parameters
        ----------
        given : all rows of the run.
        first, last : which of them, counted from 0.
        size : rows at a time.
        counted : whether layers are counted and timed.
        timer : of the session's backend.
        report : called with the number of layers done.
        """
        network = self._compiled.network
        plan = used = self._cache.plan_of(given)
        batches, categories, counters = list[BatchOutput](), list[Array](), list[LayerCounter]()

        def run(start: int, stop: int, size: int, context: RunContext) -> None:
            nonlocal used
            used, batch, living, counter = self._batch(given, start, stop, size, context, counted)
            if counter is not None:
                counters.append(counter)
            categories.append(start + living if start else living)
            batches.append(batch)

        context = RunContext(timer, check=self.number_check(given), keep_half=plan.keeps_half)
        notes = self._run_batches(given, (first, last), size, context, report, run)
        counter = LayerCounter.summed(network, counters) if counted else None
        return Part(used, last - first, _concatenated(categories), tuple(batches), counter, notes)

    def _batch(
        self, given: Given, first: int, last: int, size: int, context: RunContext, counted: bool
    ) -> tuple[Plan, BatchOutput, Array, LayerCounter | None]:
        """Run some rows; return the plan that ran them, their outputs, which end with a non-zero, and counts."""
        with context.timer.part("transfer", "check"):
            check = self._cache.queue_check(given, first, last, size)
        network = self._compiled.network
        context = replace(context, counter=LayerCounter.of(network) if counted else None)
        plan, living, left = self._take_out(given, first, last, size, context, check)
        if check is not None and not check.passed():  # these rows differ in form from those before
            context = replace(context, counter=LayerCounter.of(network) if counted else None)
            plan, living, left = self._take_out(given, first, last, size, context)
        fetch = None if self._backend.in_host_memory else self._backend.fetch
        return plan, BatchOutput(left, last - first, fetch), living, context.counter

    def _take_out(
        self, given: Given, first: int, last: int, size: int, context: RunContext, check: RowsCheck | None = None
    ) -> tuple[Plan, Array, RowsLeft]:
        """Run some rows, whose check may be queued; return the plan, which end with a non-zero, and what is left."""
        ready, features, context = self._place(given, first, last, size, context, check)
        left = ready.run(features, context)
        with context.timer.part("transfer", "copy out"):
            if check is not None:
                check.fetch()
            taken = self._backend.take_out(left, ready.plan.owns_outputs)
        with span("wait for the device", "wait"):  # while it computes
            return ready.plan, *taken()

    # ---- Outputs alone -------------------------------------------------------------------------------------------

    def outputs(
        self,
        given: Given,
        first: int,
        last: int,
        room: Callable[[Any], Array] | None = None,
        report: Report = _no_progress,
    ) -> Any:
        """Return dense outputs of some of the given rows, where those are; how they run depends on all that are given.

        Parameters
        ----------
        given : all rows of the run.
        first, last : which of them, counted from 0.
        room : returns the matrix of all outputs, on the host, for their type; rows `first` to `last` of it are filled
            and returned. None for one that is made here.
        report : called with the number of layers done.
        """
        network, backend = self._compiled.network, self._backend
        plan = used = self._cache.plan_of(given)
        target: Array | None = None
        parts: list[Any] = []
        copies: list[Callable[[], None]] = []
        batches = 0
        moves = room is not None or (given.on_host and not backend.in_host_memory)

        def run(start: int, stop: int, size: int, context: RunContext) -> None:
            nonlocal used, target, batches
            ready, features, context = self._place(given, start, stop, size, context)
            used, rows = ready.plan, ready.outputs(features, context)
            batches += 1
            if not moves:
                parts.append(rows)
                return
            if target is None:
                whole = np.empty((last, network.outputs), rows.dtype) if room is None else room(rows.dtype)
                target = whole[first:last]
            with span("copy out", "transfer"):
                copies.append(backend.fetch_later(rows, target[start - first : stop - first]))
            while len(copies) > MAX_COPIES:
                _finish(copies.pop(0))

        context = RunContext(NullTimer(), check=self._call_check(given), keep_half=plan.keeps_half)
        size = min(self._cache.batch_size(given.count), self._piece(plan, given))
        self._run_batches(given, (first, last), size, context, report, run)
        for finish in copies:
            _finish(finish)
        if batches == 1 and room is None:
            self._settle(given, used)
        if moves:
            return np.empty((0, network.outputs), np.float32) if target is None else target
        return parts[0] if len(parts) == 1 else backend.joined(parts, network.outputs)

    def _settle(self, given: Given, plan: Plan) -> None:
        """Remember that a plan runs such rows, if the steps are all they need."""
        source = given.source
        if plan.streams or not self._backend.reads_as_is(source) or not _is_same(source, given.rows):
            return
        ready, half = self._cache.executable_of(plan), source.dtype == np.float16 and not plan.keeps_half
        if not given.on_host or self._backend.in_host_memory:
            run = self._settled(ready, given.rows.shape, half)
        elif ready.is_capturable and not half and 0 < source.nbytes <= MAX_HOST_BYTES:
            run = partial(ready.host_outputs, shape=given.rows.shape, is_checked=self._compiled.options.check_finite)
        else:
            return
        self._cache.settle((type(source), source.shape, source.dtype), run)

    def _settled(self, ready: Executable, shape: tuple[int, int], placed: bool) -> Callable[[Array], Any]:
        """Return what takes rows through the steps, which are ready, and returns each input's outputs.

        It does not refer to this object: the cache that holds it goes as soon as the session does.

        Parameters
        ----------
        shape : of the rows as a matrix.
        placed : whether their type changes.
        """
        backend, watch = self._backend, self._watch
        checked = self._compiled.options.check_finite and backend.in_host_memory

        def run(rows: Array) -> Any:
            outputs = None if placed else ready.replayed(rows, shape, watch)
            if outputs is not None:
                return outputs
            with np.errstate(all="ignore"):
                rows = rows.reshape(shape)
                if checked:
                    check_inputs(rows)
                return ready.outputs(backend.place(rows) if placed else rows, QUIET, watch, placed)

        return run

    def _piece(self, plan: Plan, given: Given) -> int:
        """Return how many rows are copied to the device at a time: all, unless copies and computing can overlap."""
        if not given.on_host or given.sparse or self._backend.in_host_memory or plan.groups_rows or plan.streams:
            return max(1, given.count)
        pieces = -(-given.count * given.row_bytes // PIECE_BYTES)
        return max(1, -(-given.count // max(1, pieces)))

    # ---- Some rows -----------------------------------------------------------------------------------------------

    def _place(
        self, given: Given, first: int, last: int, size: int, context: RunContext, check: RowsCheck | None = None
    ) -> tuple[Executable, Features, RunContext]:
        """Bring some rows to the device; return what runs `size` such rows, the rows, and the context of the run."""
        with context.timer.part("transfer", "copy in"):
            features = self._cache.place(given.part(first, last), context.keep_half) if check is None else check.rows
        form = form_of_features(features)
        self._cache.note(given, form)
        with context.timer.part("prepare", "ready plan"):
            ready = self._cache.ready_for(form, given.whole, size)
        watched = given.on_host and self._watches(ready.plan)
        if context.check is not None:
            context.check.look(features)
            if watched or self._backend.in_host_memory:  # the answer is waited for in any case, or known at once
                self._refuse_infinite(given, context.check)
        return ready, features, replace(context, watch=self._cache.overflow_guard.watch()) if watched else context

    def _watches(self, plan: Plan) -> bool:
        return any(step.kernel.precision == HALF_PRECISION for step in plan.steps)

    def number_check(self, given: Given) -> NumberCheck | None:
        """Return what looks for NaN and infinity among rows; sparse ones have been looked at once they are placed."""
        return self._backend.number_check() if self._compiled.options.check_finite and not given.sparse else None

    def _call_check(self, given: Given) -> NumberCheck | None:
        """Return what looks at the rows of a call, which waits for no GPU that they are on."""
        if given.on_host or given.sparse or not self._compiled.options.check_finite:
            return self.number_check(given)
        if self._watch is None:
            self._watch = self._backend.rows_watch()
        return self._watch

    def refuse_earlier(self) -> None:
        """Refuse rows of earlier calls that were on a GPU, as far as it is known what they hold.

        Raises
        ------
        InputError
            One of the numbers was not finite.
        """
        if self._watch is not None and self._watch.found():
            raise InputError(
                "the rows of an earlier call, which were on the GPU, held NaN or an infinite number; check where they "
                "come from, or have check_finite=False"
            )

    def _refuse_infinite(self, given: Given, check: NumberCheck | None) -> None:
        if check is not None and not check.passed():
            check_inputs(given.rows)


def _is_same(source: Any, rows: Any) -> bool:
    """Return whether rows are the array that they come from, but for its shape."""
    return source is rows or (
        source.size == rows.size and rows.flags.c_contiguous and _address(source) == _address(rows)
    )


def _address(array: Any) -> int:
    """Return where a NumPy or CuPy array begins."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def _finish(copy: Callable[[], None]) -> None:
    """Wait for the end of a copy."""
    with span("wait for the copy", "wait"):
        copy()
