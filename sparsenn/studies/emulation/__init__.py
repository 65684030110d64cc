"""CUDA kernels on a host without a GPU: compiled by g++, threads as coroutines, answers and faults as on a device.

`device/` holds what stands in for a GPU; `emulation.h` is included first. Times of emulated launches mean nothing.
"""

from sparsenn.studies.emulation.backend import EmulatedBackend, ladder_backend
from sparsenn.studies.emulation.kernel import (
    EmulatedKernel,
    EmulationError,
    compiled_library,
    emulated_kernel,
    host_program,
    loaded,
)

__all__ = [
    "EmulatedBackend",
    "EmulatedKernel",
    "EmulationError",
    "compiled_library",
    "emulated_kernel",
    "host_program",
    "ladder_backend",
    "loaded",
]
