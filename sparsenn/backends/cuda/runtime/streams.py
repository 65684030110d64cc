"""Streams of other libraries, graphs of work on a stream, and the order of streams that share buffers."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, suppress
from functools import cache
from typing import Any

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.layer_cache import stream_key

_captures: defaultdict[int, threading.RLock] = defaultdict(threading.RLock)
"""By device: CUDA refuses to wait for a device while any thread captures one of its streams, and the capture fails; so
each waits for the other."""


def on_stream(pointer: int) -> AbstractContextManager[Any]:
    """Return a context in which the stream that another library made is CuPy's current one."""
    return _external_stream(pointer) if pointer else cupy().cuda.Stream.null


@cache
def _external_stream(pointer: int) -> Any:
    """Return a stream of CuPy's that does not destroy the other library's: only the deprecated kind is that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return cupy().cuda.ExternalStream(pointer)


class Graph:
    """Work that was queued on the current stream, as one launch.

    It has run there before: kernels are not loaded during a capture. `graph` and `executable` are CUDA's handles.
    """

    def __init__(self, enqueue: Callable[[], object], stream: Any) -> None:
        runtime = cupy().cuda.runtime
        with _captures[runtime.getDevice()]:
            stream.begin_capture()
            try:
                enqueue()
            except BaseException:
                with suppress(Exception):  # else the stream goes on capturing, and nobody can wait for the device
                    runtime.graphDestroy(runtime.streamEndCapture(stream.ptr))
                raise
            self.graph = runtime.streamEndCapture(stream.ptr)
        weakref.finalize(self, runtime.graphDestroy, self.graph).atexit = False
        self.executable = runtime.graphInstantiate(self.graph)
        weakref.finalize(self, runtime.graphExecDestroy, self.executable).atexit = False
        self._launch = runtime.graphLaunch

    def launch(self, stream: Any) -> None:
        """Queue the work on a stream that is not being captured: CUDA takes no graphs there."""
        self._launch(self.executable, stream.ptr)


@cache
def _capturing_stream(device: int) -> Any:
    """Return the stream that a device's graphs are captured on: CuPy's pool holds separate memory for each stream."""
    return cupy().cuda.Stream(non_blocking=True)


def captured(enqueue: Callable[[], object], has_run: bool = False) -> Graph:
    """Return a graph of what `enqueue` launches; nothing waits where such work `has_run` in a capture.

    Else the work is queued twice, as kernels are loaded, and shared memory is granted, before the capture. Copies of
    weights and other work on the caller's current stream have ended by then.
    """
    cuda = cupy().cuda
    device = cuda.runtime.getDevice()
    if not has_run:
        cuda.get_current_stream().synchronize()
    with _captures[device], _capturing_stream(device) as stream:
        if not has_run:
            enqueue()
            stream.synchronize()
        return Graph(enqueue, stream)


def wait_for_device() -> None:
    """Wait until the current device has done all that was queued, by all threads."""
    runtime = cupy().cuda.runtime
    with _captures[runtime.getDevice()]:
        runtime.deviceSynchronize()


def event() -> Any:
    """Return an event that records no time."""
    return cupy().cuda.Event(disable_timing=True)


class StreamOrder:
    """The order of streams that share buffers: work on one waits for work queued before on another."""

    def __init__(self) -> None:
        self.key: Hashable = None
        self._last: Any = None
        self._queued = event()

    def enter(self, stream: Any = None) -> Any:
        """Make the current stream wait for the work that the previous call queued on another; return the stream."""
        stream = stream or cupy().cuda.get_current_stream()
        key = stream_key(stream)
        if key == self.key:
            return stream
        if isinstance(self.key, tuple):  # another thread's own stream, which only that thread can name
            wait_for_device()
        elif self._last is not None and not stream.is_capturing():  # a capture cannot wait for work outside of it
            self._queued.record(self._last)
            stream.wait_event(self._queued)
        self._last, self.key = stream, key
        return stream
