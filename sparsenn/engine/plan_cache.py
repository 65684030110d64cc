"""The cache of a session: weights, executables for the shapes of rows used last, and functions of calls."""

from __future__ import annotations

import gc
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

import numpy as np

from sparsenn.backends import Features, RowsCheck, RowsWatch, SparseKernel, SparseRows
from sparsenn.engine.calls import DirectCall, direct_call, key_of, no_outputs
from sparsenn.engine.choosing import RowsShape
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.executable import Executable
from sparsenn.engine.inputs import InputRows, rows_in_order
from sparsenn.engine.measuring import MAX_MEASURED_ROWS, Sample, measure, open_segments, telling_rows
from sparsenn.engine.plan import Plan, bucket, plan_for
from sparsenn.engine.steps import bucket_of_choice, records_of
from sparsenn.engine.weight_cache import WeightCache
from sparsenn.errors import OutOfMemoryError, UnsortedError
from sparsenn.formats import CSR
from sparsenn.formats.named_shapes import cut_columns
from sparsenn.runtime import choices
from sparsenn.runtime.spans import watchers

MAX_EXECUTABLES = 8  # shapes of rows whose executables are cached; the one that was used least recently goes first
MAX_CALLS = 256  # shapes and types of arrays for which a function of their own is cached


class PlanCache:
    """Weights on the device, and executables by the form and number of rows.

    Calls whose arrays have the shape and type of earlier ones go straight to a function of theirs, if they have one.
    """

    def __init__(self, compiled: CompiledNetwork) -> None:
        self.compiled, self.backend = compiled, compiled.backend
        self.weights = WeightCache(compiled.backend)
        self.watch: RowsWatch | None = None  # of rows on the device, in the calls of the session
        self.runs: dict[int, Any] = {}  # functions of all rows of a call in host memory, by the number of rows
        self.calls: dict[tuple[Any, ...], DirectCall] = {}  # by the names, shapes and types of arrays
        self._last_call: DirectCall = no_outputs
        self._executables: OrderedDict[tuple[str, int, int], Executable] = OrderedDict()
        self._forms: dict[str, str] = {}  # of sparse rows once uploaded, by their form before
        self._densities: dict[str, float | None] = {}
        self._max_rows: int | None = None

    @property
    def nbytes(self) -> int:
        """Memory on the device, in bytes: weights as prepared (estimated), replays, and buffers for rows."""
        return self.weights.nbytes + sum(executable.nbytes for executable in self._executables.values())

    def direct_outputs(self, inputs: Any) -> Any:
        """Return what a session's call with the inputs returns, in memory that the caller owns.

        None where they are no arrays of numbers in the network's order, or hold numbers that may have to be refused.
        """
        try:
            outputs = self._last_call(inputs)
            if outputs is None and (call := self._call_for(inputs)) is not self._last_call:
                self._last_call = call
                outputs = call(inputs)
            return outputs
        except (OutOfMemoryError, MemoryError):  # fewer rows at a time may fit
            return None

    def _call_for(self, inputs: Any) -> DirectCall:
        key = key_of(inputs, not self.backend.in_host_memory)
        call = no_outputs if key is None else self.calls.get(key)
        if call is not None or not self.backend.in_host_memory:
            return call or no_outputs
        network, count = self.compiled.network, rows_in_order(self.compiled.network, inputs)
        is_checked, run = self.compiled.options.check_finite, self.runs.get(count)
        call = no_outputs if run is None else direct_call(network, inputs, count, run, is_checked)
        self._put_call(key, call)
        return call

    def _put_call(self, key: Any, call: DirectCall) -> None:
        if len(self.calls) >= MAX_CALLS:
            self.calls.clear()
        self.calls[key] = call

    def settle(self, inputs: InputRows, executable: Executable) -> None:
        """Let later calls with rows of this shape and type run an executable directly, where nothing else is needed."""
        source, rows, plan, names = inputs.source, inputs.rows, executable.plan, self.compiled.network.named_outputs
        if plan.streams or self.backend.doubles:
            return
        if self.backend.in_host_memory:
            if plan.rows.form == "dense" and inputs.count not in self.runs:
                self.runs[inputs.count] = executable.foreign_network or executable.direct or executable.compute
                self.calls = {key: call for key, call in self.calls.items() if call is not no_outputs}
            return
        if watchers["step"] or isinstance(rows, CSR | SparseRows) or not inputs.count:
            return
        call = None
        if not inputs.on_host:
            call = executable.repeated_call(source, rows, self.watch)
        elif type(source) is np.ndarray and rows.ctypes.data == source.ctypes.data:
            call = executable.host_call(source, rows, self.compiled.options.check_finite)
        key = key_of(source, is_on_device=True)
        if call is None or key is None:
            return

        # as all cached functions, without a reference to the cache, which is freed with the session
        def by_name(inputs: Any) -> dict[str, Any] | None:
            outputs = call(inputs)
            return None if outputs is None else cut_columns(names, outputs)

        self._put_call(key, call if names is None else by_name)

    def upload(self, rows: Any, keep_half: bool = False) -> Features:
        """Bring rows to the device; entries of unsorted sparse rows are sorted, and duplicate ones summed."""
        try:
            return self.backend.place(rows, keep_half)
        except UnsortedError:
            if isinstance(rows, CSR):
                raise
            return self.backend.place(self.backend.fetch(rows).canonical())

    def queue_check(self, inputs: InputRows, first: int, last: int, size: int) -> RowsCheck | None:
        """Begin to check rows that are expected to be of one value, as earlier ones of their form were.

        None where no chain awaits the check, and rows have to be uploaded, which checks them as well.
        """
        executable = self._executables.get(("iso", bucket(inputs.total), bucket(size)))
        if executable is None or len(executable.plan.steps) != 1 or self.form_of(inputs) != "iso":
            return None
        kernel, rows = executable.plan.steps[0].kernel, inputs.slice(first, last)
        if not isinstance(kernel, SparseKernel) or kernel.queue_check is None:
            return None
        if not isinstance(rows, SparseRows) or inputs.on_host or not rows.values.size:
            return None
        return kernel.queue_check(rows)

    def form_of(self, inputs: InputRows) -> str:
        """Return the form that rows will have on the device, as far as earlier ones of their form show."""
        form = form_of_features(inputs.rows)
        return self._forms.get(form, form)

    def measure(self, inputs: InputRows, form: str, size: int) -> None:
        """Time the kernels that may be the fastest for rows of a form, where nobody has yet.

        Choices on disk are read, and new ones written. The prior decides where weights stream, or batches are much
        smaller than the rows to time, and for rows that say nothing of others.
        """
        compiled = self.compiled
        place = bucket_of_choice(inputs.total), form
        if not compiled.measures or place in compiled.choices:
            return
        count = min(inputs.total, MAX_MEASURED_ROWS[self.backend.in_host_memory])
        density = 1.0 if inputs.density is None else inputs.density
        segments = open_segments(compiled, RowsShape(bucket_of_choice(count), form, density))
        is_open = segments or compiled.whole_step(form) is not None
        choice = compiled.stored_choice(inputs.total, form) if is_open else {}
        if choice is None:
            count = min(count, inputs.count)
            is_small = size < min(count, MAX_MEASURED_ROWS[True])
            if not count or is_small or plan_for(compiled, inputs.total, inputs.density, form, size).streams:
                return
            count = min(count, size)
            features = telling_rows(compiled, self.upload(inputs.slice(0, count), form == "half"))
            if features is None:
                return
            rows = RowsShape(bucket(count), form_of_features(features), density)
            choice = measure(segments, Sample(compiled, rows, features, self.weights))
            key = compiled.choice_key(inputs.total, form)
            choices.write(key, {"choices": records_of(choice), "measured": datetime.now(UTC).date().isoformat()})
        compiled.choices.setdefault(place, choice)  # one that is there stays, so that equal calls run alike

    def learn(self, other: PlanCache) -> None:
        """Copy the forms and choices of another session of the network, so that both choose alike."""
        if self.compiled.choices is not other.compiled.choices:
            self.compiled.choices.update(other.compiled.choices)
            self.compiled.chosen.clear()
            self._drop(set(self._executables))
        self._forms = dict(other._forms)

    def batch_size(self, count: int) -> int:
        """Return how many of `count` rows run at a time."""
        size = self.compiled.batch_size(count)
        return size if self._max_rows is None else min(size, self._max_rows)

    def put(self, plan: Plan) -> Executable:
        """Return the executable of a plan, cached in place of those that were used least recently."""
        while len(self._executables) >= MAX_EXECUTABLES:
            self._drop({next(iter(self._executables))})
        key = plan.rows.form, bucket(plan.inputs), bucket(plan.rows.count)
        self._executables[key] = Executable(plan, self.weights)
        return self._executables[key]

    def plan_of(self, inputs: InputRows) -> Plan:
        """Return the plan of rows that are not on the device yet; kernels may be timed on the first of them."""
        form, size = self.form_of(inputs), self.batch_size(inputs.count)
        if inputs.is_sparse and inputs.count and self.compiled.measures:  # only once uploaded are they known to be iso
            form = form_of_features(self.upload(inputs.slice(0, min(size, inputs.count))))
        return self.executable(inputs, form, size).plan

    def executable(self, inputs: InputRows, form: str, size: int) -> Executable:
        """Return the executable for rows of a form, `size` at a time: one for all numbers of rows of a bucket."""
        if inputs.is_sparse:
            self._forms[form_of_features(inputs.rows)] = form
        key = form, bucket(inputs.total), bucket(size)
        executable = self._executables.get(key)
        if executable is None:
            density = self._densities.setdefault(form, inputs.density)
            self.measure(inputs, form, size)
            executable = self.put(plan_for(self.compiled, inputs.total, density, form, size))
        self._executables.move_to_end(key)
        # a kernel that takes no float16 has its rows converted as they are uploaded
        is_converted = form == "half" and not executable.plan.keeps_half
        return self.executable(inputs, "dense", size) if is_converted else executable

    def shrink_batches(self, rows: int) -> None:
        """Drop buffers and graphs, and run at most a number of rows at a time from now on."""
        self._max_rows = rows
        self._drop(set(self._executables))
        self.weights.end_run()
        gc.collect()
        self.backend.release()

    def close(self) -> None:
        """Drop everything."""
        self._drop(set(self._executables))
        self.weights.close()
        self.backend.release()

    def _drop(self, keys: set[tuple[str, int, int]]) -> None:
        self.backend.queue.before_drop()
        self.runs.clear()
        self.calls.clear()
        self._last_call = no_outputs
        for key in keys:
            self.weights.drop_replays(self._executables.pop(key).key)


def form_of_features(features: Features | SparseRows) -> str:
    """Return the form of rows, as `RowsShape` has it; of sparse rows that are not checked, `csr`."""
    if isinstance(features, SparseRows):
        return "csr"
    if not isinstance(features, CSR):
        return "half" if features.dtype == np.float16 else "dense"
    return "iso" if features.iso or not features.nnz else "csr"
