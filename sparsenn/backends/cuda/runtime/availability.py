"""Whether a CUDA device can be used, and if not, what was found and what to do about it; and what the machine has.

The driver is queried without CuPy.
"""

from __future__ import annotations

import ctypes
import os
import re
from importlib.metadata import distributions
from typing import Any

from sparsenn.backends.cuda.runtime.device import cupy, driver
from sparsenn.errors import DeviceError

LEAST_CAPABILITY = 80  # 8.0: the first that copies into shared memory beside the arithmetic and multiplies in TF32

ANY_GPU = f"NVIDIA GPU (compute capability {LEAST_CAPABILITY / 10:.1f})"  # what every kernel needs, in words
OLDEST_DRIVERS = {13: 580, 12: 525}  # the oldest driver for each CUDA that there is an extra for

_INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver
_NO_DEVICE = 100  # cudaErrorNoDevice
_ELSE = "or use device cpu"


def check_device(index: int) -> None:
    """Refuse a device, with a DeviceError, that is missing or cannot run the kernels, or has no compiler."""
    count = count_devices()
    cp = cupy()
    if index >= count:
        there = "only cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise DeviceError(
            f"there is no device cuda:{index}: this machine has {there}; {_hidden()}choose one of them, {_ELSE}"
        )
    try:
        with cp.cuda.Device(index) as device:
            capability = int(device.compute_capability)
            cp.cuda.runtime.memGetInfo()  # makes the context, for which memory may not suffice
    except cp.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(
            f"cuda:{index} cannot be used ({error}); see in nvidia-smi what occupies it, {_ELSE}"
        ) from error
    if capability < LEAST_CAPABILITY:
        raise DeviceError(
            f"cuda:{index} has compute capability {capability / 10:.1f}; the kernels need "
            f"{LEAST_CAPABILITY / 10:.1f} or newer; choose another GPU, {_ELSE}"
        )
    _check_compiler(cp)


def count_devices() -> int:
    """Return how many GPUs there are, at least one; raises DeviceError for none, or without CuPy or a driver."""
    count = _device_count(_imported())
    if not count:
        raise DeviceError(f"CUDA finds no NVIDIA GPU; {_hidden()}check nvidia-smi, {_ELSE}")
    return count


def _imported() -> Any:
    try:
        cp = cupy()
        if not hasattr(cp, "cuda"):
            place = getattr(cp, "__file__", None) or next(iter(getattr(cp, "__path__", ())), "a module of that name")
            raise ImportError(f"{place} is not CuPy")
    except Exception as error:  # what is left of a broken installation may fail in any way
        raise DeviceError(
            f"CuPy cannot be imported ({_in_one_line(error.__cause__ or error)}): {_removal()}install {_extra(13)} or "
            f"{_extra(12)}, {_ELSE}"
        ) from error
    return cp


def _device_count(cp: Any) -> int:
    runtime = cp.cuda.runtime
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        status = getattr(error, "status", None)
        if status == _NO_DEVICE:
            text = f"CUDA finds no NVIDIA GPU ({error}); {_hidden()}check nvidia-smi"
        elif status != _INSUFFICIENT_DRIVER:
            text = f"CUDA cannot be started ({error}); check nvidia-smi"
        elif runtime.driverGetVersion():
            text = _too_new(runtime.runtimeGetVersion(), runtime.driverGetVersion())
        else:
            text = "CUDA finds no NVIDIA driver: install one, or give the container access to the GPU"
        raise DeviceError(f"{text}, {_ELSE}") from error


def _too_new(made_for: int, driver: int) -> str:
    needed, known = made_for // 1000, driver // 1000
    update = (
        f"update the driver to {OLDEST_DRIVERS[needed]} or newer" if needed in OLDEST_DRIVERS else "update the driver"
    )
    other = f"{_removal()}install {_extra(known)}, or " if known in OLDEST_DRIVERS and known < needed else ""
    return (
        f"the installed CuPy is made for CUDA {_version(made_for)}, the driver only for CUDA up to {_version(driver)}: "
        f"{other}{update}"
    )


def _check_compiler(cp: Any) -> None:
    """Refuse an installation without NVRTC, which CuPy's packages do not hold."""
    try:
        cp.cuda.nvrtc.getVersion()
    except (RuntimeError, OSError) as error:
        package = f"cupy-cuda{cp.cuda.runtime.runtimeGetVersion() // 1000}x"
        wheels = f"pip install -U '{package}[ctk]', or " if package in _packages() else ""
        raise DeviceError(
            f"CuPy cannot load CUDA's compiler NVRTC ({_in_one_line(error)}): {wheels}install the CUDA Toolkit, {_ELSE}"
        ) from error


def _removal() -> str:
    packages = " ".join(_packages())
    return f"pip uninstall {packages}, then " if packages else ""


def _packages() -> list[str]:
    names = {str(found.metadata["Name"]).lower() for found in distributions()}
    return sorted(name for name in names if re.fullmatch(r"cupy(-(cuda|rocm).*)?", name))


def _extra(cuda: int) -> str:
    return f"cupy-cuda{cuda}x[ctk] for CUDA {cuda} (driver {OLDEST_DRIVERS[cuda]} or newer)"


def _hidden() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if visible is None else f"CUDA_VISIBLE_DEVICES={visible!r} may hide it: unset that, "


def _in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _version(number: int) -> str:
    """13020 is CUDA 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"


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
