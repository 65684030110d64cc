"""Machines: what a device offers, as a value, so that a plan can be made for a GPU that is not here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparsenn.errors import unknown_name

WARP = 32  # threads of a GPU that execute together

PER_CLOCK = {
    80: {"float32": 64, "tf32": 512, "float16": 1024},
    86: {"float32": 128, "tf32": 128, "float16": 256},
    90: {"float32": 128, "tf32": 1024, "float16": 2048},
    100: {"float32": 128, "tf32": 2048, "float16": 4096},
    120: {"float32": 128, "tf32": 128, "float16": 256},
}
"""Multiply-adds of a multiprocessor in a clock, sums in float32, by the compute capability from which on it is so; from
NVIDIA's descriptions of the architectures."""

WARPS_AT_ONCE = {80: 64, 86: 48, 90: 64, 120: 48}
"""Warps that a multiprocessor has at a time at most, likewise (CUDA C++ Programming Guide, compute capabilities)."""

REGISTERS = 65_536  # of a multiprocessor, whichever the architecture
GRID_ROWS = 65_535  # blocks of a grid's second dimension, at most


@dataclass(frozen=True)
class Machine:
    """A device."""

    name: str  # with the threads in use where it is a processor; measurements are stored by it
    device: str  # `cpu`, `cuda` or `reference`
    multiprocessors: int  # of a GPU; threads of a processor
    capability: int = 0  # ten times the compute capability, 90 for 9.0; 0 where it is no GPU, as all that follow
    block_bytes: int = 0
    multiprocessor_bytes: int = 0
    memory_bytes: int = 0  # of the device's own memory
    clock: float = 0.0  # clocks of a multiprocessor in a second, under load
    copy_bandwidth: float = 0.0  # bytes a second, read plus written, of a copy far larger than the caches
    thread_multiply_adds: int = 0  # float32 multiply-adds of a processor's thread in a clock; 0 for a GPU

    @property
    def warps(self) -> int:
        """Warps that a multiprocessor has at a time at most."""
        return WARPS_AT_ONCE[self._listed(WARPS_AT_ONCE)]

    def filling_blocks(self, threads: int) -> int:
        """Return the blocks of a number of threads that the device has at a time at most."""
        return self.multiprocessors * self.warps * WARP // threads

    def multiply_adds(self, precision: str) -> float:
        """Return the most multiply-adds a second in a precision, `float32`, `tf32` or `float16`."""
        per_clock = self.thread_multiply_adds or PER_CLOCK[self._listed(PER_CLOCK)][precision]
        return per_clock * self.multiprocessors * self.clock

    def _listed(self, capabilities: Iterable[int]) -> int:
        """Return the last of ascending compute capabilities that the machine's reaches, or else the first."""
        first, *others = capabilities
        return max((least for least in others if least <= self.capability), default=first)

    def share(self, precision: str) -> float:
        """Return the multiply-adds of a multiprocessor in a clock, in parts of what an H200's does."""
        clocks, others = self.multiprocessors * self.clock, H200.multiprocessors * H200.clock
        return self.multiply_adds(precision) / clocks / (H200.multiply_adds(precision) / others)


SUSTAINED = 0.88  # fraction of its highest clock, and of its memory's bandwidth, that a GPU sustains, as an H200 does


def _gpu(name: str, sizes: tuple[int, int, int, int, int], clock: float, bandwidth: float) -> Machine:
    return Machine(name, "cuda", *sizes, SUSTAINED * clock, SUSTAINED * bandwidth)


H200 = _gpu("NVIDIA H200", (132, 90, 227 << 10, 228 << 10, 150_754_820_096), 1.98e9, 4.8e12)
A100 = _gpu("NVIDIA A100-SXM4-80GB", (108, 80, 163 << 10, 164 << 10, 85_899_345_920), 1.41e9, 2.039e12)
RTX_4090 = _gpu("NVIDIA GeForce RTX 4090", (128, 89, 99 << 10, 100 << 10, 25_769_803_776), 2.52e9, 1.008e12)

MACHINES = {"h200": H200, "a100": A100, "rtx-4090": RTX_4090}
"""GPUs that plans can be made for where they are not, by the names that users give them."""


def machine_named(name: str) -> Machine:
    """Return one of `MACHINES`."""
    if name not in MACHINES:
        raise unknown_name("machine", name, MACHINES)
    return MACHINES[name]
