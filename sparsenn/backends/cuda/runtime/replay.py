"""Replay: work of many launches as one CUDA graph, where that is faster than queueing launch by launch."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from sparsenn.backends.contract import LONG_SECONDS
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.memory import lent_memory, pinned_array
from sparsenn.backends.cuda.runtime.recorder import recorded
from sparsenn.backends.cuda.runtime.streams import Graph, captured
from sparsenn.errors import DeviceError
from sparsenn.formats import Array

MAX_COPIED_BYTES = 128 << 20  # of rows that a graph copies to its own memory
MAX_UNCOPIED_SECONDS = 5e-3
"""The time of work on more rows up to which graphs are bound to addresses: they save tens of microseconds of queueing
before the first kernel begins, and hold the memory of hidden values."""

MIN_RUNS = 3  # of the launches, and of the graph, of which the fastest counts: early calls queue launches more slowly
MIN_SECONDS = 2e-3  # of all runs together

MAX_BOUND = 8
"""Graphs of a replay that read and write at addresses of callers. An allocator gives the same few addresses out again
and again, and a graph without copies takes some microseconds less."""

EARLY, LATE = 2, 100
"""Calls with the same addresses after which a graph is bound to these: while there are fewer than the most, and in
place of the one that was bound first."""

MAX_COUNTED = 256  # pairs of addresses whose calls are counted

ALIGNED = 256
"""Bytes of which addresses in bound graphs are multiples, as those of buffers are: libraries choose kernels by that,
and kernels write several numbers at a time."""

Run = Callable[[Array], tuple[Array, ...]]  # queues work on a matrix on the device, and returns results there


class Like(NamedTuple):
    """The shape and type of matrices on a device."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int
    device: int

    @classmethod
    def of(cls, array: Any) -> Like:
        """Return those of an array."""
        return cls(array.shape, array.dtype, array.nbytes, array.data.device_id)

    def at(self, address: int) -> Any:
        """Return an array in memory that the caller holds."""
        return array_at(address, self.shape, self.dtype, self.device)


class _Work:
    """Work whose memory, but for the rows', comes from a pool that lasts as long as this object."""

    def __init__(self) -> None:
        cuda, buffers = cupy().cuda, list[Any]()
        allocate = cuda.get_allocator()

        def take(size: int) -> Any:  # which does not refer to this object, so that the memory is freed with it
            taken = allocate(size)
            buffers.append(taken)
            return cuda.MemoryPointer(cuda.UnownedMemory(taken.ptr, size, None, taken.device_id), 0)

        self._buffers, self._pool = buffers, cuda.MemoryPool(take)
        self._place = -1  # of the first result among the allocations

    @property
    def nbytes(self) -> int:
        return sum(int(buffer.mem.size) for buffer in self._buffers)

    def queue(self, run: Run, rows: Array, out: Any = None) -> tuple[Array, ...]:
        """Queue the work; return its results, the first in `out`: without a copy if earlier work found its place."""
        addresses: list[int] = []
        is_writable = out is not None and out.data.ptr % ALIGNED == 0

        def allocate(size: int) -> Any:
            is_result = is_writable and len(addresses) == self._place and size == out.nbytes
            memory = out.data if is_result else self._pool.malloc(size)
            addresses.append(memory.ptr)
            return memory

        with lent_memory(allocate):
            results: Any = run(rows)
        first = results[0]
        if out is not None and first.data.ptr == out.data.ptr:
            return results
        self._place = max((number for number, each in enumerate(addresses) if each == first.data.ptr), default=-1)
        if out is not None:
            _copy(out.data.ptr, first.data.ptr, out.nbytes, cupy().cuda.get_current_stream())
            return out, *results[1:]
        return results


