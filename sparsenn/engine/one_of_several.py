"""What a session does as one of several that share rows: their devices each take some of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sparsenn.engine.batches import BatchRunner, Part, Report
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.inputs import Given, Inputs, look
from sparsenn.engine.plan import Plan
from sparsenn.engine.plan_cache import PlanCache
from sparsenn.engine.result import Seconds
from sparsenn.engine.timer import Timer
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.runtime.spans import span

__all__ = ["NOTHING", "OneOfSeveral"]

NOTHING = (0.0, 0.0)
"""Seconds that were spent on nothing, and on compiling for it."""


class OneOfSeveral:
    """A session as those see it that share rows among several: what is run is some of the rows that were looked at."""

    _lock: threading.RLock
    _compiled: CompiledNetwork
    _cache: PlanCache
    _runner: BatchRunner
    _unspent: tuple[float, float]

    def _turn(self, name: str) -> AbstractContextManager[None]:
        """Take a turn of this thread, on the session's device."""
        raise NotImplementedError

    def begin_shared(self, inputs: Inputs, among: int | None = None) -> tuple[Given, Plan, Seconds]:
        """Look at rows that several sessions are to share, and decide how they run.

        Parameters
        ----------
        inputs : array_like, CSR, sparse or dense array of any library
            As `__call__` takes them.
        among : int, optional
            How many rows there are in all, where these are some of them.

        Returns
        -------
        given : Given
            The rows, as they were found to be.
        plan : Plan
            How they run.
        seconds : Seconds
            What that took.

        Raises
        ------
        UsageError
            They are on a GPU.
        SparseNNError
            As `plan` does.
        """
        with self._turn("plan"):
            timer = Timer(self._compiled.backend)
            with span("look at inputs", "convert"):
                given = replace(look(self._compiled.network, inputs, self._compiled.backend), among=among)
            if not given.on_host:
                raise UsageError("the rows are on a GPU; several devices can share only rows in the host's memory")
            spent, self._unspent = self._unspent, NOTHING
            with timer.part("plan", "plan"):
                plan = self._cache.plan_of(given)
            return given, plan, timer.seconds(*spent)

    def learn(self, other: OneOfSeveral) -> None:
        """Take over what another session of the network has learnt of rows, so that both decide alike.

        Parameters
        ----------
        other : Session
            Another session of the network.
        """
        with self._lock:
            self._cache.learn(other._cache)

    def run_part(
        self, given: Given, first: int, last: int, size: int, statistics: bool, report: Report
    ) -> tuple[Part, Seconds]:
        """Run some of the rows that sessions share.

        Parameters
        ----------
        given : Given
            All rows.
        first, last : int
            Which of them, from the first to before the last, counted from 0.
        size : int
            Rows at a time, at most.
        statistics : bool
            Whether layers are counted and timed.
        report : callable
            Told of layers done; what it raises ends the run.

        Returns
        -------
        part : Part
            What came of these rows.
        seconds : Seconds
            What it took.

        Raises
        ------
        SparseNNError
            As `run` does.
        """
        with self._turn("run"):
            timer = Timer(self._compiled.backend)
            size = min(size, self._compiled.batch_size(given.count))
            part = self._runner.part(given, first, last, size, statistics, timer, report)
            self._compiled.backend.wait()  # other threads read what is left on the device
            return part, timer.seconds()

    def fill(self, given: Given, first: int, last: int, room: Callable[[Any], Array], report: Report) -> None:
        """Compute the outputs of some of the rows that sessions share.

        Parameters
        ----------
        given : Given
            All rows.
        first, last : int
            Which of them, from the first to before the last, counted from 0.
        room : callable
            Returns the matrix of all outputs, of shape (rows, outputs), for their type.
        report : callable
            Told of layers done; what it raises ends the run.

        Raises
        ------
        SparseNNError
            As `__call__` does.
        """
        with self._turn("call"):
            self._runner.outputs(given, first, last, room, report)
