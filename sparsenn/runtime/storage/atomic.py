"""Files written whole or not at all: a temporary is flushed to disk, then renamed. All writing goes through here.

A temporary is in a hidden folder beside its target, which only its owner may enter and which is locked while in use.
A killed process leaves the folder behind, unlocked: the next process that writes there removes it.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import gzip
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from secrets import token_hex
from tempfile import gettempdir
from typing import IO

from sparsenn.errors import ResourceError
from sparsenn.runtime.storage.paths import check_path, link_target, open_descriptor

_GZIP_LEVEL = 6  # the gzip program's own

TEMPORARY_NAME = re.compile(r"\.sparsenn-[0-9a-f]{16}\.part")  # names of temporary folders

_live: set[Path] = set()
"""Temporary folders of this process; its end removes those whose removal was interrupted."""
os.register_at_fork(after_in_child=_live.clear)

_REMEDIES = {
    errno.ENOENT: "its folder does not exist; make it first",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EEXIST: "a file of that name is in the way; remove it or choose another name",
    errno.ENOTEMPTY: "something was put there meanwhile; choose another folder",
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
        if is_stream(path):
            with _temporary_folder(Path(gettempdir())) as folder:
                yield _new_file(folder)
                _append(_new_file(folder), path)
            return
        target = link_target(path)
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        if target.exists() and not target.is_file():
            raise ResourceError(f"cannot write {path}: it is a socket or a disk; give the name of a plain file")
        with _temporary_folder(target.parent) as folder:
            temporary = _new_file(folder)
            yield temporary
            with temporary.open("r+b") as file:
                os.fsync(file.fileno())  # before its name appears: a power cut must not leave an empty file
            if target.exists():
                shutil.copymode(target, temporary)
            temporary.replace(target)


@contextmanager
def adding_to(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder whose content moves into `folder` when the block ends: all of it, or after a failure none.

    Files in it are to be written by `replacing`. A `folder` that is absent appears with all of its content at once.
    Nothing in `folder` is overwritten. Only a process that is killed between two moves into a folder that was there
    leaves some of the files, each of them whole.
    """
    check_path(folder, "the folder")
    with explained(folder):
        target = link_target(folder)
        exists = target.exists()
        if exists and not target.is_dir():
            raise FileExistsError(errno.EEXIST, "is a file")
        with _temporary_folder(target if exists else target.parent) as temporary:
            staging = temporary / "new"
            staging.mkdir()
            with _named(staging, folder):
                yield staging
            if exists:
                _move(staging, target)
            else:
                staging.rename(target)


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return whether a path names an open file of this process, a character device or a pipe."""
    return open_descriptor(path) is not None or Path(path).is_char_device() or Path(path).is_fifo()


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder in `folder` that only its owner may enter, and remove it when the block ends."""
    remove_stale(folder)
    path, lock = _locked_folder(folder)
    try:
        try:
            yield path
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _live.discard(path)


def _locked_folder(folder: Path) -> tuple[Path, int]:
    """Make a folder that no other process removes as stale; return it and the descriptor that holds its lock."""
    while True:
        path = folder / f".sparsenn-{token_hex(8)}.part"
        _live.add(path)
        path.mkdir(0o700)
        with suppress(FileNotFoundError):  # another process has found it before it was locked
            lock = os.open(path, os.O_RDONLY)
            with suppress(OSError):  # some file systems have no locks: nothing is removed there as stale
                fcntl.flock(lock, fcntl.LOCK_EX)
            if path.is_dir():
                return path, lock
            os.close(lock)
        _live.discard(path)


@cache
def remove_stale(folder: Path) -> None:
    """Remove the temporary folders of this user that killed processes left in a folder; once in a process."""
    with suppress(OSError), os.scandir(folder) as entries:
        for path in [entry.path for entry in entries if TEMPORARY_NAME.fullmatch(entry.name)]:
            with suppress(OSError):
                _remove_unless_locked(path)


def _remove_unless_locked(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
    finally:
        os.close(descriptor)


@atexit.register
def _remove_live() -> None:
    for path in list(_live):
        shutil.rmtree(path, ignore_errors=True)


class _NotWrittenError(Exception):
    """Ends the block of a file that is not to be written."""


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuse a file that `replacing` could not write, before the work that it is for; leave it as it is."""
    with suppress(_NotWrittenError), replacing(path):
        raise _NotWrittenError


def check_writable(folder: Path) -> None:
    """Refuse a folder that no file can be made in."""
    with explained(folder), _temporary_folder(folder):
        pass


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


def _new_file(folder: Path) -> Path:
    """Return the path of a file in a temporary folder, made with the permissions of any new file."""
    path = folder / "new"
    path.touch()
    return path


def _append(content: Path, path: str | os.PathLike[str]) -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    number = open_descriptor(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND) if number is None else os.dup(number)
    with content.open("rb") as source, os.fdopen(descriptor, "wb") as target:
        shutil.copyfileobj(source, target)


def _move(staging: Path, target: Path) -> None:
    names = sorted(path.name for path in staging.iterdir())
    taken = [name for name in names if (target / name).exists()]
    if taken:
        raise ResourceError(f"cannot write {target / taken[0]}: it exists already; remove it first")
    try:
        for name in names:
            (staging / name).rename(target / name)
    except BaseException:
        for name in names:
            if not (staging / name).exists():
                (target / name).rename(staging / name)
        raise


@contextmanager
def _named(staging: Path, folder: str | os.PathLike[str]) -> Iterator[None]:
    """Have messages name the folder that files will be in."""
    try:
        yield
    except ResourceError as error:
        raise ResourceError(str(error).replace(f"{staging}{os.sep}", f"{Path(folder)}{os.sep}")) from error


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
