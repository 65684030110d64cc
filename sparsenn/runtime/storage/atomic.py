"""Files written whole or not at all: a temporary is flushed to disk, then renamed. All writing goes through here.

A temporary is hidden, and beside its target. Only a process that is killed leaves it there.
"""

from __future__ import annotations

import atexit
import errno
import gzip
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from tempfile import gettempdir
from typing import IO

from sparsenn.errors import ResourceError
from sparsenn.runtime.interrupts import held_signals
from sparsenn.runtime.storage.paths import check_path, link_target, open_descriptor

_GZIP_LEVEL = 6  # the gzip program's own

_live: set[Path] = set()
"""Temporaries of this process; its end removes those whose removal was interrupted."""
os.register_at_fork(after_in_child=_live.clear)

_REMEDIES = {
    errno.ENOENT: "its folder does not exist; make it first",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EEXIST: "a file of that name is in the way; remove it or choose another name",
    errno.EISDIR: "it is a folder; give the name of a file",
    errno.EACCES: "no permission; choose a folder that you may write to",
    errno.EPERM: "no permission; choose a folder that you may write to",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOSPC: "the disk is full; free some space or choose another disk",
    errno.EDQUOT: "your disk quota is used up; free some space or choose another disk",
    errno.EFBIG: "the file would be larger than the file system or your limits allow; choose another disk",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a new, empty file that takes the place of `path` when the block ends.

    `path` holds either all of the old content or all of the new. An error or an interrupt in the block leaves `path` as
    it was. A symbolic link stays, and its target is replaced. The new file has the permissions of the old one.

    An open file such as /dev/stdout, a device or a pipe is never replaced: the content is written to it when the block
    ends.

    Raises
    ------
    ResourceError
        The file cannot be written: folder missing, no permission, disk full, a socket or a disk. The message says what
        to do.
    BrokenPipeError
        `path` leads to a pipe, and its reader is gone.
    """
    check_path(path)
    with explained(path):
        target = None if is_stream(path) else link_target(path)
        if target is not None and target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        if target is not None and target.exists() and not target.is_file():
            raise ResourceError(f"cannot write {path}: it is a socket or a disk; give the name of a plain file")
        with _temporary(Path(gettempdir()) if target is None else target.parent) as temporary:
            is_new = target is not None and not target.exists()
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL, 0o666 if is_new else 0o600))
            yield temporary
            if target is None:
                _append(temporary, path)
                return
            with temporary.open("r+b") as file:
                os.fsync(file.fileno())  # before its name appears: a power cut must not leave an empty file
            if target.exists():
                shutil.copymode(target, temporary)
            temporary.replace(target)


@contextmanager
def adding_to(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder whose content moves into `folder` when the block ends, and not at all where it fails.

    Files in it are to be written by `replacing`. A `folder` that is absent appears with all of its content at once.
    Nothing in `folder` is overwritten.
    """
    check_path(folder, "the folder")
    with explained(folder):
        target = link_target(folder)
        exists = target.exists()
        if exists and not target.is_dir():
            raise FileExistsError(errno.EEXIST, "is a file")
        with _temporary(target if exists else target.parent) as staging:
            staging.mkdir()
            try:
                yield staging
            except ResourceError as error:  # which names the folder that files will be in
                raise ResourceError(str(error).replace(f"{staging}{os.sep}", f"{Path(folder)}{os.sep}")) from error
            if not exists:
                staging.rename(target)
                return
            names = sorted(path.name for path in staging.iterdir())
            taken = [name for name in names if (target / name).exists()]
            if taken:
                raise ResourceError(f"cannot write {target / taken[0]}: it exists already; remove it first")
            with held_signals():
                for name in names:
                    (staging / name).rename(target / name)


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return whether a path names an open file of this process, a character device or a pipe."""
    return open_descriptor(path) is not None or Path(path).is_char_device() or Path(path).is_fifo()


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """Yield a path in a folder where nothing is yet; what is there when the block ends is removed."""
    path = folder / f".sparsenn-{token_hex(8)}.part"
    _live.add(path)
    try:
        yield path
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
    _live.discard(path)


@atexit.register
def _remove_live() -> None:
    for path in list(_live):
        _remove(path)


class _NotWrittenError(Exception):
    """Ends the block of a file that is not to be written."""


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuse a file that `replacing` could not write, before the work that it is for; leave it as it is."""
    with suppress(_NotWrittenError), replacing(path):
        raise _NotWrittenError


def check_writable(folder: Path) -> None:
    """Refuse a folder that no file can be made in."""
    with explained(folder), _temporary(folder) as path:
        path.touch()


@contextmanager
def open_to_write(temporary: Path, path: str | os.PathLike[str]) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open `temporary` for bytes; through gzip if `path`, the name it will have, ends in `.gz`.

    Neither time nor name goes into the gzip header, so that equal content gives equal files.
    """
    with temporary.open("wb") as file:
        if Path(path).suffix.lower() != ".gz":
            yield file
            return
        with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as zipped:
            yield zipped


def _append(content: Path, path: str | os.PathLike[str]) -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    number = open_descriptor(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND) if number is None else os.dup(number)
    with content.open("rb") as source, os.fdopen(descriptor, "wb") as target:
        shutil.copyfileobj(source, target)


@contextmanager
def explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Have what goes wrong while a file is written say which one, and what to do about it."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ResourceError(f"cannot write {os.fspath(path)}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    """Say what to do about an error; HDF5 has its number in the message alone."""
    hidden = re.search(r"errno = (\d+)", str(error))
    number = error.errno or (int(hidden.group(1)) if hidden else 0)
    return _REMEDIES.get(number) or error.strerror or str(error)
