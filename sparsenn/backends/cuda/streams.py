"""Streams of other libraries."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from sparsenn.backends.cuda.device import cupy

__all__ = ["on_stream"]


def on_stream(pointer: int) -> AbstractContextManager[Any]:
    """Return a context in which the stream that another library made is CuPy's current one."""
    cuda = cupy().cuda
    stream: AbstractContextManager[Any] = cuda.ExternalStream(pointer) if pointer else cuda.Stream.null
    return stream
