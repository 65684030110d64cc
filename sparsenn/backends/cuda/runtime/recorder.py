"""Launching kernels; during a recording, noting the time of each section and its kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.early_launch import launch_early
from sparsenn.backends.cuda.runtime.loader import rehearses


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
