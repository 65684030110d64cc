"""The processor that this process runs on, as a machine."""

from __future__ import annotations

import platform
import re
from functools import cache
from pathlib import Path

from llvmlite.binding import get_host_cpu_name

from sparsenn.backends.cpu.tiles import VECTOR
from sparsenn.backends.machine import Machine
from sparsenn.backends.prior import TUNED, Prior
from sparsenn.runtime.workers import thread_count

CLOCK = 3e9  # clocks of a core in a second under load; about the same for all servers

THREAD_BANDWIDTH = 2e10
"""Bytes a second that a thread copies, read plus written, far from the caches; about the same for all servers."""

UNITS = 1 if get_host_cpu_name() == "znver4" else 2
"""Vectors that a core multiplies in a clock: two, but where one takes both units that there are."""

WAKING_SECONDS = 5e-5  # time to hand work to other threads, and to wait until they are done
THREAD_WORK = int(WAKING_SECONDS * CLOCK * UNITS * VECTOR)  # multiply-adds of a thread in that time

CACHE_BYTES = 2 << 20  # of a core's own cache

PANELS = Prior(compute=TUNED, memory=0.15)
"""The prior of work on panels of rows or images, as measured on AMD EPYC (Zen 4)."""


def host_machine() -> Machine:
    """Return the processor with the threads in use; both are in its name, by which measurements are stored."""
    return processor_of(_processor(), thread_count())


def processor_of(name: str, threads: int) -> Machine:
    """Return a processor with a number of threads, the SIMD width that of the processor at hand."""
    return Machine(
        f"{name}, {threads} thread{'s' if threads > 1 else ''}",
        "cpu",
        multiprocessors=threads,
        clock=CLOCK,
        copy_bandwidth=threads * THREAD_BANDWIDTH,
        thread_multiply_adds=UNITS * VECTOR,
    )


def shared_seconds(prior: Prior, machine: Machine, threads: int, multiply_adds: float, nbytes: float) -> float:
    """Estimate the seconds of work that some of a processor's threads share, the others idle."""
    busy = threads / machine.multiprocessors
    waking = WAKING_SECONDS if threads > 1 else 0.0
    return waking + prior.seconds(machine, multiply_adds / busy, nbytes / busy)


@cache
def _processor() -> str:
    try:
        told = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        told = None
    return told[1].strip() if told else platform.processor() or platform.machine()
