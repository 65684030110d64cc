"""CuPy, which only this module imports, on first use; CUDA's driver; and what a GPU that is here offers."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any

from sparsenn.backends.machine import MACHINES, SUSTAINED, Machine
from sparsenn.runtime.storage.folder import cupy_folder


@cache
def driver() -> Any:
    """Load the library of the driver; OSError without one."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


_imported: Any = None  # CuPy, once it has been imported in full


def cupy() -> Any:
    """Import CuPy on first use, without the warnings about installations that it still works with."""
    global _imported
    if _imported is None or sys.modules.get("cupy") is not _imported:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _imported = import_module("cupy")
        _place_cache()
    return _imported


def _place_cache() -> None:
    """Have CuPy keep what it compiles where SPARSENN_CACHE says, or in memory where nothing can be written there."""
    folder = cupy_folder()
    if os.environ.get("SPARSENN_CACHE"):
        os.environ.setdefault("CUPY_CACHE_DIR", str(folder))
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if "CUPY_CACHE_IN_MEMORY" not in os.environ and not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
        warnings.warn(
            f"compiled kernels cannot be cached, and the next run compiles them again ({folder} cannot be written to); "
            "set SPARSENN_CACHE to a writable folder",
            stacklevel=3,
        )


_STAYS = nullcontext()


def as_current(device: int) -> AbstractContextManager[Any]:
    """Return a context in which a device is the current one. Where it is, nothing is done, which takes less."""
    cuda = cupy().cuda
    return _STAYS if cuda.runtime.getDevice() == device else cuda.Device(device)


CLOCK_RATE = 13  # cudaDevAttrClockRate, in kHz
MEMORY_CLOCK_RATE = 36  # cudaDevAttrMemoryClockRate, in kHz
MEMORY_BUS_WIDTH = 37  # cudaDevAttrGlobalMemoryBusWidth, in bits


@cache
def machine_of(device: int) -> Machine:
    """Ask a device what it offers; rates are what it sustains."""
    runtime = cupy().cuda.runtime
    found = runtime.getDeviceProperties(device)
    name = found["name"].decode() if isinstance(found["name"], bytes) else found["name"]
    clock, copies = _rates(runtime, device, name)
    return Machine(
        name=name,
        device="cuda",
        multiprocessors=found["multiProcessorCount"],
        capability=10 * found["major"] + found["minor"],
        block_bytes=found["sharedMemPerBlockOptin"],
        multiprocessor_bytes=found["sharedMemPerMultiprocessor"],
        memory_bytes=found["totalGlobalMem"],
        clock=clock,
        copy_bandwidth=copies,
    )


def current_machine() -> Machine:
    """Return what the current device offers."""
    return machine_of(cupy().cuda.runtime.getDevice())


def _rates(runtime: Any, device: int, name: str) -> tuple[float, float]:
    for known in MACHINES.values():
        if known.name == name:
            return known.clock, known.copy_bandwidth
    clock, memory, width = (
        runtime.deviceGetAttribute(attribute, device) for attribute in (CLOCK_RATE, MEMORY_CLOCK_RATE, MEMORY_BUS_WIDTH)
    )
    return SUSTAINED * 1e3 * clock, SUSTAINED * 2e3 * memory * width / 8
