"""An array in a file, at some place, of which parts are read."""

from __future__ import annotations

import math
import os
from typing import IO, Any

import numpy as np

from sparsenn.errors import FileFormatError
from sparsenn.formats import Array
from sparsenn.io.bounded import reading

__all__ = ["Stored"]


class Stored:
    """An array that is stored row by row, uncompressed; the caller knows that it is in the file.

    Parameters
    ----------
    path, file : the file, and its bytes; read by one thread at a time.
    offset : where the array begins.
    shape, dtype : of the array.
    """

    def __init__(
        self, path: str | os.PathLike[str], file: IO[bytes], offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._path, self._file, self._offset = path, file, offset
        self.shape, self.dtype = shape, dtype

    @property
    def item_bytes(self) -> int:
        """Bytes of what the first dimension counts."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def read(self, first: int, last: int) -> Array:
        """Return items `first` to `last`, in the machine's byte order.

        Raises
        ------
        FileFormatError
            The file has become shorter.
        ResourceError
            It cannot be read.
        """
        found = np.empty((last - first, *self.shape[1:]), self.dtype)
        room = memoryview(found.reshape(-1).view(np.uint8).data)
        with reading(self._path):
            self._file.seek(self._offset + first * self.item_bytes)
            done = 0
            while done < room.nbytes:
                count = self._file.readinto(room[done:])  # type: ignore[attr-defined]
                if not count:
                    raise FileFormatError(self._path, "became shorter while it was read")
                done += count
        return found.astype(self.dtype.newbyteorder("="), copy=False)
