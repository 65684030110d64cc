"""Device memory: how much may be taken, and what to say when it does not suffice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sparsenn.backends.cuda.loader import cupy
from sparsenn.errors import ResourceError

__all__ = ["free_bytes", "release_unused", "within_memory"]


def free_bytes() -> int:
    """Return how much memory of the current device can still be taken, CuPy's own reserve included."""
    cp = cupy()
    return int(cp.cuda.runtime.memGetInfo()[0]) + int(cp.get_default_memory_pool().free_bytes())


def release_unused() -> None:
    """Give memory that CuPy keeps for later back to the device, so that it can be cut anew."""
    cupy().get_default_memory_pool().free_all_blocks()


@contextmanager
def within_memory(what: str, rows: int, bytes_per_row: int) -> Iterator[None]:
    """Turn CuPy's error about memory into one that names the batch size that fits.

    Parameters
    ----------
    what : what is being done, for the message.
    rows : rows that it is done for; 0 where their number does not matter.
    bytes_per_row : memory that a row takes, at most.

    Raises
    ------
    ResourceError
        The device's memory does not suffice.
    """
    cp = cupy()
    try:
        yield
    except cp.cuda.memory.OutOfMemoryError as error:
        release_unused()
        free = free_bytes()
        if not rows:
            raise ResourceError(
                f"{what}: the device has {free:,} bytes left; free some, or use --device cpu"
            ) from error
        fitting = min(max(0, rows - 1), free // max(1, 2 * bytes_per_row))  # half is left for what comes on top
        if fitting > 0:
            remedy = f"about {fitting:,} rows fit: use --batch-size {fitting}"
        else:
            remedy = "not a single row fits: free memory on the device, or use --device cpu"
        raise ResourceError(f"{what}: the device's memory does not suffice for {rows:,} rows; {remedy}") from error
