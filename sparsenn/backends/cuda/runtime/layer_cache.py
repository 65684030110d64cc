"""Results derived from a layer or a stack once, which live as long as the layer, such as weights in another order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.loader import rehearsal
from sparsenn.backends.cuda.runtime.memory import lasting_memory, to_device
from sparsenn.formats import Array

Made = TypeVar("Made")

PER_THREAD = 2  # CUDA's number of a thread's own default stream (cudaStreamPerThread)

_on_device: WeakKeyDictionary[Any, dict[Hashable, tuple[Any, Any, Hashable]]] = WeakKeyDictionary()
"""By owner and name: a value, an event that ends its copies (None once they have ended), and its version."""


def cache_on_device(owner: Any, name: Hashable, make: Callable[[], Made], version: Hashable = None) -> Made:
    """Return the result of `make`, called once for an owner (by identity) and a name; only the last version stays.

    Results live as long as the owner, and must not refer to it. Copies to the device may be unfinished: the current
    stream waits for them.
    """
    (result,) = cache_all_on_device([owner], [name], lambda _: [make()], version)
    return result


def cache_all_on_device(
    owners: Sequence[Any],
    names: Sequence[Hashable],
    make: Callable[[list[int]], Sequence[Made]],
    version: Hashable = None,
) -> list[Made]:
    """Return a result for each owner, as `cache_on_device`; `make` is called once with the numbers of all that miss."""
    cached = [_on_device.setdefault(owner, {}) for owner in owners]
    stale = [
        number
        for number, (values, name) in enumerate(zip(cached, names, strict=True))
        if name not in values or values[name][2] != version
    ]
    if stale:
        for number in stale:
            cached[number].pop(names[number], None)
        with rehearsal(False), lasting_memory():
            made = make(stale)
        ended = cupy().cuda.get_current_stream().record()
        for number, value in zip(stale, made, strict=True):
            cached[number][names[number]] = value, ended, version
    return [_arrived(values, name) for values, name in zip(cached, names, strict=True)]


def _arrived(values: dict[Hashable, tuple[Any, Any, Hashable]], name: Hashable) -> Any:
    value, ready, version = values[name]
    if ready is not None:
        if ready.done:
            values[name] = value, None, version
        else:
            cupy().cuda.get_current_stream().wait_event(ready)
    return value


class _Entry:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: tuple[Any, Hashable] | None = None


_on_host: WeakKeyDictionary[Any, dict[Hashable, _Entry]] = WeakKeyDictionary()
_lock = threading.Lock()


def cache_on_host(owner: Any, name: Hashable, make: Callable[[], Made], version: Hashable = None) -> Made:
    """Return the result of `make`, as `cache_on_device` does, for all devices; other threads wait for the first."""
    with _lock:
        entry = _on_host.setdefault(owner, {}).setdefault(name, _Entry())
    with entry.lock:
        if entry.value is None or entry.value[1] != version:
            entry.value = make(), version
        return entry.value[0]


def from_host(make: Callable[..., Array], *arrays: Array) -> Array:
    """Return on the device the result of `make` on the host; weights are laid out so, once each."""
    with np.errstate(all="ignore"):
        made = make(*arrays)
    return to_device([made])[0]


def stream_key(stream: Any) -> Hashable:
    """Return a key of a CuPy stream of the calling thread, unique on its device."""
    return (PER_THREAD, threading.get_ident()) if stream.ptr == PER_THREAD else stream.ptr
