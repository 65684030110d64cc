"""The caches: files on disk that make the next run faster, their size, and how to clear them.

Only files with names that this package gives are counted and removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sparsenn.errors import ResourceError, unknown_name
from sparsenn.runtime.storage.folder import cache_folder, cupy_folder


class _Kind(NamedTuple):
    """A cache, wherever it is.

    what : it holds, in words.
    pattern : of its files' names.
    folders : returns where they are; the first is where new ones go.
    """

    what: str
    pattern: str
    folders: Callable[[], list[Path]]


def _compiled_folders() -> list[Path]:
    from sparsenn.runtime.storage.compiled import compiled_folders

    return compiled_folders(Path(__file__).parents[2])


_KINDS = {
    "datasets": _Kind(
        "generated datasets",
        r"radixnet-\d+x\d+-(mnist|digits)-v\d+\.h5(\.truth)?(\.json)?",
        lambda: [cache_folder() / "datasets"],
    ),
    "measurements": _Kind("limits of the device, as measured", r"ceilings\.json", lambda: [cache_folder()]),
    "choices": _Kind("kernels chosen by measurement", r"[0-9a-f]{24}\.json", lambda: [cache_folder() / "choices"]),
    "cpu-kernels": _Kind("kernels for the CPU, compiled by numba", r".+\.nb[ic]", _compiled_folders),
    "gpu-kernels": _Kind(
        "kernels for compute capability 9.0", r".+-[0-9a-f]{24}\.cubin", lambda: [cache_folder() / "kernels"]
    ),
    "cupy": _Kind("kernels for GPUs, compiled through CuPy", r"[0-9a-f]{32,}\w*\.cubin", lambda: [cupy_folder()]),
}

CACHES = tuple(_KINDS)  # names of the caches


@dataclass(frozen=True)
class Cache:
    """What one cache holds now.

    name : one of `CACHES`.
    what : it holds, in words.
    folder : where new files go; None where there is no place for them.
    nbytes : of all files.
    writable : whether files can be made in the folder, or the folder be made.
    own : whether nothing but this package writes there. What others share is counted, and never removed.
    """

    name: str
    what: str
    folder: Path | None
    files: tuple[Path, ...]
    nbytes: int
    writable: bool
    own: bool


@dataclass(frozen=True)
class Cleared:
    """What was removed of a cache.

    files : how many were removed.
    left : why files are still there, in words; None where none is.
    """

    name: str
    files: int
    nbytes: int
    left: str | None = None


def caches() -> tuple[Cache, ...]:
    """Return all caches, as they are on disk now; whatever cannot be read counts as not there."""
    return tuple(cache_named(name) for name in CACHES)


def cache_named(name: str) -> Cache:
    """Return one cache."""
    if name not in _KINDS:
        raise unknown_name("cache", name, CACHES)
    kind = _KINDS[name]
    try:
        folders = kind.folders()
    except ResourceError:
        return Cache(name, kind.what, None, (), 0, False, True)
    files = tuple(sorted(_files(folders, kind.pattern)))
    place = folders[0].parent if name == "cpu-kernels" else folders[0]  # of which each folder of sources has a part
    return Cache(name, kind.what, place, files, sum(map(_size, files)), any(map(_is_writable, folders)), _is_own(name))


def clear(names: Iterable[str] = CACHES) -> tuple[Cleared, ...]:
    """Remove the files of some caches, and folders of theirs that are empty then.

    `names`: of the caches; one that others share is left alone, and the reason reported.
    """
    return tuple([remove_files(cache) for cache in [cache_named(name) for name in names]])


def remove_files(cache: Cache) -> Cleared:
    """Remove the files that a record of a cache lists, and folders that are empty then."""
    if not cache.own:
        return Cleared(cache.name, 0, 0, f"other programs that use CuPy share {cache.folder}")
    count, size, left = 0, 0, None
    for path in cache.files:
        held = _size(path)
        try:
            path.unlink()
        except FileNotFoundError:  # another process was faster
            continue
        except OSError as error:
            left = f"{path} cannot be removed: {error.strerror}"
            continue
        count, size = count + 1, size + held
    for folder in {path.parent for path in cache.files}:
        with suppress(OSError):
            folder.rmdir()  # fails where it holds anything
    return Cleared(cache.name, count, size, left)


def _is_own(name: str) -> bool:
    if name != "cupy":
        return True
    own = os.environ.get("SPARSENN_CACHE")
    return bool(own) and cupy_folder() == Path(str(own), "cupy")


def _files(folders: Iterable[Path], pattern: str) -> Iterator[Path]:
    for folder in dict.fromkeys(folders):
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if re.fullmatch(pattern, entry.name) and entry.is_file(follow_symlinks=False):
                    yield Path(entry.path)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _is_writable(folder: Path) -> bool:
    """Return whether files can be made in a folder, or in the nearest one that is there, where it would be made."""
    absolute = folder.absolute()
    nearest = next(place for place in (absolute, *absolute.parents) if place.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
