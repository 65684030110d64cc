"""Spans on a GPU: ranges for NVIDIA's profilers, and the times at which the device ran steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from importlib import import_module
from typing import Any

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.runtime.spans import Span

_used = threading.Event()


def note_use() -> None:
    """Take note that this process uses a GPU."""
    _used.set()


class DeviceSpans:
    """A watcher of spans; before a GPU is used, nothing is done.

    Each span is an NVTX range of its thread, under its name. A step on a GPU is queued between two events, which do not
    wait; only the first event waits, to match the clocks of host and device.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: list[tuple[Span, int, Any, Any]] = []
        self._met: dict[int, tuple[int, Any]] = {}

    def __call__(self, span: Span) -> AbstractContextManager[None]:
        """Return what is entered and left with a span."""
        return self._ranged(span) if _used.is_set() else nullcontext()

    def steps(self) -> Iterator[tuple[Span, str, int, int]]:
        """Wait for the devices, and yield each step's span, device, begin and end (the host's `perf_counter_ns`).

        A time is that of the event before and what passed since: CUDA has seven digits, which are few for long times.
        """
        for span, index, begun, ended in self._steps:
            with cupy().cuda.Device(index):
                ended.synchronize()
                at, before = self._met[index]
                start = at + _nanoseconds(before, begun)
                end = start + _nanoseconds(begun, ended)
                self._met[index] = end, ended
            yield span, f"cuda:{index}", start, end

    @contextmanager
    def _ranged(self, span: Span) -> Iterator[None]:
        with ExitStack() as stack:
            with suppress(RuntimeError):  # a CuPy without NVTX
                stack.enter_context(import_module("cupyx.profiler").time_range(span.name))
            if span.details.get("device") != "cuda":
                yield
                return
            index = cupy().cuda.runtime.getDevice()
            with self._lock:
                if index not in self._met:
                    self._met[index] = _now()
            begun = _recorded()
            yield
            self._steps.append((span, index, begun, _recorded()))


def _recorded() -> Any:
    event = cupy().cuda.Event()
    event.record()
    return event


def _now() -> tuple[int, Any]:
    event = _recorded()
    event.synchronize()
    return time.perf_counter_ns(), event


def _nanoseconds(begun: Any, ended: Any) -> int:
    milliseconds: float = cupy().cuda.get_elapsed_time(begun, ended)
    return round(1e6 * milliseconds)
