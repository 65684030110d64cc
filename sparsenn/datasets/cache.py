"""Folders of generated and found data on this machine, checks of the space on their disk, and of whole files."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from sparsenn.errors import FileFormatError, ResourceError
from sparsenn.io.bounded import reading
from sparsenn.runtime.memory import shown_bytes
from sparsenn.runtime.storage import cache_folder, file_sha256, read_record, write_record

__all__ = ["DamagedCacheWarning", "cache_folder", "check_disk", "is_whole", "record_checksum", "remove_checksum"]

_FORM = 1


class DamagedCacheWarning(UserWarning):
    """A file of the cache is damaged, and made again."""


def check_disk(folder: Path, needed: int, what: str, remedy: str) -> None:
    """Refuse to write more than the disk has space for."""
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        raise ResourceError(f"{existing}: free space cannot be determined: {error.strerror}; {remedy}") from error
    if free < needed:
        raise ResourceError(
            f"{what} needs {shown_bytes(needed)} of disk space in {folder}; {shown_bytes(free)} are free; {remedy}"
        )


def record_checksum(path: Path) -> None:
    """Write down a dataset's checksum, in a file beside it in the cache's folder of datasets."""
    write_record(_record(path), _FORM, {"sha256": _checksum(path)})


def remove_checksum(path: Path) -> None:
    """Remove a dataset's checksum, before the dataset is replaced."""
    (cache_folder() / _record(path)).unlink(missing_ok=True)


def is_whole(path: Path) -> bool:
    """Return whether a dataset in the cache's folder of datasets has the checksum that was recorded of it.

    One without a record is taken as it is, and recorded where that is possible.
    """
    try:
        record = read_record(_record(path), _FORM)
    except FileFormatError:
        return False
    recorded = record.get("sha256")
    if not recorded:
        with suppress(ResourceError):  # the cache may be one to read only
            record_checksum(path)
    return not recorded or recorded == _checksum(path)


def _record(path: Path) -> str:
    return f"datasets/{path.name}.json"


def _checksum(path: Path) -> str:
    with reading(path):
        return file_sha256(path)
