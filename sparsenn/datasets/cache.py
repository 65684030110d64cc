"""Folders of generated and found data on this machine, and checks of the space on their disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from sparsenn.errors import ResourceError
from sparsenn.runtime.memory import shown_bytes
from sparsenn.runtime.storage import cache_folder

__all__ = ["cache_folder", "check_disk"]


def check_disk(folder: Path, needed: int, what: str, remedy: str) -> None:
    """Refuse to write more than the disk has space for.

    Parameters
    ----------
    folder : where the data will be written; neither it nor its parents need exist.
    needed : bytes.
    what : what takes them, for the message.
    remedy : what to do about it, for the message.

    Raises
    ------
    ResourceError
        Fewer bytes are free.
    """
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        raise ResourceError(f"{existing}: free space cannot be determined: {error.strerror}; {remedy}") from error
    if free < needed:
        raise ResourceError(
            f"{what} needs {shown_bytes(needed)} of disk space in {folder}; {shown_bytes(free)} are free; {remedy}"
        )
