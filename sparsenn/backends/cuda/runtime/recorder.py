"""Launching kernels; during a recording, noting the time of each section and its kernels.

Launches may begin before the kernel before them on the stream has ended; CuPy has no function for these.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from ctypes import addressof, byref, c_char, c_int, c_uint, c_uint64, c_void_p
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy, driver
from sparsenn.backends.cuda.runtime.loader import rehearses
from sparsenn.errors import DeviceError

EARLY_CAPABILITY = 90
"""The compute capability, times ten, from which on launches overlap."""

STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
ARGUMENT_BYTES = 8  # of the largest argument: an address


class _Attribute(ctypes.Structure):
    _fields_ = (("id", c_int), ("padding", c_int), ("value", c_int), ("rest", c_char * 60))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    )


@cache
def _launch() -> Any:
    function = driver().cuLaunchKernelEx
    function.argtypes = c_void_p, c_void_p, c_void_p, c_void_p
    return function


_OVERLAPS = _Attribute(STREAM_SERIALIZATION, 0, 1)


def launch_early(
    kernel: Any, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], shared_bytes: int
) -> None:
    """Queue a kernel that waits, by itself, for the kernel before; arguments as those of `recorder.launch`."""
    count = len(arguments)
    cells = (c_uint64 * count)(*map(_bits, arguments))
    places = (c_void_p * count)(*(addressof(cells) + at * ARGUMENT_BYTES for at in range(count)))
    stream = cupy().cuda.get_current_stream().ptr
    sizes = ((c_uint * 3)(*each, *[1] * (3 - len(each))) for each in (grid, block))
    config = _Config(*sizes, shared_bytes, stream, addressof(_OVERLAPS), 1)
    status = _launch()(byref(config), kernel.kernel.ptr, places, None)
    if status:
        raise DeviceError(f"a kernel cannot be launched: the driver reports error {status}")


def _bits(argument: Any) -> int:
    if isinstance(argument, np.generic):
        return int.from_bytes(argument.tobytes(), "little")
    return int(argument.data.ptr)


@dataclass
class Recording:
    """Events around each section, and the kernels that ran in it."""

    events: list[tuple[str, Any, Any]] = field(default_factory=list)
    kernels: dict[str, list[Any]] = field(default_factory=dict)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each section, summed over its runs; waits for the device."""
        cp = cupy()
        found: dict[str, float] = {}
        for name, start, stop in self.events:
            stop.synchronize()
            found[name] = found.get(name, 0.0) + cp.cuda.get_elapsed_time(start, stop) / 1e3
        return found


_current: ContextVar[Recording | None] = ContextVar("recording", default=None)


@contextmanager
def recording() -> Iterator[Recording]:
    """Record the launches inside."""
    record = Recording()
    token = _current.set(record)
    try:
        yield record
    finally:
        _current.reset(token)


def recorded() -> bool:
    """Return whether launches are recorded."""
    return _current.get() is not None


def section(name: str) -> AbstractContextManager[None]:
    """Record the launches inside as a section `name`; outside a recording, do nothing."""
    record = _current.get()
    return _UNRECORDED if record is None else _record_section(record, name)


_UNRECORDED = nullcontext()


@contextmanager
def _record_section(record: Recording, name: str) -> Iterator[None]:
    cp = cupy()
    start, stop = cp.cuda.Event(), cp.cuda.Event()
    start.record()
    yield
    stop.record()
    record.events.append((name, start, stop))


def launch(
    name: str,
    kernel: Any,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    *arguments: Any,
    shared_bytes: int = 0,
    all_at_once: bool = False,
    early: bool = False,
) -> None:
    """Launch a kernel in a section `name`; nothing happens if the grid is empty, or in a rehearsal.

    Arguments have the very types that the kernel takes; `shared_bytes` come on top of what it declares. With
    `all_at_once`, no block begins before all can (a cooperative launch), so that blocks may wait for each other. With
    `early`, blocks may begin before the kernel before them on the stream has ended, for which they wait by themselves.
    """
    if 0 in grid or rehearses():
        return
    if not recorded():
        _queue(kernel, grid, block, arguments, shared_bytes, all_at_once, early)
        return
    with section(name):
        _queue(kernel, grid, block, arguments, shared_bytes, all_at_once, early)
    note(name, (kernel,))


def _queue(
    kernel: Any,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    arguments: Any,
    shared_bytes: int,
    all_at_once: bool,
    early: bool,
) -> None:
    if early:
        launch_early(kernel, grid, block, arguments, shared_bytes)
    elif all_at_once:
        kernel.kernel(grid, block, arguments, shared_mem=shared_bytes, enable_cooperative_groups=True)
    else:
        kernel(grid, block, arguments, shared_mem=shared_bytes)


def note(name: str, kernels: Iterable[Any]) -> None:
    """Note the kernels of a section that were launched without `launch`."""
    record = _current.get()
    if record is not None:
        known = record.kernels.setdefault(name, [])
        known.extend(kernel for kernel in kernels if kernel not in known)
