"""Writing files whole or not at all: every file that sparsenn writes goes through here."""

from __future__ import annotations

import errno
import gzip
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import IO

from sparsenn.errors import ResourceError
from sparsenn.storage.paths import check_path

__all__ = ["adding_to", "open_to_write", "replacing"]

_GZIP_LEVEL = 6
"""The gzip program's own."""

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
    """Yield the path of a new, empty file beside `path` that takes its place when the block ends.

    The new file is flushed to disk, then renamed, so that `path` holds either all of the old content or all of the
    new. Whatever ends the block early, an interrupt included, removes the new file and leaves `path` as it was. A
    symbolic link stays, and what it points to is replaced.

    Raises
    ------
    ResourceError
        The file cannot be written: folder missing, no permission, disk full, not a plain file. The message says what
        to do.
    """
    check_path(path)
    with _explained(path):
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        if target.exists() and not target.is_file():
            raise ResourceError(f"cannot write {path}: it is a device or a pipe; give the name of a plain file")
        temporary = target.with_name(_temporary_name())
        try:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            yield temporary
            _flush(temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def adding_to(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder inside `folder` whose content moves into `folder` when the block ends.

    Files in it are to be written by `replacing`. `folder` is made if absent. Whatever ends the block early removes
    all that the block wrote, and `folder` too if it was made here. Nothing in `folder` is overwritten.

    Raises
    ------
    ResourceError
        The folder cannot be made or written to, or holds a file of the same name.
    """
    check_path(folder, "the folder")
    target = Path(folder)
    staging = target / _temporary_name()
    with _explained(target):
        made = not target.exists()
        try:
            target.mkdir(exist_ok=True)
            staging.mkdir()
            yield staging
            taken = [item.name for item in staging.iterdir() if (target / item.name).exists()]
            if taken:
                raise ResourceError(f"cannot write {target / taken[0]}: it exists already; remove it first")
            for item in sorted(staging.iterdir()):
                item.rename(target / item.name)
        except ResourceError as error:
            raise ResourceError(str(error).replace(f"{staging}{os.sep}", f"{target}{os.sep}")) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            if made and target.is_dir() and not any(target.iterdir()):
                target.rmdir()


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


def _temporary_name() -> str:
    """Short, whatever the target's name, and hidden."""
    return f".{token_hex(8)}.part"


def _flush(path: Path) -> None:
    """Have the file's bytes on disk before its name appears, so that a power cut cannot leave an empty file."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


@contextmanager
def _explained(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResourceError(f"cannot write {os.fspath(path)}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    """Say what to do about an error; HDF5 has its number in the message alone."""
    hidden = re.search(r"errno = (\d+)", str(error))
    number = error.errno or (int(hidden.group(1)) if hidden else 0)
    return _REMEDIES.get(number) or error.strerror or str(error)
