"""A GPU most of whose memory is taken away for a while."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["limited", "occupied", "settle"]

GRAIN = 2 << 20  # bytes in which a device gives memory away


def settle(cp: Any) -> None:
    """Wait for the current device, and give back to it whatever no array holds any more."""
    gc.collect()
    cp.cuda.runtime.deviceSynchronize()
    cp.get_default_memory_pool().free_all_blocks()


@contextmanager
def occupied(cp: Any, left: int) -> Iterator[None]:
    """Take the current device's memory, as another program would, but for `left` bytes or up to `GRAIN` more."""
    settle(cp)
    runtime, held, piece = cp.cuda.runtime, [], 1 << 30
    try:
        while (piece := min(piece, runtime.memGetInfo()[0] - left)) >= GRAIN:
            try:
                held.append(runtime.malloc(piece // GRAIN * GRAIN))
            except runtime.CUDARuntimeError:  # no piece of that size is left
                piece //= 2
        yield
    finally:
        for pointer in held:
            runtime.free(pointer)
        settle(cp)


@contextmanager
def limited(cp: Any, left: int) -> Iterator[None]:
    """Let CuPy's pool take `left` bytes more than its arrays hold now, however much the current device has."""
    settle(cp)
    pool = cp.get_default_memory_pool()
    before = pool.get_limit()
    pool.set_limit(size=max(1, pool.total_bytes() + left))  # 0 would be no limit
    try:
        yield
    finally:
        pool.set_limit(size=before)
        settle(cp)
