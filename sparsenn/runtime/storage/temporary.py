"""Temporary files and folders beside what they become: private, locked while they are filled, and removed in any case.

Whatever ends a block removes its temporary. What an interrupt keeps a block from removing goes when the process ends. A
process that is killed leaves it behind, but no longer locked: so the next one that writes into the same folder can
tell, and removes it.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from secrets import token_hex

try:
    import fcntl
except ImportError:  # Windows: nothing is locked, and nothing that was left behind is removed
    fcntl = None  # type: ignore[assignment]

__all__ = ["move_out", "remove_stale", "temporary_file", "temporary_folder"]

_NAME = re.compile(r"\.sparsenn-[0-9a-f]{16}\.part")

_begun: dict[Path, int] = {}
"""Temporaries that are not known to be gone, each with the number of the process that made it: a fork removes none."""

_MOVES = ".moves"
"""File in a temporary folder: the names that are being moved out of it, each with its inode, as JSON."""


@contextmanager
def temporary_file(folder: Path, private: bool = True) -> Iterator[tuple[Path, int]]:
    """Yield the path of a new, empty file, which only its owner may open, and the permissions of any other new file.

    Parameters
    ----------
    folder : where it is made; what dead processes left there is removed.
    private : whether it is so from its first moment on; the permissions of others are then not known, and its own.
    """
    remove_stale(folder)
    path, lock = folder, -1
    try:
        while lock < 0:
            path = _new_path(folder)
            created = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666)
            lock = _locked(created, path)
        yield path, _made_private(path)
    finally:
        if path != folder:
            _remove(path)
        if lock >= 0:
            os.close(lock)


@contextmanager
def temporary_folder(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the path of a new, empty folder, which only its owner may enter, and the permissions of any other new one.

    Parameters
    ----------
    folder : where it is made; what dead processes left there is removed.
    """
    remove_stale(folder)
    path, lock = folder, -1
    try:
        while lock < 0:
            path = _new_path(folder)
            path.mkdir()
            with suppress(FileNotFoundError):  # another process took it for stale before it was opened
                lock = _locked(os.open(path, os.O_RDONLY), path)
        yield path, _made_private(path)
    finally:
        if path != folder:
            _remove(path)
        if lock >= 0:
            os.close(lock)


def move_out(staging: Path, names: list[str]) -> None:
    """Move what a temporary folder holds into the folder around it: all of it, or after a failure nothing.

    What is being moved is noted first, so that even a process that is killed half-way is undone: by the next one.
    """
    noted = staging / _MOVES
    with noted.open("w", encoding="utf-8") as file:
        json.dump({name: (staging / name).stat().st_ino for name in names}, file)
        file.flush()
        os.fsync(file.fileno())
    for name in names:
        (staging / name).rename(staging.parent / name)


@cache
def remove_stale(folder: Path) -> None:
    """Remove the temporary files and folders of this user that dead processes left in a folder; once in a process."""
    if fcntl is None:
        return
    with suppress(OSError), os.scandir(folder) as entries:
        stale = [Path(entry.path) for entry in entries if _NAME.fullmatch(entry.name)]
        for path in stale:
            with suppress(OSError):
                _remove_unless_locked(path)


@atexit.register
def _remove_begun() -> None:
    """Remove what an interrupt came in the way of: at the moment that a block began, or while it was being removed."""
    for path, process in list(_begun.items()):
        if process == os.getpid():
            with suppress(OSError):
                _remove(path)


def _new_path(folder: Path) -> Path:
    """Return the path of a temporary that is about to be made: its name is hidden, and short whatever the target's."""
    path = folder / f".sparsenn-{token_hex(8)}.part"
    _begun[path] = os.getpid()
    return path


def _made_private(path: Path) -> int:
    """Take all permissions from others, where the file system knows such; returns those that there were."""
    permissions = stat.S_IMODE(path.stat().st_mode)
    with suppress(OSError):
        path.chmod(permissions & ~(stat.S_IRWXG | stat.S_IRWXO))
    return permissions


def _locked(descriptor: int, path: Path) -> int:
    """Lock a new file or folder, and return its descriptor; -1 if another process took it for stale meanwhile."""
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return -1
    except OSError:  # a file system without locks, where no file is known to be stale
        return descriptor
    if path.exists():
        return descriptor
    os.close(descriptor)
    return -1


def _remove_unless_locked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a temporary file or folder, and what was moved out of it if that is not all that was to be."""
    if path.is_dir():
        _undo_moves(path)
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    _begun.pop(path, None)


def _undo_moves(staging: Path) -> None:
    try:
        inodes = json.loads((staging / _MOVES).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # nothing was moved yet
        return
    left = [name for name in inodes if (staging / name).exists()]
    for name in set(inodes) - set(left) if left else ():
        place = staging.parent / Path(name).name
        if place.exists() and place.stat().st_ino == inodes[name]:
            place.rename(staging / name)
