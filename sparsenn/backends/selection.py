"""From names of a device and a kernel to the backend and its kernels."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import cast

from sparsenn.backends.contract import Backend
from sparsenn.backends.cpu import CPUBackend
from sparsenn.backends.cuda import AbsentCUDABackend, CUDABackend
from sparsenn.backends.cuda.double import DEVICE, DoubleCUDABackend
from sparsenn.backends.cuda.runtime.availability import count_devices
from sparsenn.backends.kernel_records import SPARSE_OPERATION, Kernel
from sparsenn.backends.machine import Machine
from sparsenn.backends.oracle import ReferenceBackend
from sparsenn.backends.registry import kernels, permitted_kernels
from sparsenn.errors import DeviceError, UsageError, unknown_name

DOUBLE_DEVICE = DEVICE


def backend_for(device: str) -> Backend:
    """Return the backend for `auto`, `cpu`, `reference`, `cuda` (the first GPU) or `cuda:i`.

    `cuda_float64` and `cuda_float64:i` are GPUs, too, for precision float64. `auto` is the first GPU if CuPy and a GPU
    are there, else the CPU. A device that is missing raises DeviceError, an unknown name UsageError.
    """
    if device == "auto":
        return _fastest()
    if device == "cpu":
        return CPUBackend()
    if device == "reference":
        return ReferenceBackend()
    if found := re.fullmatch(rf"(cuda|{DOUBLE_DEVICE})(?::([0-9]{{1,4}}))?", device):
        return (CUDABackend if found[1] == "cuda" else DoubleCUDABackend)(int(found[2] or 0))
    of_gpu = re.fullmatch(r"(?:gpu|nvidia|cuda)(:?[0-9]{1,4})?", device.lower())
    meant = None if of_gpu is None else ":".join(("cuda", *([of_gpu[1].lstrip(":")] if of_gpu[1] else ())))
    raise unknown_name("device", device, ("auto", "cpu", "cuda", "reference"), meant)


def backend_elsewhere(device: str, machine: Machine) -> Backend:
    """Return a backend for plans that are made for a GPU, whether it is here or not, and are not run."""
    if machine.device != "cuda":
        raise UsageError(f"{machine.name} is not a GPU: plans for another machine are for GPUs")
    if device not in ("auto", "cuda"):
        raise UsageError(f"device {device} is not {machine.name}: leave out the device, or the machine")
    return cast(Backend, AbsentCUDABackend(machine))


def select_backend(device: str, kernel: str, operation: str | None, machine: Machine | None) -> Backend:
    """Return the backend for a device, or for plans on a machine that need not be here.

    A kernel that only the CPU has takes the device `auto` to the CPU.
    """
    if machine is not None:
        return backend_elsewhere(device, machine)
    free = device == "auto" and kernel != "auto"
    return backend_for("cpu" if free and kernel in {entry.name for entry in kernels(operation, "cpu")} else device)


def select_kernels(
    device: str,
    kernel: str,
    operation: str = SPARSE_OPERATION,
    precision: str = "float32",
    machine: Machine | None = None,
    reproducible: bool = False,
) -> tuple[Backend, list[Kernel]]:
    """Return what `select_backend` does, and the kernels of an operation that options permit on it."""
    backend = select_backend(device, kernel, operation, machine)
    return backend, permitted_kernels(operation, backend.device, kernel, precision, reproducible)


def gpus() -> tuple[str, ...]:
    """Return the names of all GPUs that are here, or raise a DeviceError that says what is missing."""
    return tuple(f"cuda:{index}" for index in range(count_devices()))


def _fastest() -> Backend:
    if find_spec("cupy") is None:
        return CPUBackend()
    try:
        return CUDABackend(0)
    except DeviceError:
        return CPUBackend()
