"""Measuring on a GPU, by CUDA events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy, machine_of
from sparsenn.backends.cuda.runtime.recorder import recording, section
from sparsenn.studies.measure.ceilings import (
    Work,
    l2_reading,
    multiply_adding,
    shared_reading,
    tensor_multiplying,
)
from sparsenn.studies.measure.meter import Identity, Measurement, Roofs, median_seconds

COPY_BYTES = 1 << 30


class CUDAMeter:
    """Measures on GPU number `index`."""

    def __init__(self, index: int) -> None:
        self._index = index

    def identity(self) -> Identity:
        """Return the GPU's name, and the version of CUDA that its driver is for."""
        version = int(cupy().cuda.runtime.driverGetVersion())  # 13020 is CUDA 13.2
        return Identity(machine_of(self._index).name, f"driver for CUDA {version // 1000}.{version % 1000 // 10}")

    def measure(self, operation: str, work: Callable[[], Any]) -> Measurement:
        """Run `work`. Its time is that of the part called total if it has one, else all of it."""
        with cupy().cuda.Device(self._index), recording() as record:
            with section("whole"):
                output = work()
            seconds = record.seconds()
        kernels = record.kernels.get(operation, [])
        return Measurement(
            output=output,
            seconds=seconds.get("total", seconds["whole"]),
            kernel_seconds=seconds.get(operation),
            registers=max((int(kernel.num_regs) for kernel in kernels), default=None),
            shared_bytes=max((int(kernel.shared_size_bytes) for kernel in kernels), default=None),
        )

    def roofs(self) -> Roofs:
        """Measure a copy of 1 GiB, and by kernels of its own what L2, shared memory and arithmetic give.

        Medians of 20 runs, each of a kernel that takes a few milliseconds.
        """
        with cupy().cuda.Device(self._index):
            l2, size = l2_reading(self._index)
            rates = {"float32": multiply_adding(self._index), **tensor_multiplying(self._index)}
            return Roofs(
                copy_bandwidth=2 * COPY_BYTES / self._copy_seconds(),
                cache_bandwidth=self._rate(l2),
                cache="L2",
                cache_bytes=size,
                multiply_adds={name: self._rate(work) for name, work in rates.items()},
                shared_bandwidth=self._rate(shared_reading(self._index)),
                processors=machine_of(self._index).multiprocessors,
            )

    def _rate(self, measured: Work) -> float:
        amount, work = measured
        return amount / median_seconds(self, work)

    def _copy_seconds(self) -> float:
        cp = cupy()
        source = cp.ones(COPY_BYTES // 4, np.float32)
        target = cp.empty_like(source)
        return median_seconds(self, lambda: cp.copyto(target, source))
