"""The prior of a kernel: one roofline formula, right within a factor of two, which orders candidates.

Kernels whose prior is close to the best are timed before one is chosen; where nothing can be timed, as for a plan for
another machine, the prior alone decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsenn.backends.machine import Machine

LAUNCH_SECONDS = 4.5e-6  # of a kernel or a copy in a replayed graph on an H200; of a compiled function on a CPU

# Fractions of a machine's peak of multiply-adds.
TUNED = 0.5  # of libraries, and of kernels that keep many sums in registers
WARPS = 0.18  # of kernels whose warps wait for shared memory

# Fractions of the copy bandwidth.
CACHED = 2.0  # with which caches are read
LAID_OUT = 0.3  # of passes that lay numbers out, round them, or gather pixels


@dataclass(frozen=True)
class Prior:
    """The efficiencies of a kernel."""

    compute: float  # fraction of the machine's peak of multiply-adds that large problems reach
    memory: float = 0.6  # fraction of the machine's copy bandwidth that large problems reach
    launch: float = LAUNCH_SECONDS  # seconds of a launch, however small
    precision: str = "float32"  # precision whose peak counts: `float32`, `tf32` or `float16`

    def seconds(self, machine: Machine, multiply_adds: float, nbytes: float, launches: int = 1) -> float:
        """Estimate the seconds of a problem."""
        computing = multiply_adds / (machine.multiply_adds(self.precision) * self.compute)
        moving = nbytes / (machine.copy_bandwidth * self.memory)
        return launches * self.launch + max(computing, moving)
