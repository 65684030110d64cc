"""The prior of a kernel: one roofline formula, right within a factor of two, which orders candidates.

Kernels whose prior is close to the best are timed before one is chosen; where nothing can be timed, as for a plan for
another machine, the prior alone decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsenn.backends.machine import Machine

__all__ = ["Prior"]


@dataclass(frozen=True)
class Prior:
    """The efficiencies of a kernel.

    Parameters
    ----------
    compute : float
        Fraction of the machine's peak of multiply-adds that large problems reach.
    memory : float
        Fraction of the machine's copy bandwidth that large problems reach.
    launch : float
        Seconds of a launch, however small.
    precision : str, default "float32"
        Precision whose peak counts: `float32`, `tf32` or `float16`.
    """

    compute: float
    memory: float
    launch: float
    precision: str = "float32"

    def seconds(self, machine: Machine, multiply_adds: float, nbytes: float, launches: int = 1) -> float:
        """Estimate the time of a problem.

        Parameters
        ----------
        machine : Machine
            The device.
        multiply_adds : float
            Multiply-adds of the problem.
        nbytes : float
            Bytes that the problem reads and writes.
        launches : int, default 1
            Launches, one after another.

        Returns
        -------
        float
            Seconds.
        """
        computing = multiply_adds / (machine.multiply_adds(self.precision) * self.compute)
        moving = nbytes / (machine.copy_bandwidth * self.memory)
        return launches * self.launch + max(computing, moving)
