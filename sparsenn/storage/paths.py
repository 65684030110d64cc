"""Names of files, as callers give them."""

from __future__ import annotations

import os
from typing import Any

from sparsenn.errors import UsageError

__all__ = ["check_path"]


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
