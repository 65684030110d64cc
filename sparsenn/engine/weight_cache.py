"""Weights on the device: prepared once where memory holds all of them, else step by step in each batch.

The captured graphs that read them are cached beside them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from typing import Any

from sparsenn.backends import Backend, RowsWatch
from sparsenn.backends.foreign import ForeignNetwork
from sparsenn.backends.kernel_records import DENSE_OPERATION, WHOLE_OPERATION
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.plan import Plan, prepared_bytes
from sparsenn.engine.steps import Step
from sparsenn.layers import SparseLinear, connected_layer, positions_of
from sparsenn.layers.sparse_or_dense import with_zeros
from sparsenn.runtime.interrupts import held_signals
from sparsenn.runtime.spans import span

MAX_REPLAY_BYTES = 512 << 20  # device memory of all replays but the last one
MAX_REPLAYS = 32  # each takes memory of the driver as well: some 100 kB on the device, and as much on the host


class WeightCache:
    """Prepares the weights of steps when they are first needed, and caches them where memory holds all of them.

    Of a plan that streams its weights, the cache holds those of the step in use; where the backend gains by that, a
    thread prepares the next step's meanwhile. The thread ends with the run: `end_run`.

    Of replays, those that were called last are cached. Their keys begin with the key of an executable.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._cached: dict[tuple[str, int, int], tuple[Any, int]] = {}  # with their bytes
        self._ahead: tuple[int, Future[Any]] | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._streaming = False
        self._replays: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Bytes of the cached weights, as estimated, and of replays."""
        return sum(size for _, size in self._cached.values()) + self._replay_bytes

    @property
    def _replay_bytes(self) -> int:
        return sum(replay.nbytes for replay in self._replays.values())

    @cached_property
    def host_watch(self) -> RowsWatch | None:
        """The check of rows in host memory, whose replays wait, and report no faults of earlier calls."""
        return self._backend.rows_watch()

    def replay(self, key: tuple[Any, ...], make: Callable[[], Any] = lambda: None) -> Any:
        """Return the replay of a key, else what `make` returns, cached in place of those called least recently."""
        replay = self._replays.get(key)
        if replay is not None:
            self._replays.move_to_end(key)
        elif (replay := make()) is not None:
            while len(self._replays) >= MAX_REPLAYS or self._replay_bytes > MAX_REPLAY_BYTES:
                self._backend.queue.before_drop()
                self._replays.popitem(last=False)[1].drop()  # which functions of repeated calls may still refer to
            self._replays[key] = replay
        return replay

    def drop_replays(self, executable: object) -> None:
        """Drop the replays of an executable, by its key; the caller has called `Queue.before_drop`."""
        for key in [key for key in self._replays if key[0] is executable]:
            del self._replays[key]

    def get(self, plan: Plan, number: int, following: int | None) -> Any:
        """Return the prepared weights of step `number` of a plan, and begin to prepare step `following`, if any.

        Where the plan streams its weights, the previous step's are dropped first: the caller must not hold them.
        """
        step = plan.steps[number]
        if not plan.streams:
            return self.of_layers(plan.compiled, step)
        self._streaming = True
        self._drop_all()
        if self._ahead is not None and self._ahead[0] == number:
            (_, future), self._ahead = self._ahead, None
            try:
                stack = future.result()
            finally:
                del future  # which holds the error, whose traceback holds this frame
        else:
            self._forget_ahead()
            stack = _prepare(plan.compiled, step)
        self._cached[_key(step)] = stack, sum(prepared_bytes(plan.compiled, step))
        if self._backend.prepares_ahead and self._ahead is None and following is not None and following != number:
            with held_signals():
                if self._worker is None:
                    self._worker = ThreadPoolExecutor(1, thread_name_prefix="sparsenn-prepare")
                self._ahead = following, self._worker.submit(_prepare, plan.compiled, plan.steps[following])
        return stack

    def of_layers(self, compiled: CompiledNetwork, step: Step) -> Any:
        """Return the prepared weights of a step, which may be some layers of a plan's."""
        if self._ahead is not None:
            wait([self._ahead[1]])  # one thread prepares at a time
        key = _key(step)
        if key not in self._cached:
            self._cached[key] = _prepare(compiled, step), sum(prepared_bytes(compiled, step))
        return self._cached[key][0]

    @property
    def keys(self) -> frozenset[tuple[Any, ...]]:
        """The keys of cached weights (operation, first layer, and the one after the last), and of replays."""
        return frozenset((*self._cached, *self._replays))

    def retain(self, keys: frozenset[tuple[Any, ...]], steps: Sequence[Step]) -> None:
        """Drop all but what has one of `keys`, and the weights of steps; the caller has called `Queue.before_drop`."""
        for replay in self._replays.keys() - keys:
            del self._replays[replay]
        for key in self._cached.keys() - keys - set(map(_key, steps)):
            del self._cached[key]

    def end_run(self) -> None:
        """Drop weights that stream, those in preparation included, and end the thread."""
        if not self._streaming:
            return
        self._drop_all()
        self._forget_ahead()
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)
            self._worker = None
        self._streaming = False

    def close(self) -> None:
        """Drop all weights, and end the thread."""
        self.end_run()
        self._drop_all()
        self._replays.clear()

    def _drop_all(self) -> None:
        if self._cached:
            self._backend.queue.before_drop()
            self._cached.clear()

    def _forget_ahead(self) -> None:
        """Wait for the weights prepared ahead, and drop them; an error comes again when they are needed."""
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
        if step.kernel.operation == WHOLE_OPERATION:
            assert compiled.network.onnx_graph is not None, "such steps are of networks with graphs"
            return ForeignNetwork(compiled.network.onnx_graph)
        layers = tuple(map(connected_layer, network.layers[first:last]))
        copies = merged.copies[first:last]
        if positions_of(network[first]) > 1:
            copies = tuple(each[: layer.outputs] for each, layer in zip(copies, layers, strict=True))
        if step.kernel.operation == DENSE_OPERATION:
            layers = tuple(with_zeros(layer) if isinstance(layer, SparseLinear) else layer for layer in layers)
        shapes = *network.input_shapes(first)[:1], *network.shapes[first + 1 : last + 1]
        sources = [tuple(max(0, each - first) for each in node.sources) for node in network.nodes[first:last]]
        return backend.prepare(layers, copies, shapes, sources)
