"""An array in a file, of which ranges are read.

A range is read into the memory of an earlier one that nobody refers to any more: the system fills new memory with
zeros, which takes a good part of the time of reading a file from the page cache.
"""

from __future__ import annotations

import math
import os
import weakref
from collections import deque
from typing import IO, Any

import numpy as np

from sparsenn.errors import FileFormatError
from sparsenn.formats import Array
from sparsenn.io.bounded import reading

PART_BYTES = 8 << 20
"""Bytes that are read at a time, and dropped from the page cache at a time: it drops whole folios of up to 2 MiB."""

_SAMPLES = 16
"""Places of an array that are looked up in the page cache."""

KEPT_BYTES = 1 << 20
"""Of a part from which on its memory is reused: small ones come from memory that the process has."""

MOST_SLACK = 2
"""A block serves a part that takes no less than one byte in so many of it."""


class _Block(np.ndarray):
    """Memory of arrays. What NumPy makes of such an array refers to the array, as this is of a type of its own."""


class _Memory:
    """Memory for arrays, and again for others once they are gone, with all that was made of them."""

    def __init__(self) -> None:
        self._free: deque[_Block] = deque()

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an array of any content."""
        size = math.prod(shape) * dtype.itemsize
        if size < KEPT_BYTES:
            return np.empty(shape, dtype)
        block = self._block(size)
        block.flags.writeable = True  # those who had it may have made it read-only
        found = np.ndarray(shape, dtype, block)
        weakref.finalize(found, self._free.append, block).atexit = False
        return found

    def _block(self, size: int) -> _Block:
        while self._free:
            block = self._free.pop()
            if size <= block.size <= MOST_SLACK * size:
                return block
        return _Block((size + size // 8,), np.uint8)  # for parts that are a little longer, too


class Stored:
    """An array that is stored row by row, uncompressed; the caller knows that it is in the file.

    path, file : the file, and its bytes; read by one thread at a time.
    offset : where the array begins.
    once : whether ranges are read in order and once, so that they leave the page cache again. An array that is in the
        page cache already stays there, and so does a small one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        file: IO[bytes],
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        once: bool = False,
    ) -> None:
        self._path, self._file, self._offset = path, file, offset
        self.shape, self.dtype = shape, dtype
        self._memory = _Memory()
        self._end = offset + math.prod(shape) * dtype.itemsize
        self._drops = once and self._end - offset >= PART_BYTES and not _is_cached(file, offset, self._end)

    @property
    def item_bytes(self) -> int:
        """Bytes of one item of the first dimension."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def read(self, first: int, last: int) -> Array:
        """Return items `first` to `last`, in the machine's byte order."""
        found = self._memory.array((last - first, *self.shape[1:]), self.dtype)
        memory = memoryview(found.reshape(-1).view(np.uint8).data)
        place = self._offset + first * self.item_bytes
        with reading(self._path):
            self._file.seek(place)
            while memory.nbytes:
                count = self._file.readinto(memory[:PART_BYTES])  # type: ignore[attr-defined]
                if not count:
                    raise FileFormatError(self._path, "became shorter while it was read")
                if self._drops:
                    self._drop(place, place + count)
                memory, place = memory[count:], place + count
        return found.astype(self.dtype.newbyteorder("="), copy=False)

    def _drop(self, first: int, last: int) -> None:
        """Drop from the page cache the parts whose last bytes have been read."""
        start = first // PART_BYTES * PART_BYTES
        size = (last if last >= self._end else last // PART_BYTES * PART_BYTES) - start
        if size:  # 0 would mean the rest of the file
            os.posix_fadvise(self._file.fileno(), start, size, os.POSIX_FADV_DONTNEED)


def _is_cached(file: IO[bytes], first: int, last: int) -> bool:
    """Whether the page cache holds all of some places in a file; True where the system does not say."""
    try:
        for place in np.linspace(first, last - 1, _SAMPLES).astype(np.int64).tolist():
            os.preadv(file.fileno(), [bytearray(1)], place, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):
        return True
    return True
