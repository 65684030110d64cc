"""Loops that copy bytes between host memory and a device through pinned memory, compiled so that none holds the GIL.

Each of n threads copies every n-th slice of an array through two places in pinned memory: it fills or empties one while
the other's bytes travel. In Python the GIL would bound all threads together, those of other devices too.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

import numba
from numba.core import cgutils
from numba.extending import intrinsic

from sparsenn.backends.cuda.runtime.device import driver as cuda_driver
from sparsenn.runtime.jit import compiled, example


class Driver(NamedTuple):
    """Addresses of the functions that the loops call: the CUDA driver's, and memcpy."""

    to_device: int
    to_host: int
    record: int
    synchronize: int
    copy: int


class Route(NamedTuple):
    """Where bytes are and where they go: addresses on the host and on the device, and how many."""

    host: int
    device: int
    size: int


class Share(NamedTuple):
    """Which parts a thread copies: the one numbered `first` and every `step`th after it, of `part` bytes each."""

    part: int
    first: int
    step: int


class Stages(NamedTuple):
    """Two places in pinned memory, an event for each, and the stream of the copies.

    No copy from or to the places is under way when a loop begins; after `send`, some are.
    """

    places: tuple[int, int]
    events: tuple[int, int]
    stream: int


@cache
def driver() -> Driver:
    """Find the functions in the CUDA driver that this process has loaded, and in its C library."""
    cuda = cuda_driver()
    names = "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuEventRecord", "cuEventSynchronize"
    found = [*(getattr(cuda, name) for name in names), ctypes.CDLL(None).memcpy]
    return Driver(*(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in found))


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def _call(_: Any, address: Any, arguments: Any) -> Any:
    """Call a C function, at an address, with a tuple of pointers and sizes; what it returns is read as an int."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        words = cgutils.unpack_tuple(builder, values[1])
        kind = cgutils.ir.FunctionType(cgutils.int32_t, [word.type for word in words])
        return builder.call(builder.inttoptr(values[0], kind.as_pointer()), words)

    return numba.int32(address, arguments), generate


@compiled
def send(calls: Driver, route: Route, share: Share, stages: Stages) -> int:
    """Copy a share of some bytes to the device; return 0 or the driver's error, once all bytes are read."""
    worst, turn = 0, 0
    for start in range(share.first * share.part, route.size, share.step * share.part):
        size = min(share.part, route.size - start)
        place, event = stages.places[turn], stages.events[turn]
        worst = max(worst, _call(calls.synchronize, (event,)))
        _call(calls.copy, (place, route.host + start, size))
        worst = max(worst, _call(calls.to_device, (route.device + start, place, size, stages.stream)))
        worst = max(worst, _call(calls.record, (event, stages.stream)))
        turn = 1 - turn
    return worst


@compiled
def receive(calls: Driver, route: Route, share: Share, stages: Stages) -> int:
    """Copy a share of some bytes from the device to the host; return 0 when all are there, or the driver's error."""
    worst, turn, before = 0, 0, -1
    stride = share.step * share.part
    for start in range(share.first * share.part, route.size + stride, stride):
        if start < route.size:
            size = min(share.part, route.size - start)
            worst = max(worst, _call(calls.to_host, (stages.places[turn], route.device + start, size, stages.stream)))
            worst = max(worst, _call(calls.record, (stages.events[turn], stages.stream)))
        turn = 1 - turn
        if before >= 0:
            worst = max(worst, _call(calls.synchronize, (stages.events[turn],)))
            _call(calls.copy, (route.host + before, stages.places[turn], min(share.part, route.size - before)))
        before = start
    return worst


@example
def _copy_nothing() -> None:
    calls, nothing = Driver(0, 0, 0, 0, 0), Stages((0, 0), (0, 0), 0)
    for loop in (send, receive):
        loop(calls, Route(0, 0, 0), Share(1, 0, 1), nothing)
