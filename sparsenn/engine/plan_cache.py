"""The cache of a session: weights, and executables for the shapes of rows used last."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from sparsenn.backends import Features, RowsCheck, SparseKernel, SparseRows
from sparsenn.engine.choosing import RowsShape
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.executable import Executable
from sparsenn.engine.finite import OverflowGuard
from sparsenn.engine.inputs import InputRows, canonical
from sparsenn.engine.plan import Plan, bucket, plan_for
from sparsenn.engine.replay_cache import ReplayCache
from sparsenn.engine.sampling import sampling_kernel, shares_computed
from sparsenn.engine.weight_cache import WeightCache
from sparsenn.errors import OutOfMemoryError, UnsortedError
from sparsenn.formats import CSR, Array
from sparsenn.runtime.spans import span

__all__ = ["PlanCache", "form_of_features"]

MAX_EXECUTABLES = 8
"""Shapes of rows whose executables are cached; the one that was used least recently goes first."""

MAX_SETTLED = 256
"""Shapes and types of rows for which a call goes straight to its executable."""

MIN_SAMPLE_ROWS = 1024
"""Smaller inputs are not sampled for rows that die or become equal: a sample says little, and they cost little."""

MAX_SAMPLE_ROWS = 8192
"""Rows of a sample on a GPU."""


class PlanCache:
    """Weights on the device, and executables by the form and number of rows.

    Attributes
    ----------
    weights : of the steps of all plans.
    overflow_guard : of the network that is computed.
    replays : of the executables.
    settled : functions that run rows of a shape and type which need nothing but the steps.
    """

    def __init__(self, compiled: CompiledNetwork) -> None:
        self._compiled, self._backend = compiled, compiled.backend
        self.weights = WeightCache(compiled.backend)
        self.overflow_guard = OverflowGuard(compiled.merged.network, compiled.backend)
        self.replays = ReplayCache(compiled.backend)
        self.settled: dict[tuple[Any, ...], Callable[[Any], Any]] = {}
        self._executables: OrderedDict[tuple[str, int, int], Executable] = OrderedDict()
        self._shares: dict[str, Array | None] = {}  # of rows that layers compute, by form
        self._forms: dict[str, str] = {}  # of sparse rows once uploaded, by their form before
        self._densities: dict[str, float | None] = {}
        self._max_rows: int | None = None

    @property
    def nbytes(self) -> int:
        """Memory on the device, in bytes: weights as prepared (estimated), and buffers for rows."""
        buffers = sum(executable.nbytes for executable in self._executables.values())
        return self.weights.nbytes + self.replays.nbytes + buffers

    # ---- Rows ----------------------------------------------------------------------------------------------------

    def upload(self, rows: Any, keep_half: bool = False) -> Features:
        """Bring rows to the device; entries of unsorted sparse rows are sorted, and duplicate ones summed.

        Parameters
        ----------
        keep_half : whether a matrix of float16 may stay that.
        """
        try:
            return self._backend.place(rows, keep_half)
        except UnsortedError:
            if isinstance(rows, CSR):
                raise
            return self._backend.place(canonical(self._backend.fetch(rows)))

    def queue_check(self, inputs: InputRows, first: int, last: int, size: int) -> RowsCheck | None:
        """Begin to check rows that are expected to be of one value, as earlier ones of their form were.

        None where no chain awaits the check, and rows have to be uploaded, which checks them as well.
        """
        executable = self._executables.get(_key("iso", inputs.total, size))
        if executable is None or len(executable.plan.steps) != 1 or self.form_of(inputs) != "iso":
            return None
        kernel = executable.plan.steps[0].kernel
        awaits = isinstance(kernel, SparseKernel) and kernel.awaits_check
        return self._backend.queue_check(inputs.slice(first, last)) if awaits else None

    def form_of(self, inputs: InputRows) -> str:
        """Return the form that rows will have on the device, as far as earlier ones of their form show."""
        form = _form_before_upload(inputs)
        return self._forms.get(form, form)

    def sample(self, inputs: InputRows) -> None:
        """Count how many of the first rows die or become equal, where the choice of kernels may depend on that.

        Only the first inputs of a form are sampled: equal calls run alike.
        """
        compiled, form = self._compiled, self.form_of(inputs)
        if _sampled(form) in self._shares or inputs.total < MIN_SAMPLE_ROWS or compiled.options.machine is not None:
            return
        count = min(inputs.count, MIN_SAMPLE_ROWS if self._backend.in_host_memory else MAX_SAMPLE_ROWS)
        rows = RowsShape(count, "iso" if inputs.is_sparse else "dense")
        if sampling_kernel(compiled, rows) is not None:
            features = self.upload(inputs.slice(0, count))
            rows = RowsShape(count, form_of_features(features))
            if inputs.is_sparse:
                self._forms[_form_before_upload(inputs)] = rows.form
            kernel = sampling_kernel(compiled, rows)
            if rows.form not in self._shares and kernel is not None:
                # without enough memory, shares stay unknown; rows then run in smaller batches
                with suppress(OutOfMemoryError, MemoryError), span("sample the first rows", "plan"):
                    self._shares[rows.form] = shares_computed(compiled, kernel, features, rows, self._bind)
                self._drop({key for key in self._executables if _sampled(key[0]) == rows.form})
        else:
            rows = RowsShape(count, _sampled(form))
        self._shares.setdefault(_sampled(form), self._shares.setdefault(rows.form, None))

    def learn(self, other: PlanCache) -> None:
        """Copy the forms and samples of another session of the network, so that both choose alike."""
        if any(self._shares.get(form, self) is not shares for form, shares in other._shares.items()):
            self._drop(set(self._executables))
        self._shares, self._forms = dict(other._shares), dict(other._forms)

    def batch_size(self, count: int) -> int:
        """Return how many of `count` rows run at a time."""
        size = self._compiled.batch_size(count)
        return size if self._max_rows is None else min(size, self._max_rows)

    # ---- Executables ---------------------------------------------------------------------------------------------

    def put(self, plan: Plan) -> None:
        """Cache the plan of another session."""
        key = _key(plan.rows.form, plan.inputs, plan.rows.count)
        self._executables[key] = self._bind(plan)

    def _bind(self, plan: Plan) -> Executable:
        return Executable(plan, self.weights, self.overflow_guard, self.replays)

    def plan_of(self, inputs: InputRows) -> Plan:
        """Return the plan of rows that are not on the device yet; the first of them may be sampled."""
        self.sample(inputs)
        return self.executable(inputs, self.form_of(inputs), self.batch_size(inputs.count)).plan

    def executable(self, inputs: InputRows, form: str, size: int) -> Executable:
        """Return the executable for rows of a form, `size` at a time: one for all numbers of rows of a bucket.

        Raises
        ------
        SparseNNError
            As `plan_for` does.
        """
        if inputs.is_sparse:
            self._forms[_form_before_upload(inputs)] = form
        executable = self._cached(inputs, form, size)
        # a kernel that takes no float16 has its rows converted as they are uploaded
        return self._cached(inputs, "dense", size) if form == "half" and not executable.plan.keeps_half else executable

    def _cached(self, inputs: InputRows, form: str, size: int) -> Executable:
        key = _key(form, inputs.total, size)
        executable = self._executables.get(key)
        if executable is None:
            density = self._densities.setdefault(form, inputs.density)
            shares = self._shares.get(_sampled(form))
            plan = plan_for(self._compiled, inputs.total, density, form, shares, size)
            while len(self._executables) >= MAX_EXECUTABLES:
                self._drop({next(iter(self._executables))})
            executable = self._executables[key] = self._bind(plan)
        self._executables.move_to_end(key)
        return executable

    def settle(self, rows: tuple[Any, ...], run: Callable[[Any], Any]) -> None:
        """Cache the function that runs rows of a shape and type, until an executable is dropped."""
        if len(self.settled) >= MAX_SETTLED:
            self.settled.clear()
        self.settled[rows] = run

    def shrink_batches(self, rows: int) -> None:
        """Drop buffers and graphs, and run at most a number of rows at a time from now on."""
        self._max_rows = rows
        self._drop(set(self._executables))
        self.weights.drop()
        gc.collect()
        self._backend.release()

    def close(self) -> None:
        """Drop everything."""
        self._drop(set(self._executables))
        self.weights.close()
        self._backend.release()

    def _drop(self, keys: set[tuple[str, int, int]]) -> None:
        self._backend.before_drop()
        self.settled.clear()
        for key in keys:
            self.replays.drop(self._executables.pop(key).key)


def _key(form: str, count: int, size: int) -> tuple[str, int, int]:
    return form, bucket(count), bucket(size)


def _sampled(form: str) -> str:
    """Return the form of a sample of rows: float32 for those of float16."""
    return "dense" if form == "half" else form


def _form_before_upload(inputs: InputRows) -> str:
    return "csr" if isinstance(inputs.rows, SparseRows) else form_of_features(inputs.rows)


def form_of_features(features: Features) -> str:
    """Return the form of rows, as `RowsShape` has it."""
    if not isinstance(features, CSR):
        return "half" if features.dtype == np.float16 else "dense"
    return "iso" if features.iso or not features.nnz else "csr"
