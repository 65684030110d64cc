"""A file that is read once: the system lets go of what has been read, but for what it held before.

Otherwise a file that is larger than memory pushes out all else that the system holds of files. On a virtual machine
that hands free memory back to its host, it also takes longer to read: the memory for each page has to come from there.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from typing import Any

import numpy as np

__all__ = ["PART_BYTES", "ReadOnce"]

PART_BYTES = 8 << 20
"""Of a file: read at a time at most, and let go of together. The system holds blocks of up to 2 MiB, and lets go of
whole ones only."""

PARTS_AHEAD = 16
"""Of which it is known what the system holds, before it reads ahead there itself."""

SAMPLE_BYTES = 1 << 16
"""Bytes at the end of a part that show whether the system holds it. A file's beginning was read for its kind."""


class ReadOnce:
    """Has the system let go of parts of a file that are read in their order; does nothing where the system cannot.

    Parameters
    ----------
    descriptor : of the file, open for reading.
    end : of what will be read, in bytes from the file's beginning.
    """

    def __init__(self, descriptor: int, end: int) -> None:
        self._descriptor, self._end = descriptor, end
        self._held: dict[int, bool] = {}

    def look(self, first: int) -> None:
        """Find out what the system holds from a place on, before anything is read there.

        Parameters
        ----------
        first : counted from the file's beginning, in bytes.
        """
        part = first // PART_BYTES
        for ahead in range(part, part + PARTS_AHEAD):
            if ahead not in self._held:
                self._held[ahead] = _is_held(self._descriptor, ahead)
        self._held.pop(part - 1, None)

    def let_go(self, first: int, last: int) -> None:
        """Have the system let go of parts of which the last bytes have been read, but for those that it held before.

        Parameters
        ----------
        first, last : what was read since it was looked there, `last` excluded; `PART_BYTES` at most.
        """
        done = last // PART_BYTES if last < self._end else -(-last // PART_BYTES)
        for part in range(first // PART_BYTES, done):
            if not self._held[part]:
                os.posix_fadvise(self._descriptor, part * PART_BYTES, PART_BYTES, os.POSIX_FADV_DONTNEED)


def _is_held(descriptor: int, part: int) -> bool:
    """Whether the system holds a part of a file; True where the system does not say, or there is no such part."""
    first, look = part * PART_BYTES, _mincore()
    last = min(os.fstat(descriptor).st_size, first + PART_BYTES)
    if look is None or last <= first:
        return True
    size = min(last - first, SAMPLE_BYTES + last % mmap.ALLOCATIONGRANULARITY)
    pages = np.ones(-(-size // mmap.PAGESIZE), np.uint8)
    try:
        with mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ, offset=last - size) as mapped:
            place = np.frombuffer(mapped, np.uint8).ctypes.data
            failed = look(place, size, pages.ctypes.data)
    except (OSError, ValueError):  # the address space is full, or the file has become shorter
        return True
    return bool(failed) or bool((pages & 1).any())


@cache
def _mincore() -> Any:
    """Return the system's function of this name; None where it, or what lets go, is missing."""
    found = getattr(ctypes.CDLL(None), "mincore", None) if hasattr(os, "posix_fadvise") else None
    if found is not None:
        found.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    return found
