"""The shared memory that convolutions are held against, so that the same ones run everywhere."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from sparsenn.backends.machine import Machine

__all__ = ["WHOLE", "smallest"]

# Of compute capability 8.6 and 8.9, which have the least from 8.0 on.
LEAST_BLOCK_BYTES = 99 << 10
LEAST_MULTIPROCESSOR_BYTES = 100 << 10

WHOLE = 100
"""Percent of what a multiprocessor can have as shared memory, so that the blocks that are planned for find room."""


@cache
def smallest(machine: Machine) -> Machine:
    """Return a machine with no more shared memory than every device of compute capability 8.0 and newer has.

    A convolution that fits into that can be run on all of them, and one that does not is refused on all: which kernels
    there are to choose from, and so the bits of what they give, is not a matter of a device's shared memory.
    """
    return replace(
        machine,
        block_bytes=min(machine.block_bytes, LEAST_BLOCK_BYTES),
        multiprocessor_bytes=min(machine.multiprocessor_bytes, LEAST_MULTIPROCESSOR_BYTES),
    )
