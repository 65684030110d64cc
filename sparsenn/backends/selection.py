"""From a device's name to its backend."""

from __future__ import annotations

import re

from sparsenn.backends.base import Backend
from sparsenn.backends.cpu import CPUBackend
from sparsenn.backends.reference import ReferenceBackend
from sparsenn.errors import DeviceError, unknown_name

__all__ = ["backend_for"]


def backend_for(device: str) -> Backend:
    """Return the backend for `auto`, `cpu`, `reference`, `cuda` or `cuda:i`.

    `auto` is the fastest device there is.

    Raises
    ------
    DeviceError
        The device is not there.
    UsageError
        There is no device of that name.
    """
    if device in ("auto", "cpu"):
        return CPUBackend()
    if device == "reference":
        return ReferenceBackend()
    if re.fullmatch(r"cuda(:\d+)?", device):
        raise DeviceError(f"the device {device!r} is not available: this version computes on the CPU; use --device cpu")
    raise unknown_name("device", device, ("auto", "cpu", "cuda", "reference"))
