"""From a device's name to its backend."""

from __future__ import annotations

import re
from importlib.util import find_spec

from sparsenn.backends.base import Backend
from sparsenn.backends.cpu import CPUBackend
from sparsenn.backends.cuda import CUDABackend
from sparsenn.backends.cuda.meter import CUDAMeter
from sparsenn.backends.meter import HostMeter, Meter
from sparsenn.backends.reference import ReferenceBackend
from sparsenn.errors import DeviceError, unknown_name

__all__ = ["backend_for", "meter_for"]


def backend_for(device: str) -> Backend:
    """Return the backend for `auto`, `cpu`, `reference`, `cuda` (the first GPU) or `cuda:i`.

    `auto` is the first GPU if CuPy and a GPU are there, else the CPU.

    Raises
    ------
    DeviceError
        The device is not there, or what it needs is missing; the message says what to install.
    UsageError
        There is no device of that name.
    """
    if device == "auto":
        return _fastest()
    if device == "cpu":
        return CPUBackend()
    if device == "reference":
        return ReferenceBackend()
    if found := re.fullmatch(r"cuda(?::([0-9]{1,4}))?", device):
        return CUDABackend(int(found[1] or 0))
    raise unknown_name("device", device, ("auto", "cpu", "cuda", "reference"))


def meter_for(backend: Backend) -> Meter:
    """Return what measures on a backend's device."""
    return CUDAMeter(backend.index) if isinstance(backend, CUDABackend) else HostMeter()


def _fastest() -> Backend:
    if find_spec("cupy") is None:
        return CPUBackend()
    try:
        return CUDABackend(0)
    except DeviceError:
        return CPUBackend()
