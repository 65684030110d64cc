"""Measuring on a GPU, by CUDA events; what it can do at most is measured by kernels that do one thing only.

Each kernel's result is known beforehand, and checked: a compiler that left work out would be found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy, machine_of
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.recorder import launch, recording, section
from sparsenn.errors import DeviceError
from sparsenn.formats import Array
from sparsenn.studies.measure.meter import Identity, Measurement, Roofs, median_seconds

Work = tuple[int, Callable[[], None]]
"""Bytes or multiply-adds, and what does so many of them each time it is called."""

THREADS = 1024
BLOCKS = 2
"""Threads of a block, and blocks of a multiprocessor: as many threads as it holds on most GPUs."""

# As in the kernels.
READS = 8  # in a round
TENSOR_TILES = 8  # of a warp
SUMS = 8  # of a thread
STEPS = 16  # of each sum in a round

TENSOR_THREADS = 256  # of a block
TENSOR_BLOCKS = 4  # of a multiprocessor

# So that each kernel takes one to some milliseconds; sums of 32 bits do not overflow, and floats stay exact.
READ_ROUNDS = 128
SHARED_ROUNDS = 1024
ADD_ROUNDS = 2048
TENSOR_ROUNDS = 8192

TENSOR = {"tf32": (0, 8, 0x3F800000, 0x3A800000), "float16": (1, 16, 0x3C003C00, 0x14001400)}
"""The define HALF, multiply-adds of each sum in a product, and the bits of 1 and of 2^-10."""

PRODUCT = 2.0**-10

_READ_L2 = program("studies/measure/kernels/l2_read.cu")
_READ_SHARED = program("studies/measure/kernels/shared_read.cu", THREADS=(THREADS,))
_MULTIPLY_ADD = program("studies/measure/kernels/multiply_add.cu")
_TENSOR = program("studies/measure/kernels/tensor.cu", HALF=(0, 1))


def l2_reading(device: int) -> tuple[Work, int]:
    """Return work that reads from L2 a buffer of a third of its size at most, again and again; and L2's size.

    As all that follow: to be run with `device` the current one; raises DeviceError if what was computed is wrong.
    """
    cp = cupy()
    size = int(cp.cuda.runtime.getDeviceProperties(device)["l2CacheSize"])
    words = 1 << max(10, (size // 3 // 16).bit_length() - 1)  # groups of 16 bytes, a power of two
    buffer, total = cp.ones(4 * words, np.uint32), cp.zeros(1, np.uint64)
    blocks = BLOCKS * machine_of(device).multiprocessors
    groups = blocks * THREADS * READS * READ_ROUNDS
    kernel, rounds = _READ_L2.kernel("l2_read"), np.int32(READ_ROUNDS)

    def work() -> None:
        launch("l2", kernel, (blocks,), (THREADS,), buffer, np.int32(words), rounds, total)

    return (16 * groups, _checked(work, total, 4 * groups, "reading L2")), size


def shared_reading(device: int) -> Work:
    """Return work that reads from all multiprocessors' shared memory."""
    total = cupy().zeros(1, np.uint64)
    blocks = BLOCKS * machine_of(device).multiprocessors
    groups = blocks * THREADS * READS * SHARED_ROUNDS
    kernel, rounds = _READ_SHARED.kernel("shared_read"), np.int32(SHARED_ROUNDS)

    def work() -> None:
        launch("shared", kernel, (blocks,), (THREADS,), np.uint32(1), rounds, total)

    return 16 * groups, _checked(work, total, 4 * groups, "reading shared memory")


def multiply_adding(device: int) -> Work:
    """Return work that does float32 multiply-adds in registers."""
    blocks = BLOCKS * machine_of(device).multiprocessors
    sums = cupy().zeros(blocks * THREADS, np.float32)
    kernel = _MULTIPLY_ADD.kernel("multiply_add")
    numbers = np.float32(1), np.float32(0.5), np.float32(0.5), np.int32(ADD_ROUNDS)

    def work() -> None:
        launch("float32", kernel, (blocks,), (THREADS,), *numbers, sums)

    return sums.size * SUMS * STEPS * ADD_ROUNDS, _checked(work, sums, SUMS, "multiplying in float32")


def tensor_multiplying(device: int) -> dict[str, Work]:
    """Return work for the tensor cores by precision, `tf32` and `float16`."""
    blocks = TENSOR_BLOCKS * machine_of(device).multiprocessors
    warps = blocks * TENSOR_THREADS // 32
    return {
        name: (
            warps * TENSOR_TILES * 16 * 8 * depth * TENSOR_ROUNDS,
            _tensor_work(name, half, depth, (one, factor), blocks),
        )
        for name, (half, depth, one, factor) in TENSOR.items()
    }


def _tensor_work(name: str, half: int, depth: int, bits: tuple[int, int], blocks: int) -> Callable[[], None]:
    sums = cupy().zeros(blocks * TENSOR_THREADS, np.float32)
    kernel = _TENSOR.kernel("tensor", HALF=half)
    numbers = np.uint32(bits[0]), np.uint32(bits[1]), np.int32(TENSOR_ROUNDS)

    def work() -> None:
        launch(name, kernel, (blocks,), (TENSOR_THREADS,), *numbers, sums)

    return _checked(work, sums, 4 * TENSOR_TILES * TENSOR_ROUNDS * depth * PRODUCT, f"multiplying in {name}")


def _checked(work: Callable[[], None], result: Array, expected: Any, what: str) -> Callable[[], None]:
    """Return the work once its first run has given what it should; later runs add to totals and are not looked at."""
    work()
    if not bool((result == expected).all()):
        raise DeviceError(
            f"{what} gave {float(result[0])}, not {float(expected)}: the GPU, its driver or CuPy computes wrongly; use "
            "device cpu"
        )
    return work


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
