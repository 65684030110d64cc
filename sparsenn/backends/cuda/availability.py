"""Whether a CUDA device can be used; and if not, what to do about it."""

from __future__ import annotations

from typing import Any

from sparsenn.backends.cuda.loader import cupy
from sparsenn.errors import DeviceError

__all__ = ["check_device", "describe_device"]

LEAST_CAPABILITY = 70
"""Compute capability 7.0: the first whose lanes vote, match and shuffle by mask."""

_INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver
_ELSE = "or use --device cpu"


def check_device(index: int) -> None:
    """Refuse a device that is not there or cannot run the kernels.

    Raises
    ------
    DeviceError
        CuPy is missing or of the wrong CUDA version, the driver is too old, or there is no such GPU.
    """
    cp = _imported()
    count = _device_count(cp)
    if not count:
        raise DeviceError(f"CUDA finds no NVIDIA GPU; check nvidia-smi, {_ELSE}")
    if index >= count:
        there = "only cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise DeviceError(f"there is no device cuda:{index}: this machine has {there}; choose one of them, {_ELSE}")
    try:
        capability = int(cp.cuda.Device(index).compute_capability)
    except cp.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"cuda:{index} does not answer: {error}; check nvidia-smi, {_ELSE}") from error
    if capability < LEAST_CAPABILITY:
        raise DeviceError(
            f"cuda:{index} has compute capability {capability / 10:.1f}; the kernels need "
            f"{LEAST_CAPABILITY / 10:.1f} or newer; choose another GPU, {_ELSE}"
        )


def describe_device(index: int) -> str:
    """Return a device's number and name."""
    name = cupy().cuda.runtime.getDeviceProperties(index)["name"]
    return f"cuda:{index} ({name.decode() if isinstance(name, bytes) else name})"


def _imported() -> Any:
    try:
        return cupy()
    except ImportError as error:
        raise DeviceError(
            f"CuPy cannot be imported ({error}): install sparsenn[cuda13] for CUDA 13 (driver 580 or newer) or "
            f"sparsenn[cuda12] for CUDA 12 (driver 525 or newer), {_ELSE}"
        ) from error


def _device_count(cp: Any) -> int:
    runtime = cp.cuda.runtime
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        if getattr(error, "status", None) == _INSUFFICIENT_DRIVER:
            raise DeviceError(
                f"the installed CuPy is made for CUDA {_version(runtime.runtimeGetVersion())}, which the driver is too "
                "old for: install the extra for an older CUDA (sparsenn[cuda12]), update the driver, "
                f"{_ELSE}"
            ) from error
        raise DeviceError(f"CUDA finds no NVIDIA GPU ({error}); check nvidia-smi, {_ELSE}") from error


def _version(number: int) -> str:
    """13020 is CUDA 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"
