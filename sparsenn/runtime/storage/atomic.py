"""Writing files whole or not at all: every file that sparsenn writes goes through here."""

from __future__ import annotations

import errno
import gzip
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from typing import IO

from sparsenn.errors import ResourceError
from sparsenn.runtime.storage.paths import check_path, link_target
from sparsenn.runtime.storage.streams import is_stream, write_through
from sparsenn.runtime.storage.temporary import move_out, temporary_file, temporary_folder

__all__ = ["adding_to", "check_replaceable", "check_writable", "explained", "open_to_write", "replacing"]

_GZIP_LEVEL = 6
"""The gzip program's own."""

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
    """Yield the path of a new, empty file beside `path` that takes its place when the block ends.

    The new file is flushed to disk, then renamed, so that `path` holds either all of the old content or all of the
    new. Whatever ends the block early, an interrupt included, removes the new file and leaves `path` as it was. A
    symbolic link stays, and what it points to is replaced, unless another user put the link into a shared folder. Until
    then only its owner may open the new file; then it has the permissions, the owner and the group of the old one, as
    far as this user may give them.

    What leads to an open file, such as /dev/stdout, to a device or to a pipe is never replaced: when the block ends,
    all of the content is written there.

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
            with temporary_file(Path(gettempdir())) as (temporary, _):
                yield temporary
                write_through(temporary, path)
            return
        target = link_target(path)
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        if target.exists() and not target.is_file():
            raise ResourceError(f"cannot write {path}: it is a socket or a disk; give the name of a plain file")
        with temporary_file(target.parent, private=target.exists()) as (temporary, permissions):
            yield temporary
            _flush(temporary)
            _open_up(temporary, permissions, target)
            temporary.replace(target)


@contextmanager
def adding_to(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder whose content moves into `folder` when the block ends: all of it, or nothing.

    Files in it are to be written by `replacing`. `folder` is made if absent, with its content at once. Whatever ends
    the block early leaves nothing of what the block wrote; also what a process leaves that is killed between two moves
    is removed, when the next one writes into the folder. Nothing in `folder` is overwritten.

    Raises
    ------
    ResourceError
        The folder cannot be made or written to, or holds a file of the same name.
    """
    check_path(folder, "the folder")
    with explained(folder):
        target = link_target(folder)
        if target.exists() and not target.is_dir():
            raise FileExistsError(errno.EEXIST, "is a file")
        there = target.exists()
        with temporary_folder(target if there else target.parent) as (staging, permissions):
            with _named(staging, folder):
                yield staging
            if there:
                _move_in(staging, target)
            else:
                with suppress(OSError):
                    staging.chmod(permissions)
                staging.rename(target)


class _NotWrittenError(Exception):
    """Ends the block of a file that is not to be written."""


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuse a file that `replacing` could not write, before the work that it is for; leave it as it is.

    Raises
    ------
    ResourceError
        As `replacing` does.
    """
    with suppress(_NotWrittenError), replacing(path):
        raise _NotWrittenError


def check_writable(folder: Path) -> None:
    """Refuse a folder that no file can be made in, by making one.

    Raises
    ------
    ResourceError
        It cannot; the message says what to do.
    """
    with explained(folder), temporary_file(folder):
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


def _flush(path: Path) -> None:
    """Have the file's bytes on disk before its name appears, so that a power cut cannot leave an empty file."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def _open_up(temporary: Path, permissions: int, target: Path) -> None:
    """Give a file the owner, group and permissions of the one it replaces, or `permissions` if it replaces none.

    A group that cannot be given gets no permissions.
    """
    with suppress(OSError):
        if target.exists():
            old, new = target.stat(), temporary.stat()
            permissions = stat.S_IMODE(old.st_mode)
            if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid) and not _given_to(temporary, old):
                permissions &= ~stat.S_IRWXG
        temporary.chmod(permissions)


def _given_to(temporary: Path, old: os.stat_result) -> bool:
    """Give a file an owner and a group, or the group alone; returns whether it has the group."""
    for owner in (old.st_uid, -1):
        with suppress(OSError, AttributeError):  # Windows knows no such owners
            os.chown(temporary, owner, old.st_gid)
            return True
    return False


def _move_in(staging: Path, target: Path) -> None:
    names = sorted(item.name for item in staging.iterdir())
    taken = [name for name in names if (target / name).exists()]
    if taken:
        raise ResourceError(f"cannot write {target / taken[0]}: it exists already; remove it first")
    move_out(staging, names)


@contextmanager
def _named(staging: Path, folder: str | os.PathLike[str]) -> Iterator[None]:
    """Have messages name the folder that files will be in."""
    try:
        yield
    except ResourceError as error:
        raise ResourceError(str(error).replace(f"{staging}{os.sep}", f"{Path(folder)}{os.sep}")) from error


@contextmanager
def explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Have what goes wrong while a file is written say which one, and what to do about it.

    Raises
    ------
    ResourceError
        The operating system refuses something.
    """
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
