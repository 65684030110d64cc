"""How much memory the host has left."""

from __future__ import annotations

import os

__all__ = ["free_host_memory"]


def free_host_memory() -> int:
    """Return the bytes of memory that are free, 0 on a system that does not tell."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
