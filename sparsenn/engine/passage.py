"""Passage: a range of the rows that a session was given, on its way through the layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from sparsenn.backends import NumberCheck, RowsCheck, RowsLeft, RowsWatch, SparseKernel
from sparsenn.engine.attempts import Attempts
from sparsenn.engine.clock import Clock, Unwatched
from sparsenn.engine.finite import HALF_PRECISION, check_inputs
from sparsenn.engine.inputs import Given
from sparsenn.engine.plan import Plan, Problem
from sparsenn.engine.ready import Pass, Ready
from sparsenn.engine.result import BatchOutput, Result, Seconds
from sparsenn.engine.shelf import Shelf, form_of_features
from sparsenn.engine.steps import CONV_OPERATION, DENSE_OPERATION
from sparsenn.engine.tally import Tally
from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.spans import span, watchers

__all__ = ["Part", "Passage", "Report", "joined"]

PIECE_BYTES = 64 << 20
"""Bytes of host rows that are copied to a GPU at a time, while earlier ones are computed: enough for eight threads to
fill pinned memory side by side, and a few milliseconds' work."""

OWN_OUTPUTS = (CONV_OPERATION, DENSE_OPERATION)
"""Operations whose kernels give outputs in memory that nothing else uses; some layers of images return their inputs."""

_QUIET = Pass(Unwatched())
"""What goes along with rows when nothing is counted, timed or checked."""


