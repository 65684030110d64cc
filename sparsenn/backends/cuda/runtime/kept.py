"""What outlives a launch: what is made of a layer or a stack once and lives as long as it; and whose turn it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.formats import Array

__all__ = ["from_host", "kept", "kept_on_host", "stream_key"]

Made = TypeVar("Made")

PER_THREAD = 2
"""What CUDA calls the default stream of its own that each thread may have (cudaStreamPerThread)."""

_kept: WeakKeyDictionary[Any, dict[Hashable, tuple[Any, Any, Hashable]]] = WeakKeyDictionary()
"""By owner and name: what was made, an event after which its arrays are there, None once they are, and its version."""


def kept(owner: Any, name: Hashable, make: Callable[[], Made], version: Hashable = None) -> Made:
    """Return what `make` returned when it was first asked for by this name and in this version for this owner.

    Device arrays in it may yet be on their way: the current stream waits until they are there.

    Parameters
    ----------
    owner : a layer or a stack of layers on the device, told apart by its identity. What is kept goes when it goes, and
        must not refer to it.
    version : the one before is let go.
    """
    made = _kept.setdefault(owner, {})
    if name not in made or made[name][2] != version:
        made.pop(name, None)
        made[name] = make(), cupy().cuda.get_current_stream().record(), version
    value, ready, _ = made[name]
    if ready is not None:
        if ready.done:
            made[name] = value, None, version
        else:
            cupy().cuda.get_current_stream().wait_event(ready)
    result: Made = value
    return result


class _Place:
    """Where something is kept, once it has been made, with its version."""

    def __init__(self) -> None:
        self.turns = threading.Lock()
        self.made: tuple[Any, Hashable] | None = None


_kept_on_host: WeakKeyDictionary[Any, dict[Hashable, _Place]] = WeakKeyDictionary()
_turns = threading.Lock()


def kept_on_host(owner: Any, name: Hashable, make: Callable[[], Made], version: Hashable = None) -> Made:
    """Return what `make` returned when it was first asked for, as `kept` does, on whichever device.

    Threads that ask at the same time wait for the first.

    Parameters
    ----------
    owner : a layer on the host, told apart by its identity. What is kept goes when it goes, and must not refer to it.
    version : the one before is let go.
    """
    with _turns:
        place = _kept_on_host.setdefault(owner, {}).setdefault(name, _Place())
    with place.turns:
        if place.made is None or place.made[1] != version:
            place.made = make(), version
        made: Made = place.made[0]
        return made


def from_host(make: Callable[..., Array], *arrays: Array) -> Array:
    """Return on the device what `make` makes on the host of arrays of the device.

    Weights are laid out in this way: it is done once, and CuPy would compile a kernel for every operator first.
    """
    cp = cupy()
    with np.errstate(all="ignore"):
        made: Array = cp.asarray(make(*map(cp.asnumpy, arrays)))
    return made


def stream_key(stream: Any) -> Hashable:
    """Return what tells a CuPy stream of the calling thread from all others of its device."""
    return (PER_THREAD, threading.get_ident()) if stream.ptr == PER_THREAD else stream.ptr
