"""Reading files that may be damaged or hostile: what is read, inflated or allocated has a bound set beforehand."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from sparsenn.errors import FileFormatError, InputError, ResourceError
from sparsenn.runtime.storage import check_path

MAX_RATIO = 200
"""Bytes that one compressed byte may become. Text of triples has 5 to 30; deflate itself can do 1,032."""

_FREE = 1 << 24
"""Inflating to this many bytes is always allowed: small files of one repeated line are compressed very well."""

_MOST = 1 << 24
"""Bytes read at a time, and so allocated before they are there, whatever a file declares."""

_SHORT = 1 << 24
"""Rows or columns that any matrix may have: 128 MiB of offsets."""

_EMPTY_RATIO = 64
"""Rows or columns per entry that a longer matrix may have."""

_EXCESS = "that its content could need; refused"


class Source(AbstractContextManager["Source"]):
    """A file open for reading, plain or (if its name ends in `.gz`) gzip, that gives at most a stated number of bytes.

    limit : bytes, after decompression, that a sound file can have; None where that is not known. A gzip file's bytes
        are bounded by `MAX_RATIO` times its size also, unless `ratio` says otherwise.
    ratio : bytes that one compressed byte may become; None for no bound but `limit`.
    excess : what more than `limit` bytes mean, for the message.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        limit: int | None = None,
        ratio: int | None = MAX_RATIO,
        excess: str = _EXCESS,
    ) -> None:
        check_path(path)
        self.path = Path(path)
        self.compressed = self.path.suffix.lower() == ".gz"
        self._file = open_plain(path)
        self._content = gzip.GzipFile(fileobj=self._file) if self.compressed else self._file
        self.size = os.fstat(self._file.fileno()).st_size
        bounds = [] if limit is None else [limit]
        if self.compressed and ratio is not None:
            bounds.append(max(_FREE, ratio * self.size))
        self._limit = min(bounds, default=None)
        self._excess = excess if self._limit == limit else _EXCESS
        self._count = 0

    def __exit__(self, *error: object) -> None:
        self._file.close()

    @property
    def consumed(self) -> int:
        """Bytes of the file read so far, out of `size`."""
        return self._file.tell()

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes; fewer only at the end, none past it."""
        blocks, missing = [], size
        while missing and (block := self._read(min(missing, _MOST))):
            blocks.append(block)
            missing -= len(block)
            self._count += len(block)
            if self._limit is not None and self._count > self._limit:
                grown = f"inflates from {self.size:,} bytes to" if self.compressed else "has"
                raise FileFormatError(self.path, f"{grown} more than the {self._limit:,} bytes {self._excess}")
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def _read(self, size: int) -> bytes:
        fetch = "fetch or make it again"
        with reading(self.path):
            try:
                if self.compressed and not self.size:
                    raise EOFError  # GzipFile takes an empty file for a sound one
                return self._content.read(size)
            except (gzip.BadGzipFile, zlib.error) as error:  # inside of `reading`: the first is an OSError
                raise FileFormatError(self.path, f"not gzip, or damaged ({error}); {fetch}") from error
            except EOFError as error:
                reason = f"the gzip data end too early; the file is truncated: {fetch}"
                raise FileFormatError(self.path, reason) from error


def open_plain(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a plain file for reading bytes. What else a path may lead to, such as a pipe, is refused without waiting."""
    with reading(path):
        file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 (an opener; the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InputError(f"{os.fspath(path)}: is a device or a pipe; only plain files are read")
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what the operating system says about a file being read into this package's errors."""
    check_path(path)
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{os.fspath(path)}: no such file") from error
    except IsADirectoryError as error:
        raise InputError(f"{os.fspath(path)}: is a folder, not a file") from error
    except PermissionError as error:
        raise ResourceError(f"{os.fspath(path)}: no permission to read it") from error
    except OSError as error:
        raise ResourceError(f"{os.fspath(path)}: cannot be read: {error.strerror or error}") from error


def check_length(path: str | os.PathLike[str], what: str, length: int, entries: int, line: int | None = None) -> None:
    """Refuse a matrix so long and so empty that its offsets alone would fill the memory."""
    if length > max(_SHORT, _EMPTY_RATIO * entries):
        raise FileFormatError(
            path,
            f"{length:,} {what} for {entries:,} entries; beyond {_SHORT:,}, "
            f"at least one entry for every {_EMPTY_RATIO} {what} is expected",
            line,
        )