class _Replay(ABC):
    """Work on rows of one shape and type: captured in the first call, and replayed in all others.

    Rows are copied to memory of the graph, and results from there. There is no replay where the caller captures the
    stream or times sections, where memory does not suffice for a graph, or where another thread disturbed the capture.
    Calls are in the order of `Calls`.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape = shape
        self.is_dropped = self._is_refused = False
        self._graph: Graph | None = None
        self._work: _Work | None = None
        self._features: Any = None
        self._results: tuple[Any, ...] = ()
        self._queued_seconds = 0.0

    @property
    def nbytes(self) -> int:
        return sum(int(each.nbytes) for each in (self._features, self._work) if each is not None)

    def __call__(self, run: Run, rows: Array) -> tuple[Array, ...] | None:
        """Return the results of `run`, which has run before, for contiguous rows; None where there is no replay."""
        if self._is_refused or recorded():
            return None
        stream = cupy().cuda.get_current_stream()
        if stream.is_capturing():
            return None
        if self._graph is None:
            try:
                with np.errstate(all="ignore"):
                    self._graph = self._capture(run, rows)
            except _failures():
                pass
            if self._graph is None:
                self._reset()
                self._is_refused = True
                return None
        return self._launch(self._graph, rows, stream)

    def drop(self) -> None:
        """Free the graph and its memory for good."""
        self.is_dropped = True
        self._reset()

    def _reset(self) -> None:
        self._graph = self._work = self._features = None
        self._results = ()

    @abstractmethod
    def _launch(self, graph: Graph, rows: Array, stream: Any) -> tuple[Array, ...]:
        """Launch the graph on a stream, and return the results for rows."""

    @abstractmethod
    def _bring(self, rows: Array, stream: Any) -> None:
        """Queue the copy of rows to the features."""

    def _capture(self, run: Run, rows: Array) -> Graph | None:
        """Return a graph of the work, whose pool has the memory of hidden values; None where that is not faster."""
        self._reset()
        work = self._work = _Work()
        self._features = cupy().ndarray(self._shape, rows.dtype)
        self._bring(rows, cupy().cuda.get_current_stream())
        self._queued_seconds = _seconds(lambda: run(self._features))
        if self._queued_seconds > LONG_SECONDS:
            return None

        def enqueue() -> None:
            self._results = ()  # so that the capture reuses the memory of the launches before it
            self._queue(work, run, rows)

        return captured(enqueue)

    def _queue(self, work: _Work, run: Run, rows: Array) -> None:
        """Queue the work that a graph has."""
        self._results = work.queue(run, self._features)


class CapturedRun:
    """A graph of work on the memory of certain rows; outputs are where the last launch writes, or in `out`."""

    def __init__(
        self, run: Callable[[Array], Array], rows: Array, out: Array | None, current_stream: Callable[[], Any]
    ) -> None:
        work = _Work()
        self.outputs: Any = None

        def enqueue() -> None:
            self.outputs = None  # so that the capture reuses the memory of the launches before it
            (self.outputs,) = work.queue(lambda features: (run(features),), rows, out)

        self._graph = captured(enqueue)
        self._current_stream = current_stream
        self._held = run, rows, work  # memory that the graph reads

    def __call__(self) -> None:
        """Queue the work on the caller's current stream."""
        self._graph.launch(self._current_stream())


class DeviceReplay(_Replay):
    """Work on rows on the device, whose first result goes to a new array there; nothing waits for the device.

    The call that captures waits, and times the launches and the graph; a graph that is not faster is dropped. For
    addresses that come again, the work is captured once more, without copies.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__(shape)
        self.bound: dict[tuple[int, int], Graph] = {}
        """Graphs without copies, by the addresses of rows and of the first result."""
        self.spare: Any = None
        """The output array that a repeated call makes for the next one, with what it was made for."""
        self.likes: tuple[Like, Like] | None = None
        """Those of rows and of the first result, once `launch` can be called."""
        self._counts: dict[tuple[int, int], int] = {}
        self._is_bindable = True

    def launch(self, run: Run, source: int, target: int, stream: Any) -> None:
        """Queue the work for rows at an address that no graph is bound to, and for a target."""
        graph = self._newly_bound(run, source, target)
        if graph is None:
            self._launch_unbound(run, source, target, stream)
        else:
            graph.launch(stream)

    def _launch_unbound(self, run: Run, source: int, target: int, stream: Any) -> None:
        assert self._graph is not None, "it is captured"
        features, result = self._features, self._results[0]
        _copy(features.data.ptr, source, features.nbytes, stream)
        self._graph.launch(stream)
        _copy(target, result.data.ptr, result.nbytes, stream)

    def _newly_bound(self, run: Run, source: int, target: int) -> Graph | None:
        """Return a graph without copies for a pair of addresses if that has come often enough."""
        if not self._is_bindable or source % ALIGNED or target % ALIGNED:
            return None
        pair, counts = (source, target), self._counts
        if len(counts) >= MAX_COUNTED:
            counts.clear()
        counts[pair] = counts.get(pair, 0) + 1
        is_full = len(self.bound) >= MAX_BOUND
        if counts[pair] < (LATE if is_full else EARLY):
            return None
        del counts[pair]
        if is_full:
            del self.bound[next(iter(self.bound))]
        try:
            with np.errstate(all="ignore"):
                self.bound[pair] = captured(lambda: self._queue_at(run, *pair), has_run=True)
        except _failures():
            self._is_bindable = False
        return self.bound.get(pair)

    def _queue_at(self, run: Run, source: int, target: int) -> None:
        """Queue the work on the current stream, without copies."""
        work, likes = cast(Any, self._work), cast(tuple[Like, Like], self.likes)
        work.queue(run, likes[0].at(source), likes[1].at(target))

    def _bring(self, rows: Any, stream: Any) -> None:
        _copy(self._features.data.ptr, rows.data.ptr, rows.nbytes, stream)

    def _capture(self, run: Run, rows: Any) -> Graph | None:
        graph = super()._capture(run, rows)
        if graph is None:
            return None
        stream = cupy().cuda.get_current_stream()
        if _seconds(lambda: graph.launch(stream)) >= self._queued_seconds:
            return None
        self.likes = Like.of(self._features), Like.of(self._results[0])
        return graph

    def _launch(self, graph: Graph, rows: Any, stream: Any) -> tuple[Array, ...]:
        result = self._results[0]
        outputs = cupy().ndarray(result.shape, result.dtype)
        self._bring(rows, stream)
        graph.launch(stream)
        _copy(outputs.data.ptr, result.data.ptr, result.nbytes, stream)
        return (outputs,)

    def _reset(self) -> None:
        super()._reset()
        self.bound.clear()
        self._counts.clear()
        self.spare = self.likes = None


class UncopiedReplay(DeviceReplay):
    """Work on more rows than a graph copies: launched kernel by kernel until a graph is bound to a call's addresses."""

    def __call__(self, run: Run, rows: Array) -> None:
        """Return None, after the first call ready for `launch` where work is short enough, and memory suffices."""
        if self._is_refused or recorded() or cupy().cuda.get_current_stream().is_capturing():
            return
        self._is_refused = True  # from now on: it is tried once
        try:
            if _timed(lambda: run(rows)) <= MAX_UNCOPIED_SECONDS:  # once, as it may take long
                self._work = _Work()
                self.likes = Like.of(rows), Like.of(self._work.queue(run, rows)[0])
        except _failures():
            self._reset()

    def _launch_unbound(self, run: Run, source: int, target: int, stream: Any) -> None:
        with stream:
            self._queue_at(run, source, target)


