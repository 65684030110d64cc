"""The processor that this process runs on, as a machine."""

from __future__ import annotations

import platform
import re
from functools import cache
from pathlib import Path

from sparsenn.backends.machine import Machine
from sparsenn.runtime.workers import thread_count

__all__ = ["host_machine"]


def host_machine() -> Machine:
    """Return the processor with the threads in use; both are in its name, by which measurements are stored."""
    threads = thread_count()
    name = f"{_processor()}, {threads} thread{'s' if threads > 1 else ''}"
    return Machine(name, "cpu", multiprocessors=threads)


@cache
def _processor() -> str:
    """Return the processor's name where Linux tells it, else what the system says of its kind."""
    try:
        told = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        told = None
    return told[1].strip() if told else platform.processor() or platform.machine()
