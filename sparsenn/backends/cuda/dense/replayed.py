"""Layers of few rows as a graph: the host, which takes longer to queue a product than the device to compute it, queues
all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsenn.backends.cuda.device import cupy
from sparsenn.backends.cuda.recorder import recorded
from sparsenn.backends.cuda.streams import Turns, captured
from sparsenn.formats import Array

__all__ = ["Replayed"]


class Replayed:
    """Layers for a number of rows: queued one by one in the first call, captured in the second, replayed in all others.

    Features are copied to where the graph reads them, and outputs from where it leaves them. The call that captures
    waits for the device. Layers are queued one by one where the caller captures the stream or records how long parts
    take, and where there is no graph because memory did not suffice or another thread disturbed the capture.

    Parameters
    ----------
    run : queues all layers, and returns their outputs.
    nbytes : that a graph keeps.
    """

    def __init__(self, run: Callable[[Array], Array], nbytes: int) -> None:
        self._run, self.nbytes = run, nbytes
        self._called = self._refused = False
        self._graph: Any = None
        self._features: Any = None
        self._outputs: Any = None
        self._between: list[Any] = []
        self._turns = Turns()

    def __call__(self, features: Array) -> Array:
        """Queue all layers on the current stream, and return their outputs."""
        cuda = cupy().cuda
        if not self._called or self._refused or recorded() or cuda.get_current_stream().is_capturing():
            self._called = True
            return self._run(features)
        stream = self._turns.take()
        if self._graph is None:
            try:
                self._capture(features)
            except (cuda.memory.OutOfMemoryError, cuda.runtime.CUDARuntimeError):
                self._refused, self._features, self._outputs = True, None, None
                self._between.clear()
                return self._run(features)
        _copy(self._features, features)
        self._graph.launch(stream)
        outputs: Array = cupy().ndarray(self._outputs.shape, self._outputs.dtype)
        _copy(outputs, self._outputs)
        return outputs

    def _capture(self, features: Array) -> None:
        """Capture the layers; the memory between them is kept as long as the graph: the pool only divides it."""
        cuda = cupy().cuda
        allocate = cuda.get_allocator()

        def take(size: int) -> Any:
            self._between.append(allocate(size))
            taken = self._between[-1]
            return cuda.MemoryPointer(cuda.UnownedMemory(taken.ptr, size, None, taken.device_id), 0)

        pool = cuda.MemoryPool(take)

        def enqueue() -> None:
            self._outputs = None  # the capture finds the memory that the launches before it had
            with cuda.using_allocator(pool.malloc):
                self._outputs = self._run(self._features)

        self._between.clear()
        self._features = cupy().ndarray(features.shape, features.dtype)
        _copy(self._features, features)
        self._graph = captured(enqueue)


def _copy(to: Array, source: Array) -> None:
    """Copy an array to another of its shape, type and order, on the current stream."""
    place: Any = to.data
    place.copy_from_device_async(source.data, source.nbytes)