class HostReplay(_Replay):
    """Work on rows in host memory, to which results are copied through pinned memory; a call waits for them."""

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__(shape)
        self._source: Any = None
        self._targets: tuple[Any, ...] = ()

    def _bring(self, rows: Array, stream: Any) -> None:
        if self._source is None:
            self._source = pinned_array(self._shape, rows.dtype)
        np.copyto(self._source, rows.reshape(self._shape))
        runtime = cupy().cuda.runtime
        where = self._features.data.ptr, self._source.ctypes.data
        runtime.memcpyAsync(*where, rows.nbytes, runtime.memcpyHostToDevice, stream.ptr)

    def _queue(self, work: _Work, run: Run, rows: Array) -> None:
        stream = cupy().cuda.get_current_stream()
        self._bring(rows, stream)
        super()._queue(work, run, rows)
        if not self._targets:
            self._targets = tuple(pinned_array(result.shape, result.dtype) for result in self._results)
        runtime = cupy().cuda.runtime
        for target, result in zip(self._targets, self._results, strict=True):
            where = target.ctypes.data, result.data.ptr
            runtime.memcpyAsync(*where, target.nbytes, runtime.memcpyDeviceToHost, stream.ptr)

    def _launch(self, graph: Graph, rows: Array, stream: Any) -> tuple[Array, ...]:
        np.copyto(self._source, rows.reshape(self._shape))
        graph.launch(stream)
        stream.synchronize()
        return tuple(target.copy() for target in self._targets)

    def _reset(self) -> None:
        super()._reset()
        self._source, self._targets = None, ()


def _failures() -> tuple[type[Exception], ...]:
    """Return the errors of a capture for which memory does not suffice, or that another thread disturbs."""
    cuda = cupy().cuda
    return cuda.memory.OutOfMemoryError, cuda.runtime.CUDARuntimeError, DeviceError


def array_at(address: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: int, owner: Any = None) -> Any:
    """Return an array in memory that an owner, or the caller, holds."""
    cuda = cupy().cuda
    memory = cuda.UnownedMemory(address, math.prod(shape) * dtype.itemsize, owner, device)
    return cupy().ndarray(shape, dtype, cuda.MemoryPointer(memory, 0))


def _copy(target: int, source: int, size: int, stream: Any) -> None:
    runtime = cupy().cuda.runtime
    runtime.memcpyAsync(target, source, size, runtime.memcpyDeviceToDevice, stream.ptr)


def _seconds(call: Callable[[], Any]) -> float:
    seconds = list[float]()
    while len(seconds) < MIN_RUNS or sum(seconds) < MIN_SECONDS:
        seconds.append(_timed(call))
    return min(seconds)


def _timed(call: Callable[[], Any]) -> float:
    stream = cupy().cuda.get_current_stream()
    stream.synchronize()
    start = time.perf_counter()
    call()
    stream.synchronize()
    return time.perf_counter() - start
