"""The cache of a session: plans, executables and weights, for the shapes of rows that came last."""

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
from sparsenn.engine.early_look import looking_kernel, shares_computed
from sparsenn.engine.executable import Executable
from sparsenn.engine.finite import OverflowGuard
from sparsenn.engine.inputs import Given, canonical
from sparsenn.engine.plan import Plan, bucket, plan_for
from sparsenn.engine.replay_cache import ReplayCache
from sparsenn.engine.weight_cache import WeightCache
from sparsenn.errors import OutOfMemoryError, UnsortedError
from sparsenn.formats import CSR, Array
from sparsenn.runtime.spans import span

__all__ = ["PlanCache", "form_of_features"]

MAX_EXECUTABLES = 8
"""Shapes of rows whose executables are cached; the one that was used least recently goes first."""

MAX_PLANS = 32
"""Plans that are cached, with an executable or without."""

MAX_SETTLED = 256
"""Shapes and types of rows for which a call goes straight to its executable."""

MIN_SAMPLE_ROWS = 1024
"""Smaller inputs are not sampled for rows that die or become equal: they say little, and cost little."""

MAX_SAMPLE_ROWS = 8192
"""Rows of a sample on a GPU."""


class PlanCache:
    """Weights on the device, plans, and plans that are ready to run.

    Parameters
    ----------
    compiled : the session's network and how it is to be run.

    Attributes
    ----------
    weights : as the steps of plans read them.
    overflow_guard : of the network that is computed.
    replays : of the plans that are ready to run.
    settled : what runs rows of a shape and type that need nothing but the steps.
    """

    def __init__(self, compiled: CompiledNetwork) -> None:
        self._compiled, self._backend = compiled, compiled.backend
        self.weights = WeightCache(compiled.backend)
        self.overflow_guard = OverflowGuard(compiled.merged.network, compiled.backend)
        self.replays = ReplayCache(compiled.backend)
        self.settled: dict[tuple[Any, ...], Callable[[Any], Any]] = {}
        self._plans: dict[tuple[str, int, int], Plan] = {}
        self._ready: OrderedDict[tuple[str, int, int], Executable] = OrderedDict()
        self._alive: dict[str, Array | None] = {}
        self._placed: dict[str, str] = {}
        self._densities: dict[str, float] = {}
        self._most_rows: int | None = None

    @property
    def nbytes(self) -> int:
        """Memory on the device, in bytes: weights as prepared (estimated), and buffers for rows."""
        return self.weights.nbytes + self.replays.nbytes + sum(ready.nbytes for ready in self._ready.values())

    def place(self, rows: Any, keep_half: bool = False) -> Features:
        """Bring rows to the device; sparse ones that are not sorted are, and what is given twice is added up.

        Parameters
        ----------
        rows : as `Given.part` returns them.
        keep_half : whether a matrix of float16 may stay that.

        Raises
        ------
        SparseNNError
            As `Backend.place` does.
        """
        try:
            return self._backend.place(rows, keep_half)
        except UnsortedError:
            if isinstance(rows, CSR):
                raise
            return self._backend.place(canonical(self._backend.fetch_rows(rows)))

    def queue_check(self, given: Given, first: int, last: int, size: int) -> RowsCheck | None:
        """Begin to check rows that will be of one value, as others like them were, where the plan's chain awaits it.

        None where the rows have to be placed, which ends with their check.
        """
        plan = self._plans.get(_key_of("iso", given.whole, size))
        if plan is None or len(plan.steps) != 1 or self._placed.get(self._form_of(given)) != "iso":
            return None
        kernel = plan.steps[0].kernel
        if not isinstance(kernel, SparseKernel) or not kernel.awaits_check:
            return None
        return self._backend.queue_check(given.part(first, last))

    # ---- Plans ---------------------------------------------------------------------------------------------------

    def learn(self, other: PlanCache) -> None:
        """Take over what another cache of the same network knows of rows: which forms they take, how many die."""
        if any(self._alive.get(form, self) is not alive for form, alive in other._alive.items()):
            self._plans.clear()
        self._alive, self._placed = dict(other._alive), dict(other._placed)

    def put(self, plan: Plan) -> None:
        """Keep a plan that was made elsewhere."""
        self._plans[_key(plan)] = plan

    def plan_of(self, given: Given) -> Plan:
        """Return the plan for rows, for which the first of them may have to be looked at."""
        form = self._expected(given)
        if given.density is not None:
            self._densities.setdefault(form, given.density)
        if form not in self._alive and given.whole >= MIN_SAMPLE_ROWS and self._compiled.options.machine is None:
            form = self._look_early(given)
        return self._planned(form, given.whole, self.batch_size(given.count))

    def _look_early(self, given: Given) -> str:
        """Note how many rows die or become equal, where that may matter; returns the form that they have as placed."""
        most = MIN_SAMPLE_ROWS if self._backend.in_host_memory else MAX_SAMPLE_ROWS
        guess, form, count = self._form_of(given), self._expected(given), min(given.count, most)
        likely = RowsShape(count, "iso" if given.sparse else "dense")
        if looking_kernel(self._compiled, likely) is not None:
            features = self.place(given.part(0, count))
            form = form_of_features(features)
            if guess != "half":  # of which it is not known yet whether they stay that
                self.note(given, form)
            rows = RowsShape(count, form)
            kernel = looking_kernel(self._compiled, rows)
            if form not in self._alive and kernel is not None:
                # where memory does not suffice, it stays unknown; rows then go in smaller batches
                with suppress(OutOfMemoryError, MemoryError), span("look at the first rows", "plan"):
                    self._alive[form] = shares_computed(self._compiled, kernel, features, rows, self.weights)
                self._plans = {key: plan for key, plan in self._plans.items() if key[0] != form}
        self._alive.setdefault(guess, self._alive.setdefault(form, None))
        return guess if guess == "half" else form

    def _form_of(self, given: Given) -> str:
        """Return the form of rows, as far as it is known before they are on the device."""
        return "csr" if isinstance(given.rows, SparseRows) else form_of_features(given.rows)

    def _expected(self, given: Given) -> str:
        """Return the form that rows will have as placed, as far as that is known."""
        guess = self._form_of(given)
        return self._placed.get(guess, guess)

    def note(self, given: Given, form: str) -> None:
        """Note the form that rows have now that they are placed: others like them are expected to have it, too."""
        self._placed[self._form_of(given)] = form

    def _planned(self, form: str, count: int, size: int) -> Plan:
        """Return the plan for so many rows of a form, so many at a time: one for all numbers of rows of a bucket."""
        key = _key_of(form, count, size)
        if key not in self._plans:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[key] = plan_for(
                self._compiled, count, self._densities.get(form), form, self._alive.get(form), size
            )
        return self._plans[key]

    def batch_size(self, count: int) -> int:
        """Return how many of so many rows run at a time."""
        most = self._compiled.batch_size(count)
        return most if self._most_rows is None else min(most, self._most_rows)

    # ---- Plans that are ready ------------------------------------------------------------------------------------

    def ready_for(self, form: str, count: int, size: int) -> Executable:
        """Return what runs rows of a form, so many in all and so many at a time.

        Raises
        ------
        SparseNNError
            As `CompiledNetwork.plan` does.
        """
        plan = self._planned(form, count, size)
        key = _key(plan)
        ready = self._ready.get(key)
        if ready is None or ready.plan is not plan:
            self.settled.clear()
            while len(self._ready) >= MAX_EXECUTABLES:
                self._drop(next(iter(self._ready)))
            if ready is not None:
                self._drop(key)
            ready = self._ready[key] = Executable(plan, self.weights, self.overflow_guard, self.replays)
        self._ready.move_to_end(key)
        return ready

    def _drop(self, key: tuple[str, int, int]) -> None:
        self._backend.before_drop()
        self.replays.drop(self._ready.pop(key).key)

    def executable_of(self, plan: Plan) -> Executable:
        """Return what runs a plan that has just been run."""
        return self._ready[_key(plan)]

    def settle(self, rows: tuple[Any, ...], run: Callable[[Any], Any]) -> None:
        """Remember what runs rows of a shape and type, as long as the plans that are ready stay so."""
        if len(self.settled) >= MAX_SETTLED:
            self.settled.clear()
        self.settled[rows] = run

    def make_room(self, rows: int) -> None:
        """Let go of buffers and graphs, and take no more rows at a time from now on."""
        self._most_rows = rows
        self._forget()
        self.weights.drop()
        gc.collect()
        self._backend.release()

    def close(self) -> None:
        """Let go of everything."""
        self._forget()
        self.weights.close()
        self._backend.release()

    def _forget(self) -> None:
        self._backend.before_drop()
        self._ready.clear()
        self.replays.clear()
        self.settled.clear()


def _key_of(form: str, count: int, size: int) -> tuple[str, int, int]:
    return form, bucket(count), bucket(size)


def _key(plan: Plan) -> tuple[str, int, int]:
    return plan.rows.form, bucket(plan.inputs), plan.rows.count


def form_of_features(features: Features) -> str:
    """Return the form of rows, as `Rows` has it."""
    if not isinstance(features, CSR):
        return "half" if features.dtype == np.float16 else "dense"
    return "iso" if features.iso or not features.nnz else "csr"