class Report(Protocol):
    """A function that is told how far rows have come."""

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
    tally : what was counted; None where nothing was.
    """

    plan: Plan
    rows: int
    categories: Array
    batches: tuple[BatchOutput, ...]
    tally: Tally | None
    notes: tuple[str, ...]


def joined(parts: Sequence[Part], plan: Plan, seconds: Seconds) -> Result:
    """Return the result of a run, of one part or more, in the order of their rows."""
    network = plan.network
    tallies = [part.tally for part in parts if part.tally is not None]
    return Result(
        plan=plan,
        inputs=sum(part.rows for part in parts),
        neurons=network.inputs,
        layers=len(network),
        edges=network.multiply_adds,
        categories=_concatenated([part.categories for part in parts]),
        statistics=Tally.summed(network, tallies).statistics(network) if len(tallies) == len(parts) else (),
        seconds=seconds,
        batches=tuple(batch for part in parts for batch in part.batches),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _concatenated(categories: Sequence[Array]) -> Array:
    """Return the categories of parts of the rows as one array of int64."""
    return categories[0] if len(categories) == 1 else np.concatenate([np.zeros(0, np.int64), *categories])


def _untold(first: int, last: int, layers: int) -> None:
    """Tell nobody."""


class Passage:
    """Takes rows through the layers, with what a session keeps ready.

    Parameters
    ----------
    problem : the session's network and how it is to be run.
    shelf : what is ready.
    """

    def __init__(self, problem: Problem, shelf: Shelf) -> None:
        self._problem, self._shelf, self._backend = problem, shelf, problem.backend
        self._watch: RowsWatch | None = None

    # ---- With counts and times -----------------------------------------------------------------------------------

    def part(self, given: Given, first: int, last: int, size: int, counted: bool, clock: Clock, report: Report) -> Part:
        """Run some of the given rows, at most `size` at a time; how they run depends on all that are given.

        Parameters
        ----------
        given : all rows of the run.
        first, last : which of them, counted from 0.
        size : rows at a time.
        counted : whether layers are counted and timed.
        clock : of the session's backend.
        report : told of layers done.
        """
        network = self._problem.network
        plan = self._shelf.plan_of(given)
        batches, categories, tallies = list[BatchOutput](), list[Array](), list[Tally]()
        used = plan
        attempts = Attempts(last, size, self._shelf.make_room, first)
        going = Pass(clock, check=self.number_check(given), keep_half=plan.keeps_half)
        for start, stop in attempts:
            going.tally, going.following = Tally.of(network) if counted else None, stop < last
            going.report = partial(report, start, stop)
            with attempts.trying(), span("batch", "batch", first=start, rows=stop - start):
                used, batch, living = self._batch(given, start, stop, attempts.size, going)
                if going.tally is not None:
                    tallies.append(going.tally)
                categories.append(start + living if start else living)
                batches.append(batch)
                attempts.done()
        self._refuse_infinite(given, going.check)
        tally = Tally.summed(network, tallies) if counted else None
        return Part(used, last - first, _concatenated(categories), tuple(batches), tally, attempts.notes())

    # ---- Outputs alone -------------------------------------------------------------------------------------------

    def outputs(
        self,
        given: Given,
        first: int,
        last: int,
        room: Callable[[Any], Array] | None = None,
        report: Report = _untold,
    ) -> Any:
        """Return dense outputs of some of the given rows, where those are; how they run depends on all that are given.

        Parameters
        ----------
        given : all rows of the run.
        first, last : which of them, counted from 0.
        room : returns the matrix of all outputs, on the host, for their type; rows `first` to `last` of it are filled
            and returned. None for one that is made here.
        report : told of layers done.
        """
        network, backend = self._problem.network, self._backend
        plan = self._shelf.plan_of(given)
        going = Pass(Unwatched(), check=self._call_check(given), keep_half=plan.keeps_half)
        target: Array | None = None
        used = plan
        parts: list[Any] = []
        waiting: list[Callable[[], None]] = []
        moves = room is not None or (given.on_host and not backend.in_host_memory)
        size = min(self._shelf.batch_size(given.count), self._piece(plan, given))
        attempts = Attempts(last, size, self._shelf.make_room, first)
        for start, stop in attempts:
            going.following, going.report = stop < last, partial(report, start, stop)
            with attempts.trying(), span("batch", "batch", first=start, rows=stop - start):
                used, left = self._through(given, start, stop, attempts.size, going)
                rows = _spread(self._problem, used, left, stop - start)
                if not moves:
                    parts.append(rows)
                else:
                    if target is None:
                        whole = np.empty((last, network.outputs), rows.dtype) if room is None else room(rows.dtype)
                        target = whole[first:last]
                    with span("copy out", "transfer"):
                        waiting.append(backend.fetch_later(rows, target[start - first : stop - first]))
                attempts.done()
            while len(waiting) > 2:
                _finish(waiting.pop(0))
        for finish in waiting:
            _finish(finish)
        self._refuse_infinite(given, going.check)
        if moves:
            return np.empty((0, network.outputs), np.float32) if target is None else target
        if len(parts) == 1:
            self._settle(given, used)
            return parts[0]
        return backend.joined(parts, network.outputs)

    def _settle(self, given: Given, plan: Plan) -> None:
        """Remember that a plan runs such rows, if the steps are all they need."""
        source = given.source
        as_it_is = source is given.rows and self._backend.reads_as_is(source)
        if plan.streams or not as_it_is:
            return
        if given.on_host and self._watches(plan):
            return
        run = self._settled(self._shelf.kept(plan), source.dtype == np.float16)
        self._shelf.settle((source.shape, source.dtype), run)

    def _settled(self, ready: Ready, half: bool) -> Callable[[Array], Any]:
        """Return what takes rows through the steps, which are ready, and returns each input's outputs.

        It does not refer to this passage: the shelf that keeps it goes as soon as the session does.
        """
        problem, backend, plan = self._problem, self._backend, ready.plan
        placed = half and not plan.keeps_half
        checked, watch = problem.options.check_finite and backend.in_host_memory, self._watch
        as_it_is = not (placed or backend.in_host_memory) and _leaves_outputs(problem, plan)
        launch = ready.launch if as_it_is else None

        def run(rows: Array) -> Any:
            if watch is not None:
                watch.look(rows)
            if launch is not None and not watchers["step"]:
                return launch(rows)
            with np.errstate(all="ignore"):
                if checked:
                    check_inputs(rows)
                left = ready.run(backend.place(rows) if placed else rows, _QUIET)
                return _spread(problem, plan, left, rows.shape[0])

        return run

    def _piece(self, plan: Plan, given: Given) -> int:
        """Return how many rows are copied to the device at a time: all, unless copies and computing can overlap."""
        if not given.on_host or given.sparse or self._backend.in_host_memory or plan.groups_rows or plan.streams:
            return max(1, given.count)
        pieces = -(-given.count * given.row_bytes // PIECE_BYTES)
        return max(1, -(-given.count // max(1, pieces)))

    # ---- Some rows -----------------------------------------------------------------------------------------------

    def _batch(self, given: Given, first: int, last: int, size: int, going: Pass) -> tuple[Plan, BatchOutput, Array]:
        """Run some rows; return the plan that ran them, their outputs, and which of them end with a non-zero."""
        with going.clock.part("transfer", "check"):
            check = self._shelf.queue_check(given, first, last, size)
        plan, living, kept = self._taken_out(given, first, last, size, going, check)
        if check is not None and not check.passed():  # these rows differ in form from those before
            going.tally = None if going.tally is None else Tally.of(self._problem.network)
            plan, living, kept = self._taken_out(given, first, last, size, going)
        fetch = None if self._backend.in_host_memory else self._backend.fetch
        return plan, BatchOutput(kept, last - first, fetch), living

    def _taken_out(
        self, given: Given, first: int, last: int, size: int, going: Pass, check: RowsCheck | None = None
    ) -> tuple[Plan, Array, RowsLeft]:
        """Run some rows, whose check may be queued; return the plan, which end with a non-zero, and what is left."""
        plan, left = self._through(given, first, last, size, going, check)
        with going.clock.part("transfer", "copy out"):
            if check is not None:
                check.fetch()
            taken = self._backend.take_out(left, last - first, _owns_outputs(plan))
        with span("wait for the device", "wait"):  # while it computes
            return plan, *taken()

    def _through(
        self, given: Given, first: int, last: int, size: int, going: Pass, check: RowsCheck | None = None
    ) -> tuple[Plan, RowsLeft]:
        """Bring some rows to the device, and take them through the layers, by steps ready for `size` rows.

        Returns the plan of these steps, and what they leave.
        """
        with going.clock.part("transfer", "copy in"):
            features = self._shelf.place(given.part(first, last), going.keep_half) if check is None else check.rows
        form = form_of_features(features)
        self._shelf.note(given, form)
        with going.clock.part("prepare", "ready plan"):
            ready = self._shelf.ready_for(form, given.whole, size)
        if going.check is not None:
            going.check.look(features)
            if self._backend.in_host_memory:  # there the answer is known at once
                self._refuse_infinite(given, going.check)
        if given.on_host and self._watches(ready.plan):
            going.watch = self._shelf.half_range.watch()
        return ready.plan, ready.run(features, going)

    def _watches(self, plan: Plan) -> bool:
        return any(step.kernel.precision == HALF_PRECISION for step in plan.steps)

    def number_check(self, given: Given) -> NumberCheck | None:
        """Return what looks for NaN and infinity among rows; sparse ones have been looked at once they are placed."""
        return self._backend.number_check() if self._problem.options.check_finite and not given.sparse else None

    def _call_check(self, given: Given) -> NumberCheck | None:
        """Return what looks at the rows of a call, which waits for no GPU that they are on."""
        if given.on_host or given.sparse or not self._problem.options.check_finite:
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


def _owns_outputs(plan: Plan) -> bool:
    """Return whether the last kernel's outputs lie in memory that nothing else uses."""
    kernel = plan.steps[-1].kernel
    return kernel.own_outputs if isinstance(kernel, SparseKernel) else kernel.operation in OWN_OUTPUTS


def _leaves_outputs(problem: Problem, plan: Plan) -> bool:
    """Return whether what the last step leaves is the outputs, in memory that the caller owns, if rows all stay."""
    return problem.merged.expansion is None and _owns_outputs(plan)


def _spread(problem: Problem, plan: Plan, left: RowsLeft, count: int) -> Any:
    """Return each input's outputs, in memory that the caller owns."""
    if left.owner is None and _leaves_outputs(problem, plan):
        return left.features
    return problem.backend.spread(left, problem.merged.expansion, count)


def _finish(copy: Callable[[], None]) -> None:
    """Wait for the end of a copy."""
    with span("wait for the copy", "wait"):
        copy()
