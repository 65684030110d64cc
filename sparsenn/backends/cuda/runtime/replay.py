"""Replay: work of many launches as one CUDA graph, where that is faster than queueing launch by launch."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsenn.backends.contract import LONG_SECONDS
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.graph_copies import copies_of
from sparsenn.backends.cuda.runtime.memory import lent_memory
from sparsenn.backends.cuda.runtime.recorder import recorded
from sparsenn.backends.cuda.runtime.streams import Graph, StreamOrder, captured
from sparsenn.errors import DeviceError
from sparsenn.formats import Array

__all__ = ["MAX_COPIED_BYTES", "CapturedRun", "DeviceReplay", "HostReplay"]

MAX_COPIED_BYTES = 64 << 20  # of rows that a graph copies to its own memory
MIN_RUNS = 3  # of the launches, and of the graph, of which the fastest counts: early calls queue launches more slowly
MIN_SECONDS = 2e-3  # of all runs together

MAX_SPARE_BYTES = 1 << 20
"""Bytes of outputs up to which the next call's array is allocated while the device computes, on the same stream: CuPy's
pool holds separate memory for each stream."""

Run = Callable[[Array], tuple[Array, ...]]  # queues work on a matrix on the device, and returns results there


class _Replay(ABC):
    """Work on rows of one shape and type: captured in the first call, and replayed in all others.

    The graph begins with a copy of the rows to its own memory, and ends with copies of the results. There is no replay
    where the caller captures the stream or times sections, where memory does not suffice for a graph, or where another
    thread disturbed the capture.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape = shape
        self._is_refused = False
        self._graph: Graph | None = None
        self._features: Any = None
        self._results: tuple[Any, ...] = ()
        self._buffers: list[Any] = []
        self._order = StreamOrder()
        self._queued_seconds = 0.0

    @property
    def nbytes(self) -> int:
        if self._graph is None:
            return 0
        return int(self._features.nbytes) + sum(int(buffer.mem.size) for buffer in self._buffers)

    def __call__(self, run: Run, rows: Array) -> tuple[Array, ...] | None:
        """Return the results of `run`, which has run before, for contiguous rows; None where there is no replay."""
        cuda = cupy().cuda
        if self._is_refused or recorded():
            return None
        stream = cuda.get_current_stream()
        if stream.is_capturing():
            return None
        self._order.enter(stream)
        if self._graph is None:
            try:
                with np.errstate(all="ignore"):
                    self._graph = self._capture(run, rows)
            except (cuda.memory.OutOfMemoryError, cuda.runtime.CUDARuntimeError, DeviceError):
                pass
            if self._graph is None:
                self._is_refused = True
                self._drop()
                return None
        return self._launch(self._graph, rows, stream)

    def _drop(self) -> None:
        self._features, self._results = None, ()
        self._buffers.clear()

    @abstractmethod
    def _launch(self, graph: Graph, rows: Array, stream: Any) -> tuple[Array, ...] | None:
        """Launch the graph on a stream, and return the results for rows."""

    @abstractmethod
    def _bring(self, rows: Array, stream: Any) -> None:
        """Queue the copy of rows to the features."""

    @abstractmethod
    def _fetch(self, stream: Any) -> None:
        """Queue the copies of the results."""

    def _capture(self, run: Run, rows: Array) -> Graph | None:
        """Return a graph of the work, whose pool has the memory of hidden values; None where that is not faster."""
        pool, current = _lending_pool(self._buffers), cupy().cuda.get_current_stream()

        def enqueue() -> None:
            self._results = ()  # so that the capture reuses the memory of the launches before it
            stream = cupy().cuda.get_current_stream()
            self._bring(rows, stream)
            with lent_memory(pool.malloc):
                self._results = run(self._features)
            self._fetch(stream)

        self._drop()
        self._features = cupy().ndarray(self._shape, rows.dtype)
        self._bring(rows, current)
        self._queued_seconds = _seconds(lambda: run(self._features))
        if self._queued_seconds > LONG_SECONDS:
            return None
        return captured(enqueue)


def _lending_pool(buffers: list[Any]) -> Any:
    """Return a pool whose memory lasts as long as `buffers`, which it adds to."""
    cuda = cupy().cuda
    allocate = cuda.get_allocator()

    def take(size: int) -> Any:
        buffers.append(allocate(size))
        taken = buffers[-1]
        return cuda.MemoryPointer(cuda.UnownedMemory(taken.ptr, size, None, taken.device_id), 0)

    return cuda.MemoryPool(take)


