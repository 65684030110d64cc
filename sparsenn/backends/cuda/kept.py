"""What outlives a launch: arrays made of a layer's weights once, which live as long as it; and whose turn it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakKeyDictionary

from sparsenn.backends.cuda.loader import cupy
from sparsenn.formats import Array

__all__ = ["kept", "stream_key"]

PER_THREAD = 2
"""What CUDA calls the default stream of its own that each thread may have (cudaStreamPerThread)."""

_kept: WeakKeyDictionary[Any, dict[Hashable, tuple[Array, Any]]] = WeakKeyDictionary()
"""By owner and name: the array, and an event after which it is there."""


def kept(owner: Any, name: Hashable, make: Callable[[], Array]) -> Array:
    """Return the device array that `make` returned when it was first asked for by this name for this owner.

    The current stream waits until it is there.

    Parameters
    ----------
    owner : a layer or a stack of layers on the device.
    """
    made = _kept.setdefault(owner, {})
    if name not in made:
        made[name] = make(), cupy().cuda.get_current_stream().record()
    array, ready = made[name]
    if not ready.done:
        cupy().cuda.get_current_stream().wait_event(ready)
    return array


def stream_key(stream: Any) -> Hashable:
    """Return what tells a CuPy stream of the calling thread from all others of its device."""
    return (PER_THREAD, threading.get_ident()) if stream.ptr == PER_THREAD else stream.ptr
