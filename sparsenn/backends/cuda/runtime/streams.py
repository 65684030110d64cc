"""Streams of other libraries, graphs of what is queued on a stream, and whose turn it is."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.kept import stream_key

__all__ = ["Turns", "capture", "captured", "event", "on_stream", "replay", "wait_for_device"]

_captures: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
"""By device: CUDA refuses to wait for a device while a stream of it is captured, by whichever thread, and spoils what
was captured; so one waits for the other."""


def on_stream(pointer: int) -> AbstractContextManager[Any]:
    """Return a context in which the stream that another library made is CuPy's current one."""
    cuda = cupy().cuda
    stream: AbstractContextManager[Any] = cuda.ExternalStream(pointer) if pointer else cuda.Stream.null
    return stream


def capture(stream: Any, enqueue: Callable[[], None]) -> Any:
    """Return a graph of what `enqueue` queues on a stream of the current device, which has run before."""
    with _captures[cupy().cuda.runtime.getDevice()]:
        stream.begin_capture()
        try:
            enqueue()
        except BaseException:
            with suppress(Exception):  # the stream would go on capturing, and nobody could wait for the device
                stream.end_capture()
            raise
        return stream.end_capture()


def captured(enqueue: Callable[[], None]) -> Any:
    """Return a graph of what `enqueue` launches, captured on a stream of its own.

    It is launched twice: kernels are loaded, and shared memory is granted, before the capture. What was queued on the
    stream that is current now, such as copies of weights, has ended by then.
    """
    cuda = cupy().cuda
    cuda.get_current_stream().synchronize()
    stream = cuda.Stream(non_blocking=True)
    with stream:
        enqueue()
        stream.synchronize()
        return capture(stream, enqueue)


def replay(graph: Any, stream: Any, enqueue: Callable[[], None]) -> None:
    """Launch a graph; or queue its work where the stream is being captured: CUDA takes no graphs there."""
    if stream.is_capturing():
        enqueue()
    else:
        graph.launch(stream)


def wait_for_device() -> None:
    """Wait until the current device has done all that was queued, by all threads."""
    runtime = cupy().cuda.runtime
    with _captures[runtime.getDevice()]:
        runtime.deviceSynchronize()


def event() -> Any:
    """Return an event that records no time."""
    return cupy().cuda.Event(disable_timing=True)


class Turns:
    """Whose turn it is with buffers: work that is queued on one stream waits for what was queued before on another."""

    def __init__(self) -> None:
        self._last: Any = None
        self._key: Any = None
        self._queued = event()

    def take(self) -> Any:
        """Return the current stream, which waits for all that the stream of the turn before has been given."""
        cuda = cupy().cuda
        stream = cuda.get_current_stream()
        key = stream_key(stream)
        if key == self._key:
            return stream
        if isinstance(self._key, tuple):  # another thread's own stream, which only that thread can name
            wait_for_device()
        elif self._last is not None:
            self._queued.record(self._last)
            stream.wait_event(self._queued)
        self._last, self._key = stream, key
        return stream
