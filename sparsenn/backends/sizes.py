"""Sizes in words: launches of the same words share the numbers that were found best for one of them."""

from __future__ import annotations

__all__ = ["about"]


def about(count: int) -> str:
    """Return words for all counts from a power of two up to the next, within which what is best seldom changes."""
    if count < 1:
        return "0"
    least = 1 << (count.bit_length() - 1)
    return f"{least}-{2 * least - 1}" if least > 1 else "1"
