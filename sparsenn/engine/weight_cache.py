"""Weights on the device: prepared once and kept where memory holds them all, else part by part."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from sparsenn.backends import Backend
from sparsenn.backends.kernel_records import DENSE_OPERATION
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.fitting import prepared_bytes
from sparsenn.engine.plan import Plan
from sparsenn.engine.steps import Step
from sparsenn.layers import SparseLinear
from sparsenn.layers.sparse_or_dense import with_zeros
from sparsenn.runtime.interrupts import held_signals
from sparsenn.runtime.spans import span

__all__ = ["WeightCache"]


class WeightCache:
    """Prepares the weights of steps, each when they are first needed, and keeps them where memory holds them all.

    Of a plan that streams its weights it keeps those of the step in use and, where the backend says that it pays, one
    thread prepares the next step's meanwhile. The thread lives no longer than a run: `end_run` ends it.

    Parameters
    ----------
    backend : on which weights are prepared.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._held: dict[tuple[str, int, int], Any] = {}
        self._sizes: dict[tuple[str, int, int], int] = {}
        self._ahead: tuple[int, Future[Any]] | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._streaming = False

    @property
    def nbytes(self) -> int:
        """Bytes that the weights at hand take once prepared, as estimated."""
        return sum(self._sizes[key] for key in self._held)

    def get(self, plan: Plan, number: int, following: int | None) -> Any:
        """Return what step `number` of a plan reads, and begin to prepare step `following`, if there is one.

        Where the plan streams its weights, what was returned before is dropped first: whoever asked for it must have
        let go of it.

        Raises
        ------
        SparseNNError
            As the backend's preparing.
        """
        step = plan.steps[number]
        if not plan.streams:
            return self._get(plan.compiled, step)
        self._streaming = True
        self._drop_held()
        stack = self._taken(plan, number)
        self._keep(plan.compiled, step, stack)
        if self._backend.prepares_ahead and self._ahead is None and following is not None and following != number:
            with held_signals():
                if self._worker is None:
                    self._worker = ThreadPoolExecutor(1, thread_name_prefix="sparsenn-prepare")
                self._ahead = following, self._worker.submit(_prepare, plan.compiled, plan.steps[following])
        return stack

    def part(self, compiled: CompiledNetwork, step: Step) -> Any:
        """Return what some layers read, beside the steps of a plan; if they are part of one, they take memory twice.

        Raises
        ------
        SparseNNError
            As the backend's preparing.
        """
        if self._ahead is not None:
            wait([self._ahead[1]])  # one thread prepares at a time
        return self._get(compiled, step)

    def _get(self, compiled: CompiledNetwork, step: Step) -> Any:
        key = _key(step)
        if key not in self._held:
            self._keep(compiled, step, _prepare(compiled, step))
        return self._held[key]

    def _keep(self, compiled: CompiledNetwork, step: Step, stack: Any) -> None:
        self._held[_key(step)] = stack
        network, backend = compiled.merged.network, compiled.backend
        self._sizes[_key(step)] = sum(prepared_bytes(network, backend, number, step) for number in step.layers)

    def drop(self) -> None:
        """Let go of weights that stream, those that are being prepared, too."""
        if self._streaming:
            self._drop_held()
            self._forget_ahead()

    def end_run(self) -> None:
        """Let go of weights that stream, and end the thread."""
        self.drop()
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)
            self._worker = None
        self._streaming = False

    def close(self) -> None:
        """Let go of everything."""
        self.end_run()
        self._drop_held()

    def _drop_held(self) -> None:
        """Drop the weights at hand, which launches that are queued may have to read yet."""
        if self._held:
            self._backend.before_drop()
            self._held.clear()

    def _taken(self, plan: Plan, number: int) -> Any:
        """Return a step's weights: those made ahead if they are its, else made here."""
        if self._ahead is not None and self._ahead[0] == number:
            (_, future), self._ahead = self._ahead, None
            try:
                return future.result()
            finally:
                del future  # it holds the error, whose traceback holds this frame
        self._forget_ahead()
        return _prepare(plan.compiled, plan.steps[number])

    def _forget_ahead(self) -> None:
        """Wait for the weights made ahead, and drop them; an error is raised again when they are asked for."""
        if self._ahead is not None:
            (_, future), self._ahead = self._ahead, None
            if not future.cancel():
                future.exception()


def _key(step: Step) -> tuple[str, int, int]:
    return step.kernel.operation, step.first, step.last


def _prepare(compiled: CompiledNetwork, step: Step) -> Any:
    backend, merged = compiled.backend, compiled.merged
    network, first, last = merged.network, step.first, step.last
    with span(f"prepare {step.title}", "prepare"):
        layers = network.layers[first:last]
        if step.kernel.operation == DENSE_OPERATION:
            layers = tuple(with_zeros(layer) if isinstance(layer, SparseLinear) else layer for layer in layers)
        shapes = *network.input_shapes(first)[:1], *network.shapes[first + 1 : last + 1]
        return backend.prepare(layers, merged.copies[first:last], shapes)
