"""Names of files, as callers give them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparsenn.errors import ResourceError, UsageError

__all__ = ["check_path", "link_target", "same_file"]


def check_path(path: Any, what: str = "the file") -> None:
    """Refuse what is no path, before anything is done with it.

    Parameters
    ----------
    what : what messages call it.

    Raises
    ------
    UsageError
        It is neither a text nor a path, or holds a NUL, which no name of a file may.
    """
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

    Links are followed as Linux does where `fs.protected_symlinks` is on, wherever that is.

    Raises
    ------
    ResourceError
        A link is another user's, in a folder such as /tmp, where all users may put links.
    """
    link, seen = Path(path), set[Path]()
    while link.is_symlink() and link not in seen:
        seen.add(link)
        folder, owner = link.parent.stat(), link.lstat().st_uid
        is_shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
        if is_shared and owner not in (os.geteuid(), folder.st_uid):
            raise ResourceError(
                f"cannot write {os.fspath(path)}: {link} is a link that another user put there; choose another name"
            )
        link = link.parent / link.readlink()
    return Path(os.path.realpath(path))