class CapturedRun:
    """A graph of work on the memory of certain rows; outputs are where the last launch writes, or in `out`."""

    def __init__(self, run: Callable[[Array], Array], rows: Array, out: Array | None) -> None:
        cuda = cupy().cuda
        self._buffers: list[Any] = []
        pool = _lending_pool(self._buffers)
        self.outputs: Any = None

        def enqueue() -> None:
            self.outputs = None  # so that the capture reuses the memory of the launches before it
            with lent_memory(pool.malloc):
                outputs: Any = run(rows)
            if out is not None:
                target: Any = out
                _copy(target.data.ptr, outputs.data.ptr, outputs.nbytes, cuda.get_current_stream())
                outputs = target
            self.outputs = outputs

        self._graph = captured(enqueue)
        self._held = run, rows  # memory that the graph reads
        self._current, self._launch, self._executable = (
            cuda.get_current_stream,
            cuda.runtime.graphLaunch,
            self._graph.executable,
        )

    def __call__(self) -> None:
        """Queue the work on the current stream."""
        self._launch(self._executable, self._current().ptr)


class DeviceReplay(_Replay):
    """Work on rows on the device, whose first result is copied to a new array there; nothing waits for the device.

    The call that captures waits, and times the launches and the graph; a graph that is not faster is dropped.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__(shape)
        self._outputs: Any = None
        self._ends: tuple[Any, ...] = ()
        self._spare: tuple[Any, Any] = None, None

    def _bring(self, rows: Any, stream: Any) -> None:
        _copy(self._features.data.ptr, rows.data.ptr, rows.nbytes, stream)

    def _fetch(self, stream: Any) -> None:
        result = self._results[0]
        self._outputs = cupy().ndarray(result.shape, result.dtype)
        _copy(self._outputs.data.ptr, result.data.ptr, result.nbytes, stream)

    def _capture(self, run: Run, rows: Any) -> Graph | None:
        graph = super()._capture(run, rows)
        if graph is None:
            return None
        copies, result = copies_of(graph), self._results[0]
        entrance = copies.get((rows.data.ptr, self._features.data.ptr))
        exit_ = copies.get((result.data.ptr, self._outputs.data.ptr))
        self._outputs = None
        if entrance is None or exit_ is None:
            return None
        self._ends = entrance.read_from, exit_.write_to, result.shape, result.dtype
        stream = cupy().cuda.get_current_stream()
        return graph if _seconds(lambda: self._launch(graph, rows, stream)) < self._queued_seconds else None

    def _launch(self, graph: Graph, rows: Any, stream: Any) -> tuple[Array, ...] | None:
        read_from, write_to, shape, dtype = self._ends
        (key, outputs), self._spare = self._spare, (None, None)
        if outputs is None or key != self._order.key:
            outputs = cupy().ndarray(shape, dtype)
        if not (read_from(rows.data.ptr) and write_to(outputs.data.ptr)):
            return None
        graph.launch(stream)
        if outputs.nbytes <= MAX_SPARE_BYTES:
            self._spare = self._order.key, cupy().ndarray(shape, dtype)
        return (outputs,)

    def _drop(self) -> None:
        super()._drop()
        self._ends, self._spare = (), (None, None)


class HostReplay(_Replay):
    """Work on rows in host memory, to which results are copied through pinned memory; a call waits for them."""

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__(shape)
        self._source: Any = None
        self._targets: tuple[Any, ...] = ()

    def _bring(self, rows: Array, stream: Any) -> None:
        if self._source is None:
            self._source = _pinned(self._shape, rows.dtype)
        np.copyto(self._source, rows.reshape(self._shape))
        runtime = cupy().cuda.runtime
        where = self._features.data.ptr, self._source.ctypes.data
        runtime.memcpyAsync(*where, rows.nbytes, runtime.memcpyHostToDevice, stream.ptr)

    def _fetch(self, stream: Any) -> None:
        if not self._targets:
            self._targets = tuple(_pinned(result.shape, result.dtype) for result in self._results)
        runtime = cupy().cuda.runtime
        for target, result in zip(self._targets, self._results, strict=True):
            where = target.ctypes.data, result.data.ptr
            runtime.memcpyAsync(*where, target.nbytes, runtime.memcpyDeviceToHost, stream.ptr)

    def _launch(self, graph: Graph, rows: Array, stream: Any) -> tuple[Array, ...]:
        np.copyto(self._source, rows.reshape(self._shape))
        graph.launch(stream)
        stream.synchronize()
        return tuple(target.copy() for target in self._targets)

    def _drop(self) -> None:
        super()._drop()
        self._source, self._targets = None, ()


def _pinned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    count = int(np.prod(shape))
    pinned = cupy().cuda.alloc_pinned_memory(max(1, count * dtype.itemsize))
    array: Array = np.frombuffer(pinned, dtype, count).reshape(shape)
    return array


def _copy(target: int, source: int, size: int, stream: Any) -> None:
    runtime = cupy().cuda.runtime
    runtime.memcpyAsync(target, source, size, runtime.memcpyDeviceToDevice, stream.ptr)


def _seconds(call: Callable[[], Any]) -> float:
    stream, seconds = cupy().cuda.get_current_stream(), list[float]()
    while len(seconds) < MIN_RUNS or sum(seconds) < MIN_SECONDS:
        stream.synchronize()
        start = time.perf_counter()
        call()
        stream.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
