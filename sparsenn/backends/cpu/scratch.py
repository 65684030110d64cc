"""Buffers that threads keep from launch to launch: the first touch of memory costs more than arithmetic on it."""

from __future__ import annotations

import threading

import numpy as np

from sparsenn.formats import Array

LINE = 16
"""Numbers of a cache line, at whose beginning each buffer begins."""


class Scratch(threading.local):
    """Named buffers of float32, each thread's its own."""

    def __init__(self) -> None:
        self._buffers: dict[str, Array] = {}

    def take(self, name: str, size: int) -> Array:
        """Return a float32 vector of `size` elements, uninitialised; the next one of that name takes its place."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            longer = np.empty(size + LINE, np.float32)
            buffer = self._buffers[name] = longer[-(longer.ctypes.data // longer.itemsize) % LINE :]
        return buffer[:size]

    def forget(self, name: str) -> None:
        """Have the next buffer of that name be a new one."""
        self._buffers.pop(name, None)
