"""Where generated and found data live on this machine, and whether there is room for them."""

from __future__ import annotations

import shutil
from pathlib import Path

from sparsenn.errors import ResourceError
from sparsenn.storage import cache_folder

__all__ = ["cache_folder", "check_disk", "check_memory"]


def check_disk(folder: Path, needed: int, what: str, remedy: str) -> None:
    """Refuse to start what the disk has no room for.

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
        raise ResourceError(f"{what} needs {_size(needed)} of disk space in {folder}; {_size(free)} are free; {remedy}")


def check_memory(needed: int, what: str, remedy: str) -> None:
    """Refuse to start what would not fit into the memory that other programs leave; see `check_disk`.

    Raises
    ------
    ResourceError
        Fewer bytes are available. On systems that do not tell, nothing is refused.
    """
    available = _available_memory()
    if available is not None and available < needed:
        raise ResourceError(f"{what} needs {_size(needed)} of memory; {_size(available)} are available; {remedy}")


def _available_memory() -> int | None:
    """Return the bytes that can be allocated without swapping, as Linux estimates them; None elsewhere."""
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
