"""What is there to compute with: each part of the installation and of the machine, asked by itself.

A missing or broken part does not hide the others; a failed probe is a finding as well.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sparsenn.runtime.memory import memory_left, shown_bytes
from sparsenn.runtime.storage import CACHES, cache_named

REQUIRED = ("numpy", "scipy", "numba", "llvmlite", "h5py", "pyarrow", "onnx", "typer", "rich")
"""Distributions that every installation has."""

OPTIONAL = {
    "matplotlib": "pip install matplotlib, to draw pictures",
    "onnxruntime": "pip install onnxruntime, for operators that have no layers here, and to compare with it",
    "torch": "pip install torch, to import PyTorch's modules",
    "scikit-learn": "pip install scikit-learn, to import its models and to serve as its estimator",
    "dask": "pip install 'dask[array]' distributed, to run on a cluster",
}
"""Distributions that some functions need, with how to get them and for what."""

INSTRUCTIONS = ("sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vnni", "neon", "sve", "vsx")
"""Instruction sets worth reporting, as LLVM calls them."""

UNLIMITED = 1 << 60
"""Bytes from which on a limit of memory is none: control groups of version 1 have such."""


@dataclass(frozen=True)
class Finding:
    """One thing that was asked.

    section : what it belongs to: `program`, `libraries`, `optional`, `processor`, `memory`, `gpu`, `caches` or
        `kernels`.
    value : what was found, as plain values; None where it is not there.
    message : the same in words.
    remedy : what to do about it; None where nothing is wrong.
    failed : whether it is broken, rather than not there.
    """

    section: str
    name: str
    value: Any
    message: str
    remedy: str | None = None
    failed: bool = False


Probe = Callable[[], Iterator[Finding]]


def diagnose() -> list[Finding]:
    """Ask everything, and return what was found. Nothing is raised, whatever is wrong with the installation."""
    probes: tuple[tuple[str, str, Probe], ...] = (
        ("program", "sparsenn", _program),
        *(("libraries", name, partial(_library, name)) for name in REQUIRED),
        *(("optional", name, partial(_optional, name, remedy)) for name, remedy in OPTIONAL.items()),
        ("processor", "cores", _cores),
        ("processor", "instructions", _instructions),
        ("memory", "memory", _memory),
        ("gpu", "driver", _driver),
        ("gpu", "CuPy", _cupy),
        ("gpu", "GPU", _gpu),
        *(("caches", name, partial(_cache, name)) for name in CACHES),
        ("kernels", "kernels", _kernels),
    )
    return [finding for section, name, probe in probes for finding in _guarded(section, name, probe)]


def _guarded(section: str, name: str, probe: Probe) -> Iterator[Finding]:
    try:
        yield from probe()
    except Exception as error:  # whatever is broken may fail in any way
        reason = " ".join(str(error).split()) or type(error).__name__
        yield Finding(section, name, None, f"cannot be found out: {reason}", failed=True)


def _program() -> Iterator[Finding]:
    from sparsenn import __version__

    place = Path(__file__).parents[1]
    yield Finding("program", "sparsenn", __version__, f"{__version__}, in {place}")
    yield Finding("program", "python", platform.python_version(), f"{platform.python_version()}, {sys.executable}")
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield Finding("program", "system", system, system)


def _library(name: str) -> Iterator[Finding]:
    remedy = f"pip install --force-reinstall {name}"
    try:
        found = version(name)
    except PackageNotFoundError:
        yield Finding("libraries", name, None, "not installed", f"pip install {name}", failed=True)
        return
    try:
        import_module(name)
    except Exception as error:  # an installation that is broken, or of another Python
        reason = " ".join(str(error).split()) or type(error).__name__
        yield Finding("libraries", name, found, f"{found} cannot be imported: {reason}", remedy, failed=True)
        return
    yield Finding("libraries", name, found, found)


def _optional(name: str, remedy: str) -> Iterator[Finding]:
    try:
        found = version(name)
    except PackageNotFoundError:
        yield Finding("optional", name, None, "not installed", remedy)
    else:
        yield Finding("optional", name, found, found)


def _cores() -> Iterator[Finding]:
    from sparsenn.backends.cpu.processor import host_machine
    from sparsenn.runtime.workers import thread_count

    there, usable = os.cpu_count(), thread_count()
    yield Finding("processor", "name", host_machine().name, host_machine().name)
    yield Finding("processor", "cores", usable, f"{usable} in use, of {there}")


def _instructions() -> Iterator[Finding]:
    from llvmlite.binding import get_host_cpu_features

    has = get_host_cpu_features()
    found = [name for name in INSTRUCTIONS if has.get(name)]
    yield Finding("processor", "instructions", found, ", ".join(found) or "none that matter")


def _memory() -> Iterator[Finding]:
    for name, amount in memory_left().items():
        limited = amount is not None and amount < UNLIMITED
        message = f"{shown_bytes(amount)} left" if amount is not None and limited else "no limit"
        yield Finding("memory", name, amount if limited else None, message)


def _driver() -> Iterator[Finding]:
    from sparsenn.backends.cuda.runtime.availability import driver_version, gpu_names

    driver = driver_version()
    if driver is None:
        yield Finding("gpu", "driver", None, "none: everything runs on the CPU")
        return
    yield Finding("gpu", "driver", driver, f"for CUDA up to {driver}")
    names = gpu_names()
    yield Finding("gpu", "GPUs", names, ", ".join(names) or "none", None if names else "check nvidia-smi")


def _cupy() -> Iterator[Finding]:
    from sparsenn.backends.cuda.runtime.availability import (
        compiler_version,
        cupy_version,
        driver_version,
        matching_package,
    )

    found, driver = cupy_version(), driver_version()
    if found is None:
        remedy = None if driver is None else f"pip install '{matching_package(driver)}', to use the GPU"
        yield Finding("gpu", "CuPy", None, "not installed", remedy)
        return
    yield Finding("gpu", "CuPy", found, found)
    compiler = compiler_version()
    yield Finding("gpu", "NVRTC", compiler, compiler)


def _gpu() -> Iterator[Finding]:
    from sparsenn.backends.cuda.runtime.availability import check_device, cupy_version, driver_version
    from sparsenn.errors import DeviceError

    if driver_version() is None or cupy_version() is None:
        return
    try:
        check_device(0)
    except DeviceError as error:
        yield Finding("gpu", "usable", False, "no", str(error), failed=True)
    else:
        yield Finding("gpu", "usable", True, "yes, as cuda:0")


def _cache(name: str) -> Iterator[Finding]:
    cache = cache_named(name)
    value = {
        "folder": None if cache.folder is None else str(cache.folder),
        "files": len(cache.files),
        "bytes": cache.nbytes,
        "writable": cache.writable,
    }
    files = "1 file" if len(cache.files) == 1 else f"{len(cache.files):,} files"
    message = f"{shown_bytes(cache.nbytes)} in {files}"
    if cache.folder is not None:
        message += f", {cache.folder}"
    remedy = None if cache.writable else "cannot be written to: set SPARSENN_CACHE to a folder that can"
    yield Finding("caches", cache.name, value, message, remedy)


def _kernels() -> Iterator[Finding]:
    from sparsenn import datasets  # noqa: F401  its functions are among those that are compiled
    from sparsenn.backends import kernels
    from sparsenn.runtime.jit import compiled_functions, stored_functions

    names = kernels()
    yield Finding("kernels", "kernels", len(names), f"{len(names)}, listed by sparsenn kernels list")
    stored, every = stored_functions(), len(compiled_functions())
    remedy = None if stored > every // 2 else "sparsenn kernels list --compile, once, so that no run waits for it"
    yield Finding(
        "kernels", "compiled", {"stored": stored, "all": every}, f"{stored} of {every} functions of the CPU", remedy
    )
