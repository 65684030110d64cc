"""The batch loop: upload rows, plan for them, and run them through the layers, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from sparsenn.backends import Features, NumberCheck, RowsCheck, RowsWatch, all_finite
from sparsenn.engine.bound_steps import RunContext
from sparsenn.engine.executable import Executable
from sparsenn.engine.finite import BatchGuard, check_inputs
from sparsenn.engine.inputs import InputRows
from sparsenn.engine.plan import with_inputs
from sparsenn.engine.plan_cache import PlanCache, form_of_features
from sparsenn.engine.result import BatchOutput, Result, concatenate_results, sum_statistics
from sparsenn.errors import InputError, OutOfMemoryError
from sparsenn.formats import CSR, Array
from sparsenn.runtime.progress import Progress
from sparsenn.runtime.spans import span
from sparsenn.runtime.timing import Seconds, Timer, section

UPLOAD_BYTES = 64 << 20
"""Bytes of host rows that are copied to a GPU at a time, while earlier ones are computed: enough for eight threads to
fill pinned memory side by side, and a few milliseconds' work."""

MAX_COPIES = 2  # copies of outputs to the host at a time

Report: TypeAlias = Callable[[int, int, int], None]
"""A function of rows done, the end of the batch that runs, and the layers that this batch has passed."""


def _run_batches(
    cache: PlanCache,
    inputs: InputRows,
    rows: tuple[int, int],
    size: int,
    context: RunContext,
    report: Report,
    run: Callable[[int, int, int, RunContext], None],
) -> tuple[str, ...]:
    """Run rows, at most `size` at a time; a batch for which memory does not suffice is repeated with fewer rows.

    `run` takes a batch's first row, the one after its last, rows at a time, and its context. Notes are returned.
    """
    first, last = rows
    size, too_many = min(size, last - first), 0
    while first < last:
        stop = min(first + size, last)
        context = context._replace(following=stop < last, report=partial(report, first, stop))
        try:
            with span("batch", "batch", first=first, rows=stop - first):
                run(first, stop, size, context)
        except (OutOfMemoryError, MemoryError) as error:
            if stop - first == 1:
                raise
            fitting = error.fitting if isinstance(error, OutOfMemoryError) else 0
        else:
            first = stop
            continue
        # past the handler: only now are the failed batch's arrays dropped
        too_many = too_many or stop - first
        size = (stop - first) // 2  # at least: the free memory may be in fragments
        size = min(fitting, size) if fitting > 0 else size
        cache.shrink_batches(size)
    _refuse_infinite(inputs, context.check)
    if not too_many:
        return ()
    return (f"There was not enough memory for {too_many:,} samples at a time; {size:,} were used.",)


def _upload_rows(
    cache: PlanCache, inputs: InputRows, first: int, last: int, size: int, context: RunContext, check: RowsCheck | None
) -> tuple[Executable, Features, RunContext]:
    """Upload rows and plan for their form, which is known of a matrix before, of sparse rows after the upload."""

    def executable_for(form: str) -> Executable:
        with section(context.timer, "plan", "plan"):
            return cache.executable(inputs, form, size)

    executable = None if inputs.is_sparse else executable_for(cache.form_of(inputs))
    with section(context.timer, "transfer", "copy in"):
        keep_half = executable is not None and executable.plan.keeps_half
        features = cache.upload(inputs.slice(first, last), keep_half) if check is None else check.rows
    executable = executable or executable_for(form_of_features(features))
    is_watched = inputs.on_host and executable.plan.has_half
    is_checked = cache.compiled.options.check_finite and cache.backend.in_host_memory
    if context.check is not None:
        context.check.scan(features)
        if is_watched:  # the run waits in any case
            _refuse_infinite(inputs, context.check)
    elif is_checked and not isinstance(features, CSR) and not all_finite(features):
        check_inputs(inputs.rows)
    if is_watched:
        context = context._replace(watch=BatchGuard(cache.compiled.overflow_guard))
    return executable, features, context


