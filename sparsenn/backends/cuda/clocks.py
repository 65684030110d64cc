"""Clocks of a multiprocessor, as measured on an H200, and bytes: all kernels choose tiles and blocks by them."""

from __future__ import annotations

from sparsenn.backends.machine import WARP

READ_BYTES = 128  # of shared memory, a clock
L2_BYTES = 64  # from the L2 cache to shared memory, a clock
SHARED_L2_BYTES = 32  # likewise, where all multiprocessors ask at once
RESERVED_BYTES = 1024  # of shared memory, that each block takes besides its own
MEMORY_CLOCKS = 1000  # from asking for numbers in memory to having them
EDGE_CLOCKS = 40  # from asking for numbers in shared memory until their products are added; of a copy, however short
OUTPUT_CLOCKS = 16  # for a block to begin and finish an output
STALLED = 0.3  # share of the time in which a warp cannot issue


def busy_share(threads: int) -> float:
    """Return the share of the time in which a multiprocessor's four schedulers issue, of its threads."""
    return float(1 - STALLED ** max(1, threads // (4 * WARP)))
