"""Inventory of a machine for GPUs: the driver (queried without CuPy), its devices, CuPy and CUDA's compiler."""

from __future__ import annotations

import ctypes
from importlib.metadata import distributions
from typing import Any

from sparsenn.backends.cuda.runtime.device import cupy, driver
from sparsenn.errors import DeviceError

_NAME_BYTES = 256


def driver_version() -> str | None:
    """Return the newest CUDA that the driver knows, such as 13.0; None without a driver, DeviceError if it fails."""
    cuda = _driver()
    if cuda is None:
        return None
    number = ctypes.c_int()
    _call(cuda.cuDriverGetVersion, ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def gpu_names() -> list[str]:
    """Return the names of the GPUs that the driver shows; none without a driver, DeviceError if it fails."""
    cuda = _driver()
    if cuda is None:
        return []
    count, device, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(_NAME_BYTES)
    _call(cuda.cuInit, 0)
    _call(cuda.cuDeviceGetCount, ctypes.byref(count))
    names = []
    for index in range(count.value):
        _call(cuda.cuDeviceGet, ctypes.byref(device), index)
        _call(cuda.cuDeviceGetName, name, _NAME_BYTES, device)
        names.append(name.value.decode(errors="replace"))
    return names


def matching_package(driver: str) -> str:
    """Return the name of CuPy's package for a driver, by the newest version of CUDA that the driver supports."""
    return "cupy-cuda13x[ctk]" if int(driver.partition(".")[0]) >= 13 else "cupy-cuda12x[ctk]"


def cupy_version() -> str | None:
    """Return the version of CuPy; None where it is not installed, DeviceError where it cannot be imported."""
    if not any(str(found.metadata["Name"]).lower().startswith("cupy") for found in distributions()):
        return None
    try:
        return str(cupy().__version__)
    except Exception as error:  # what is left of a broken installation may fail in any way
        raise DeviceError(f"CuPy cannot be imported: {' '.join(str(error).split())}") from error


def compiler_version() -> str:
    """Return the version of NVRTC that CuPy compiles with; raises what loading CuPy or the library raises."""
    return ".".join(map(str, cupy().cuda.nvrtc.getVersion()))


def _driver() -> Any:
    try:
        return driver()
    except OSError:
        return None


def _call(function: Any, *arguments: Any) -> None:
    code = function(*arguments)
    if code:
        raise DeviceError(f"CUDA's driver answers {function.__name__} with error {code}; check nvidia-smi")
