"""Sizes that are cut into blocks of one size."""

from __future__ import annotations

FLOAT_BYTES = 4
HALF_BYTES = 2


def parts_of(total: int, size: int) -> int:
    """Return how many parts of a size make up a total, the last one perhaps smaller."""
    return -(-total // size)
