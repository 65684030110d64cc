"""Where the wall time of a run goes; compiling and loading of kernels are separate."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Any

from sparsenn.runtime import jit
from sparsenn.runtime.spans import span


class _Waits(threading.local):
    seconds = 0.0


_waits = _Waits()


def compile_seconds() -> float:
    """Return the seconds of numba's compiling in this process, and of this thread's waits for CUDA kernels."""
    return jit.compile_seconds() + _waits.seconds


def count_as_compiling(seconds: float) -> None:
    """Count seconds that this thread has waited for CUDA kernels to be compiled or loaded, without CuPy's own."""
    _waits.seconds += seconds


@dataclass(frozen=True)
class Seconds:
    """Where the time went, in seconds of wall time. No time is counted twice.

    Parameters
    ----------
    read : float, default 0
        Reading or generating the dataset; 0 if it was in memory already.
    plan : float, default 0
        Merging equal outputs and choosing kernels; 0 where a session had done so before.
    prepare : float, default 0
        Waiting for the weights to be on the device and in the form the kernels read, for buffers and graphs, and for
        what numba compiled in an earlier process to be loaded; what is done while layers are computed is not waited
        for. 0 where a session had all of it ready.
    transfer : float, default 0
        Checking and converting inputs, moving them to the device, and moving results back.
    compile : float, default 0
        Making the project's CUDA kernels, or loading them where they were compiled before; and what numba compiles,
        which it does once. CuPy's time for its own kernels counts towards the work that calls them first.
    compute : float, default 0
        The layers, dropping and grouping of rows included, to the categories.
    """

    read: float = 0.0
    plan: float = 0.0
    prepare: float = 0.0
    transfer: float = 0.0
    compile: float = 0.0
    compute: float = 0.0

    def __add__(self, other: Seconds) -> Seconds:
        """Add field by field."""
        return Seconds(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def total(self) -> float:
        """The sum of all."""
        return self.read + self.inference

    @property
    def inference(self) -> float:
        """The sum of all but `read`: from a network and inputs in the host's memory to the categories there."""
        return self.plan + self.prepare + self.transfer + self.compile + self.compute


class Timer:
    """Measures from its beginning on; it stands still while kernels are compiled or loaded.

    Planning may have taken some seconds before, of them `compiled` on compiling.
    """

    def __init__(self, planned: float = 0.0, compiled: float = 0.0) -> None:
        self._compiled, self._loaded = compile_seconds() - compiled, jit.load_seconds()
        self._start = self.now() - (planned - compiled)
        self._sections = {"plan": planned - compiled, "prepare": 0.0, "transfer": 0.0}

    def now(self) -> float:
        """Return seconds of a clock that stands still during compiling and loading."""
        return time.perf_counter() - compile_seconds() - jit.load_seconds()

    def add(self, name: str, seconds: float) -> None:
        """Count seconds as `plan`, `prepare` or `transfer`."""
        self._sections[name] += seconds

    def seconds(self) -> Seconds:
        """Return where the time went until now: time in no section was compute; loading kernels is to prepare."""
        sections = dict(self._sections)
        compute = self.now() - self._start - sum(sections.values())
        sections["prepare"] += jit.load_seconds() - self._loaded
        return Seconds(compile=compile_seconds() - self._compiled, compute=compute, **sections)

    def reading(self) -> Seconds:
        """Return what has passed until now, loading included, as time of reading; that of compiling is separate."""
        read = self.now() - self._start + jit.load_seconds() - self._loaded
        return Seconds(read=read, compile=compile_seconds() - self._compiled)


def now(timer: Timer | None) -> float:
    """Return a timer's seconds; 0 without one."""
    return 0.0 if timer is None else timer.now()


def section(timer: Timer | None, name: str, title: str) -> AbstractContextManager[object]:
    """Count the block as `plan`, `prepare` or `transfer` of a timer, if there is one; it is a span in any case."""
    return span(title, name) if timer is None else _Section(timer, name, span(title, name))


class _Section:
    """A section of a timer; sections do not nest. A generator would cost twice its time in each call."""

    __slots__ = ("_begun", "_name", "_span", "_timer")

    def __init__(self, timer: Timer, name: str, around: AbstractContextManager[object]) -> None:
        self._timer, self._name, self._span = timer, name, around

    def __enter__(self) -> None:
        self._span.__enter__()
        self._begun = self._timer.now()

    def __exit__(self, *error: Any) -> None:
        self._timer.add(self._name, self._timer.now() - self._begun)
        self._span.__exit__(*error)
