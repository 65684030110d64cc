"""Sizes: how many parts they are cut into, and told in words by which launches share tuned numbers."""

from __future__ import annotations

__all__ = ["FLOAT_BYTES", "about", "parts_of"]

FLOAT_BYTES = 4


def parts_of(total: int, size: int) -> int:
    """Return how many parts of a size make up a total, the last one perhaps smaller."""
    return -(-total // size)


def about(count: int) -> str:
    """Return words for all counts from a power of two up to the next, within which what is best seldom changes."""
    if count < 1:
        return "0"
    least = 1 << (count.bit_length() - 1)
    return f"{least}-{2 * least - 1}" if least > 1 else "1"