def run_rows(
    cache: PlanCache, inputs: InputRows, first: int, last: int, size: int, counted: bool, timer: Timer, report: Report
) -> Result:
    """Run rows `first` to `last` of a run, at most `size` at a time; categories are counted from `first`."""
    backend, results = cache.backend, list[Result]()

    def run(start: int, stop: int, size: int, context: RunContext) -> None:
        with section(timer, "transfer", "check"):
            check = cache.queue_check(inputs, start, stop, size)
        while True:
            own = context._replace(statistics=[] if counted else None)
            executable, features, own = _upload_rows(cache, inputs, start, stop, size, own, check)
            left = executable.run(features, own)
            with section(timer, "transfer", "copy out"):
                if check is not None:
                    check.fetch()
                take_out = backend.take_out(left, executable.plan.owns_outputs)
            with span("wait for the device", "wait"):  # while it computes
                living, left = take_out()
            if check is None or check.passed():
                break
            check = None  # the rows are not of one value, as expected
        batch = BatchOutput(left, stop - start, None if backend.in_host_memory else backend.fetch)
        statistics = tuple(own.statistics or ())
        results.append(Result(executable.plan, stop - start, living, statistics, Seconds(), (batch,)))

    context = RunContext(timer, check=_check_of(cache, inputs, may_wait=True))
    notes = _run_batches(cache, inputs, (first, last), size, context, report, run)
    if not results:
        statistics = sum_statistics(cache.compiled.network, []) if counted else ()
        results.append(Result(cache.plan_of(inputs), 0, np.zeros(0, np.int64), statistics, Seconds(), ()))
    plan = with_inputs(results[-1].plan, inputs.count, inputs.density)
    return concatenate_results(results, plan, timer.seconds(), notes)


def compute_outputs(
    cache: PlanCache,
    inputs: InputRows,
    first: int,
    last: int,
    target_of: Callable[[Any], Array] | None = None,
    report: Report = lambda first, last, layers: None,
) -> Any:
    """Return dense outputs of rows `first` to `last` of a run, in the memory of the inputs.

    `target_of` returns the host matrix of all outputs, for their type, in which they are written; without, one is made.
    """
    network, backend = cache.compiled.network, cache.backend
    target: Array | None = None
    chunks: list[Any] = []
    copies: list[Callable[[], None]] = []
    moves = target_of is not None or (inputs.on_host and not backend.in_host_memory)

    def finish_copies(most: int) -> None:
        while len(copies) > most:
            with span("wait for the copy", "wait"):
                copies.pop(0)()

    def run(start: int, stop: int, size: int, context: RunContext) -> None:
        nonlocal target
        executable, features, context = _upload_rows(cache, inputs, start, stop, size, context, None)
        rows = executable.outputs(features, context)
        if (start, stop) == (first, last) and target_of is None:
            cache.settle(inputs, executable)
        if not moves:
            chunks.append(rows)
            return
        if target is None:
            whole = np.empty((last, network.outputs), rows.dtype) if target_of is None else target_of(rows.dtype)
            target = whole[first:last]
        with span("copy out", "transfer"):
            copies.append(backend.fetch_later(rows, target[start - first : stop - first]))
        finish_copies(MAX_COPIES)

    context = RunContext(check=_check_of(cache, inputs, may_wait=False))
    _run_batches(cache, inputs, (first, last), _upload_size(cache, inputs), context, report, run)
    finish_copies(0)
    if moves:
        return np.empty((0, network.outputs), np.float32) if target is None else target
    if not chunks:
        return backend.place(np.zeros((0, network.outputs), np.float32))
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


def _upload_size(cache: PlanCache, inputs: InputRows) -> int:
    """Return how many rows go through the network together: fewer where copies and computing can overlap."""
    size = cache.batch_size(inputs.count)
    if not inputs.on_host or not isinstance(inputs.rows, np.ndarray) or cache.backend.in_host_memory:
        return size
    uploads = -(-inputs.rows.nbytes // UPLOAD_BYTES)
    if uploads <= 1:
        return size
    plan = cache.plan_of(inputs)
    return size if plan.groups_rows or plan.streams else min(size, -(-inputs.count // uploads))


def _check_of(cache: PlanCache, inputs: InputRows, may_wait: bool) -> NumberCheck | None:
    """Return a check for NaN and infinity in a matrix; sparse rows are checked as they are uploaded."""
    if inputs.is_sparse or not cache.compiled.options.check_finite:
        return None
    if may_wait or inputs.on_host:
        return cache.backend.number_check()
    if cache.watch is None:
        cache.watch = cache.backend.rows_watch()
    return cache.watch


def refuse_earlier(watch: RowsWatch | None) -> None:
    """Refuse rows of earlier calls that were on a GPU, as far as their numbers are known, by an `InputError`."""
    if watch is not None and watch.take_fault():
        raise InputError(
            "the rows of an earlier call, which were on the GPU, held NaN or an infinite number; check where they "
            "come from, or have check_finite=False"
        )


def layer_report(progress: Progress, layers: int, inputs: int, size: int) -> Report:
    """Return a report of progress in layers times batches as planned; repeated batches do not set it back."""
    total, most = layers * -(-inputs // size), 0

    def report(first: int, last: int, passed: int) -> None:
        nonlocal most
        done = first * layers + (last - first) * passed
        most = max(most, total * done // (inputs * layers))
        progress("layers", most, total)

    return report


def _refuse_infinite(inputs: InputRows, check: NumberCheck | None) -> None:
    if check is not None and not check.passed():
        check_inputs(inputs.rows)
