"""What HDF5 files are written through, so that a full disk is one error and not a crash, and so is an interrupt."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from sparsenn.runtime.interrupts import held_signals
from sparsenn.runtime.storage import replacing

_PIECE = 1 << 24
"""Bytes written between two looks at whether the rest is wanted."""


@contextmanager
def created(path: Path) -> Iterator[h5py.File]:
    """Yield a new HDF5 file in place of the empty file `path`.

    An interrupt is held back until the file is closed, which is soon, for nothing more is written.
    """
    with held_signals() as interrupted, path.open("r+b", buffering=0) as file:
        target = _Target(file, interrupted)
        try:
            with h5py.File(target, "w") as hdf5:
                yield hdf5
        finally:
            if target.failure is not None:
                raise target.failure


@contextmanager
def created_as(path: str | os.PathLike[str], form: str, version: int, description: Any) -> Iterator[h5py.File]:
    """Yield a new HDF5 file with its header; it is written whole or not at all."""
    with replacing(path) as temporary, created(temporary) as file:
        file.attrs["format"], file.attrs["version"] = np.bytes_(form), version
        file["description"] = np.bytes_(json.dumps(description))
        yield file


class _Target(io.RawIOBase):
    """A file whose first failed write is recorded in `failure`, while this one and all later ones seem to succeed.

    So do all writes after an interrupt.

    The HDF5 library does not survive failed writes: objects that it cannot flush are never closed, each complains on
    stderr, and the process ends with a segmentation fault.
    """

    def __init__(self, file: io.FileIO, interrupted: Callable[[], bool]) -> None:
        self._file, self._interrupted = file, interrupted
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while len(rest) and self.failure is None and not self._interrupted():
                rest = rest[self._file.write(rest[:_PIECE]) :]
        except OSError as error:
            self.failure = error
        return size

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer; what was never written reads as zeros."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view) and (more := self._file.readinto(view[done:])):
            done += more
        view[done:] = bytes(len(view) - done)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        try:
            return self._file.truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return size or 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()
