"""What the estimates of convolutions share: how many images they are for, and how rates of an H200 become others'.

The plans of each kernel come from estimates of clocks that only have to order one kernel's own ways. Across kernels
they are brought in line by a factor each, `SHARE` or `SHARES` in the kernel's module where it is not 1: by what an H200
took for the shapes of `bench/record_conv2d.py`.
"""

from __future__ import annotations

from sparsenn.backends.machine import H200, Machine

__all__ = ["IMAGES", "bytes_a_clock", "bytes_a_second", "layout_seconds", "multiply_adds_a_second"]

IMAGES = 256
"""That estimates are made for: enough for most devices to be full, as of few pixels."""

LAID_OUT_BYTES = 3.2e12
"""A second, read and written when an H200 lays images out anew."""


def layout_seconds(machine: Machine, moved: float) -> float:
    """Estimate what laying images out anew takes, if so many bytes are read and written for it."""
    return moved / bytes_a_second(machine, LAID_OUT_BYTES)


def bytes_a_second(machine: Machine, fitted: float) -> float:
    """Return the bytes that a machine's memory gives and takes in a second where an H200's does `fitted`."""
    return fitted * (machine.copy_bandwidth / H200.copy_bandwidth)


def bytes_a_clock(machine: Machine, fitted: float) -> float:
    """Return the bytes that a multiprocessor exchanges with memory in a clock where an H200's does `fitted`."""
    return fitted * (_copied_a_clock(machine) / _copied_a_clock(H200))


def multiply_adds_a_second(machine: Machine, precision: str, fitted: float) -> float:
    """Return the multiply-adds that a machine does in a second where an H200 does `fitted`."""
    return fitted * (machine.multiply_adds(precision) / H200.multiply_adds(precision))


def _copied_a_clock(machine: Machine) -> float:
    return machine.copy_bandwidth / (machine.multiprocessors * machine.clock)
