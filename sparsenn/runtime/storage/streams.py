"""Names that stand for something that is open or flows, such as /dev/stdout, /dev/fd/3, a device or a named pipe."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

__all__ = ["is_stream", "write_through"]

_DESCRIPTORS = re.compile(r"/dev/fd|/proc/([0-9]+)(?:/task/[0-9]+)?/fd")
"""Folders that hold a process's open files, by their numbers."""

_MOST_LINKS = 40
"""As many as Linux follows."""


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return whether a path leads to an open file, a device that takes characters, or a pipe: to no file of its own."""
    place = Path(path)
    return _open_file(place) is not None or place.is_char_device() or place.is_fifo()


def write_through(content: Path, path: str | os.PathLike[str]) -> None:
    """Write a file's content to what a path leads to; what that holds already stays, as after `>>`.

    An open file of this process is written to as it is open, at its place; what Python still holds back for it goes
    first. Others are opened.

    Raises
    ------
    OSError
        It cannot be written to.
    """
    opened = _open_file(Path(path))
    if opened is None or opened[0] not in (None, os.getpid()):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    else:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        descriptor = os.dup(opened[1])
    with content.open("rb") as source, os.fdopen(descriptor, "wb") as target:
        shutil.copyfileobj(source, target)


def _open_file(place: Path) -> tuple[int | None, int] | None:
    """Return the process, None if it is this one, and the number of the open file that a path stands for, if it does.

    Links are followed one by one: the last one would lead to the file itself, which may be one to be added to.
    """
    place = place.absolute()
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(place.parent)
        found = _DESCRIPTORS.fullmatch(folder)
        if found and place.name.isdecimal():
            return int(found[1]) if found[1] else None, int(place.name)
        if not place.is_symlink():
            return None
        place = Path(folder, place.readlink())
    return None
