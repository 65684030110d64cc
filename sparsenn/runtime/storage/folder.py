"""The folders of this machine for found, generated and measured data."""

from __future__ import annotations

import os
from pathlib import Path

from sparsenn.errors import ResourceError
from sparsenn.runtime.storage.atomic import check_writable


def cache_folder() -> Path:
    """Return the cache folder, which need not exist.

    It is SPARSENN_CACHE, else XDG_CACHE_HOME/sparsenn, else ~/.cache/sparsenn. SPARSENN_CACHE moves what numba and CuPy
    compile, too, into the folders `numba` and `cupy` there, unless NUMBA_CACHE_DIR and CUPY_CACHE_DIR say otherwise.

    Returns
    -------
    pathlib.Path
        The folder.

    Raises
    ------
    ResourceError
        None of the three is set and the user has no home folder.
    """
    own, xdg = os.environ.get("SPARSENN_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own)
    if xdg and Path(xdg).is_absolute():  # the XDG rules ignore a relative one
        return Path(xdg) / "sparsenn"
    try:
        return Path.home() / ".cache" / "sparsenn"
    except RuntimeError as error:
        raise ResourceError("there is no home folder to cache data in; set SPARSENN_CACHE to a folder") from error


def cupy_folder() -> Path:
    """Return where CuPy keeps what it compiles: CUPY_CACHE_DIR, else `cupy` in SPARSENN_CACHE, else CuPy's own."""
    named, own = os.environ.get("CUPY_CACHE_DIR"), os.environ.get("SPARSENN_CACHE")
    if named or own:
        return Path(named or Path(str(own), "cupy"))
    return Path(os.environ.get("HOME", "/"), ".cupy", "kernel_cache")


def make_cache_folder(name: str = "") -> Path:
    """Make the cache folder, or one inside it, where it is missing, and return its path; files can be made in it."""
    folder = cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder)
    except (OSError, ResourceError) as error:
        reason = f"cannot make {folder}: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        raise ResourceError(f"{reason}; set SPARSENN_CACHE to a folder that you may write to") from error
    return folder
