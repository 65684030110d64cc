"""Replay: work of many launches as one CUDA graph, where that is faster than queueing launch by launch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.recorder import recorded
from sparsenn.backends.cuda.runtime.streams import Turns, captured
from sparsenn.formats import Array

__all__ = ["Replay"]

MAX_SECONDS = 50e-3
"""Longer work is not captured: the device computes while the host queues it, so that a graph saves next to nothing."""

TIMED_RUNS = 3
"""Runs each way, of which the fastest counts."""

Run = Callable[[Array], Array]


class Replay:
    """Work on rows of one shape and type: captured in the first call, and replayed in all others.

    Features are copied to where the graph reads them, and outputs from where it leaves them. The call that captures
    waits for the device, and times both ways: where the graph is not faster, it is dropped. The work is queued launch
    by launch, too, where the caller captures the stream or records how long parts take, and where memory does not
    suffice for a graph or another thread disturbed the capture.

    Attributes
    ----------
    nbytes : device memory that the graph reads and writes.
    """

    def __init__(self) -> None:
        self._is_refused = False
        self._graph: Any = None
        self._features: Any = None
        self._outputs: Any = None
        self._buffers: list[Any] = []
        self._turns = Turns()

    @property
    def nbytes(self) -> int:
        """Device memory that the graph reads and writes, in bytes."""
        if self._graph is None:
            return 0
        return int(self._features.nbytes) + sum(int(buffer.mem.size) for buffer in self._buffers)

    def __call__(self, run: Run, features: Array) -> Array:
        """Queue the work on the current stream, and return its outputs.

        Parameters
        ----------
        run : queues the work on features launch by launch, and returns its outputs; the same in each call. It has run
            before.
        """
        cuda = cupy().cuda
        if self._is_refused or recorded() or cuda.get_current_stream().is_capturing():
            return run(features)
        stream = self._turns.take()
        if self._graph is None:
            try:
                self._is_refused = not self._capture(run, features)
            except (cuda.memory.OutOfMemoryError, cuda.runtime.CUDARuntimeError):
                self._is_refused = True
            if self._is_refused:
                self._graph = self._features = self._outputs = None
                self._buffers.clear()
                return run(features)
        return self._launch(features, stream)

    def _launch(self, features: Array, stream: Any) -> Array:
        _copy(self._features, features)
        self._graph.launch(stream)
        outputs: Array = cupy().ndarray(self._outputs.shape, self._outputs.dtype)
        _copy(outputs, self._outputs)
        return outputs

    def _capture(self, run: Run, features: Array) -> bool:
        """Capture the work, and return whether its graph is faster.

        The memory between launches is cached as long as the graph: a pool divides it.
        """
        cuda = cupy().cuda
        queued = _seconds(lambda: run(features))
        if queued > MAX_SECONDS:
            return False
        allocate = cuda.get_allocator()

        def take(size: int) -> Any:
            self._buffers.append(allocate(size))
            taken = self._buffers[-1]
            return cuda.MemoryPointer(cuda.UnownedMemory(taken.ptr, size, None, taken.device_id), 0)

        pool = cuda.MemoryPool(take)

        def enqueue() -> None:
            self._outputs = None  # the capture finds the memory that the launches before it had
            with cuda.using_allocator(pool.malloc):
                self._outputs = run(self._features)

        self._buffers.clear()
        self._features = cupy().ndarray(features.shape, features.dtype)
        _copy(self._features, features)
        self._graph = captured(enqueue)
        stream = cuda.get_current_stream()
        return _seconds(lambda: self._launch(features, stream)) < queued


def _seconds(call: Callable[[], Any]) -> float:
    """Return the least time from a call until the device is done."""
    stream, found = cupy().cuda.get_current_stream(), []
    for _ in range(TIMED_RUNS):
        stream.synchronize()
        start = time.perf_counter()
        call()
        stream.synchronize()
        found.append(time.perf_counter() - start)
    return min(found)


def _copy(to: Array, source: Array) -> None:
    """Copy an array to another of its shape, type and order, on the current stream."""
    place: Any = to.data
    place.copy_from_device_async(source.data, source.nbytes)
