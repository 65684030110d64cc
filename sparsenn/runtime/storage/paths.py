"""Names of files, as callers give them."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparsenn.errors import UsageError

_STANDARD = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,9})")


def check_path(path: Any, what: str = "the file") -> None:
    """Refuse what is no path, before anything is done with it."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise UsageError(f"{what} is {path!r}; give a name or a path")
    if "\0" in os.fspath(path):
        raise UsageError(f"{what} is {os.fspath(path)!r}; a file name cannot contain NUL")


def same_file(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Return whether two names lead to one file, also through links, or would if it were there."""
    with suppress(OSError, ValueError):  # at least one of them is not there yet, or is no name
        return Path(one).samefile(other)
    with suppress(ValueError):
        return os.path.realpath(one) == os.path.realpath(other)
    return False


def link_target(path: str | os.PathLike[str]) -> Path:
    """Return the path that symbolic links lead to, for a file or folder that is to be written.

    Raises
    ------
    OSError
        The system lets nobody follow such a link: for example another user's in /tmp (`fs.protected_symlinks`).
    """
    with suppress(FileNotFoundError):
        os.stat(path)  # noqa: PTH116  `realpath` reads links without following any, so that the system is not asked
    return Path(os.path.realpath(path))


def open_descriptor(path: str | os.PathLike[str]) -> int | None:
    """Return the number of this process's open file that a path names, as /dev/stdout and /dev/fd/3 do; else None."""
    found = _DESCRIPTOR.fullmatch(_STANDARD.get(os.fspath(path), os.fspath(path)))
    return int(found[1]) if found else None
