"""What tests compile, kept between runs in the folder `tests` of the project's cache, and made anew where it changed.

An entry is named by a digest of all that it depends on, and begins with a digest of that name and its own content: one
that was damaged, or came there by another name, is as good as none. What was not asked for in a month is removed.
"""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from sparsenn.errors import ResourceError
from sparsenn.runtime.storage import cache_folder, replacing

__all__ = ["compiled", "folder", "prune"]

DAY = 24 * 60 * 60
MOST_DAYS = 30
"""That an entry is kept for without being used."""

_SEAL_BYTES = hashlib.sha256().digest_size


def _found_folder() -> Path | None:
    with suppress(ResourceError):
        return cache_folder() / "tests"
    return None


_FOLDER = _found_folder()
"""Looked up when this is imported: tests change the variables that say where the cache is."""


def folder() -> Path | None:
    """Return where entries are kept, a folder that need not exist; None where there can be none."""
    return _FOLDER


def compiled(depends_on: Iterable[str], make: Callable[[], bytes]) -> bytes:
    """Return what was compiled from the very same texts before, else what `make` returns, which is kept.

    Several processes may ask for the same at once; each may make it, and any of theirs stays. Where nothing can be
    written, nothing is kept. What `make` raises is raised.

    Parameters
    ----------
    depends_on : source, options, the compiler's version: everything that decides what comes out.
    """
    kept = folder()
    if kept is None:
        return make()
    path = kept / _key(depends_on)
    found = _read(path)
    if found is None:
        found = make()
        with suppress(OSError, ResourceError):
            kept.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                content = zlib.compress(found, 1)
                temporary.write_bytes(_seal(path, content) + content)
    return found


def prune() -> None:
    """Remove entries that were not used for `MOST_DAYS`, and what processes that were killed have left."""
    kept = folder()
    oldest = time.time() - MOST_DAYS * DAY
    with suppress(OSError):
        for path in kept.iterdir() if kept else ():
            with suppress(FileNotFoundError):  # another process removes them, too
                if path.stat().st_mtime < oldest:
                    path.unlink()


def _key(depends_on: Iterable[str]) -> str:
    """A digest that tells apart texts cut at different places, too."""
    digest = hashlib.sha256()
    for text in depends_on:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def _seal(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + content).digest()


def _read(path: Path) -> bytes | None:
    """Return the content of an entry, noting that it was used; None if there is none that can be trusted."""
    try:
        kept = path.read_bytes()
    except OSError:
        return None
    seal, content = kept[:_SEAL_BYTES], kept[_SEAL_BYTES:]
    if seal != _seal(path, content):
        return None
    with suppress(OSError):
        if path.stat().st_mtime < time.time() - DAY:
            os.utime(path)
    return zlib.decompress(content)
