"""The order of calls that several threads, streams and devices make of one backend."""

from __future__ import annotations

import os
from typing import Any

from sparsenn.backends.cuda.runtime.device import as_current, cupy
from sparsenn.backends.cuda.runtime.layer_cache import stream_key
from sparsenn.backends.cuda.runtime.memory import staging
from sparsenn.errors import DeviceError

__all__ = ["Calls", "check_process"]

_is_used = _is_forked = False  # whether CUDA has been used here, and in a process that this one was forked from


def check_process() -> None:
    """Refuse to use CUDA in a process that was forked from one that did so, by a `DeviceError`."""
    global _is_used
    _is_used = True
    if _is_forked:
        raise DeviceError(
            "CUDA was used before this process was forked, and cannot be used here: start processes with the method "
            "spawn, or fork before the first use of a GPU, or use device cpu"
        )


def _note_fork() -> None:
    global _is_forked
    _is_forked = _is_used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


class Calls:
    """Calls of a backend, each of which is a context; one at a time."""

    def __init__(self, index: int) -> None:
        self._index, self._runtime = index, cupy().cuda.runtime
        self._ended: Any = None
        self._stream: Any = None
        self.stream_key: Any = None  # of the last call
        self._device_before = index
        self._is_inside = self._on_streams = self._captured = False

    def __enter__(self) -> None:
        """Begin a call on CuPy's current stream of the device."""
        self.enter(cupy().cuda.get_current_stream(self._index))

    def __exit__(self, *error: object) -> None:
        """End the call."""
        self.leave()

    def enter(self, stream: Any) -> None:
        """Make a stream wait for the previous call's, if that was another; make the device current.

        A call that was captured did not run: the order of its graph is up to the caller who launches the graph.
        """
        if _is_forked:
            check_process()
        before = self._runtime.getDevice()
        if before != self._index:
            self._runtime.setDevice(self._index)
        key = stream_key(stream)
        if self._stream is not None and self.stream_key != key:
            if not (self._captured or stream.is_capturing()):
                stream.wait_event(self._ended)
            self._on_streams = True
        self._stream, self.stream_key, self._device_before = stream, key, before
        self._is_inside = True

    def leave(self) -> None:
        """Mark the end of the work on the stream; make the previous device current again."""
        self._is_inside = False
        self._mark()
        if self._device_before != self._index:
            self._runtime.setDevice(self._device_before)

    def _mark(self) -> None:
        if self._ended is None:
            self._ended = cupy().cuda.Event(disable_timing=True)
        self._ended.record(self._stream)
        self._captured = self._stream.is_capturing()

    def before_drop(self) -> None:
        """Make the stream that copies weights wait for what is queued.

        CuPy's memory pool gives a freed block to the next request on the stream that it was allocated on, without
        waiting for other streams that may still be reading it. Weights are allocated on a stream of their own. After
        calls on several streams, the host waits. A caller who has captured a graph holds the memory that the graph
        reads.
        """
        if self._stream is None or self._captured or _is_forked:
            return
        with as_current(self._index):
            if self._is_inside:
                self._mark()
            staging(self._index).wait_for(self._ended)
            if self._on_streams:
                self._ended.synchronize()
