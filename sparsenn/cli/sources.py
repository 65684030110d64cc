"""Files to be read: a missing file is reported before any reader is loaded."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from sparsenn.errors import InputError
from sparsenn.io.files import kind_of

__all__ = ["check_dataset_source", "check_sources"]


def check_sources(*paths: Path | None) -> None:
    """Refuse files that are not there; None stands for an option that was not given.

    Raises
    ------
    InputError
        There is no such file; the message names it.
    """
    for path in paths:
        if path is not None and _is_missing(path):
            raise InputError(f"{path}: no such file")


def check_dataset_source(source: str) -> None:
    """Refuse a dataset's or model's file or folder that is not there; what may be a name is left to `load`.

    Raises
    ------
    InputError
        There is no such file or folder; the message names it.
    """
    path = Path(source)
    if (kind_of(path) or path.name != source) and _is_missing(path):
        raise InputError(f"{path}: no such file or folder")


def _is_missing(path: Path) -> bool:
    """Whether the path does not exist; other faults are left to the reader."""
    with suppress(OSError, ValueError):
        try:
            os.stat(path)  # noqa: PTH116  not Path.exists, to which no permission is the same
        except (FileNotFoundError, NotADirectoryError):
            return True
    return False
