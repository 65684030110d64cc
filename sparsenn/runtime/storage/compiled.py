"""The cache on disk of functions that numba compiled, and what happens where files are damaged or cannot be written.

The folder is the first of these that can be written to: what NUMBA_CACHE_DIR names, `numba` within what SPARSENN_CACHE
names, `__pycache__` beside the source, and numba's folder of the user. A file that is damaged, or written by another
numba, counts as absent, and is written anew. So is the code of a function that uses functions or constants of another
file that has changed since: numba checks the function's own file alone. `pyproject.toml` bounds numba's version, of
which this module uses private classes.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from numba.core import event
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    NullCache,
    UserWideCacheLocator,
)
from numba.misc.appdirs import AppDirs

LOADING = "sparsenn:load"
"""The event, as numba has them, of a function that is loaded; its data name what `numba:compile`'s do."""

_first, *_others = CompileResultCacheImpl._locator_classes


def compiled_cache(function: Callable[..., Any]) -> Any:
    """Return the cache of a function that numba is to compile; an empty one where there is no folder."""
    try:
        return _FileCache(function)
    except RuntimeError:  # numba has found no folder
        return _NoCache()


def compiled_folders(package: Path) -> list[Path]:
    """Return the folders that hold what is compiled of a package's modules, wherever the settings have put it.

    Those of the place that the settings name now come first. They need not exist.
    """
    named, own = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("SPARSENN_CACHE")
    roots = [Path(named)] if named else []
    roots += [Path(own, "numba")] if own else []
    sources = sorted({path.parent for path in package.rglob("*.py")})
    shared = [Path(root, _subfolder(source)) for root in roots for source in sources]
    beside = [source / "__pycache__" for source in sources]
    user = Path(AppDirs(appname="numba", appauthor=False).user_cache_dir)
    return [*shared, *beside, *(user / _subfolder(source) for source in sources)]


def _subfolder(source: Path) -> str:
    """Return the name that numba gives the folder of what it compiles of a folder's modules."""
    return str(UserWideCacheLocator.get_suitable_cache_subpath(str(source / "module.py")))


def is_cached(function: Any) -> bool:
    """Return whether anything that was compiled of a function, one that numba compiles, as it is now, is on disk."""
    return isinstance(function._cache, _FileCache) and bool(function._cache._cache_file._load_index())


class _OwnFolder(_first):  # type: ignore[misc, valid-type]
    """The folder that SPARSENN_CACHE names, which is read even where nothing can be written."""

    def __init__(self, function: Any, path: str) -> None:
        super().__init__(function, path)
        self._cache_path = str(Path(os.environ["SPARSENN_CACHE"], "numba", _subfolder(Path(path).parent)))

    @classmethod
    def from_function(cls, function: Any, path: str) -> Any:
        """Return the place for a function of a file; None where it is not set, or no folder."""
        if not os.environ.get("SPARSENN_CACHE"):
            return None
        made = cls(function, path)
        with suppress(OSError):
            made.ensure_cache_path()
        return made if Path(made.get_cache_path()).is_dir() else None


class _Folders(CompileResultCacheImpl):  # type: ignore[misc]
    """The candidate folders, SPARSENN_CACHE among them."""

    _locator_classes = (_first, _OwnFolder, *_others)


class _CheckedFiles(IndexDataCacheFile):  # type: ignore[misc]
    """An index of what was compiled of a function, and a file for each signature, with a digest and its key."""

    def save(self, key: Any, data: Any) -> None:
        """Store what was compiled, together with its key: the index may be another process's."""
        content = self._dump((key, data))
        super().save(key, (hashlib.sha256(content).digest(), content))

    def load(self, key: Any) -> Any:
        """Return what was compiled; None where it is absent or another key's. Damage raises any error."""
        digest, content = super().load(key) or (b"", b"")
        if digest != hashlib.sha256(content).digest():
            return None
        found, data = pickle.loads(content)
        return data if found == key else None

    def _load_index(self) -> dict[Any, str]:
        try:
            overloads: dict[Any, str] = super()._load_index()
        except Exception:  # what a damaged pickle raises can be anything
            return {}
        return overloads


class _FileCache(FunctionCache):  # type: ignore[misc]
    """Files of a function; whatever is wrong with them costs its compilation, no more."""

    _impl_class = _Folders

    def __init__(self, function: Any) -> None:
        self.py_func = function
        super().__init__(function)

    @cached_property
    def stamp(self) -> tuple[Any, ...]:
        """Stamps and constants that compiled code depends on; at the first call, when its callees are defined, too."""
        self.stamp = self._impl.locator.get_source_stamp()  # for a function that calls itself
        return self.stamp, *_used(self.py_func)

    @cached_property
    def _files(self) -> _CheckedFiles:
        return _CheckedFiles(self._cache_path, self._impl.filename_base, self.stamp)

    @property
    def _cache_file(self) -> _CheckedFiles:
        return self._files

    @_cache_file.setter
    def _cache_file(self, of_numba: Any) -> None:
        """Overlook the files that numba makes, whose stamp is that of the function's own file."""

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return what was compiled for a signature, or None."""
        try:
            with event.trigger_event(LOADING, data={"dispatcher": self}):
                return super().load_overload(signature, context)
        except Exception:  # what a damaged file raises can be anything
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep what was compiled, or say why not."""
        try:
            super().save_overload(signature, compiled)
        except OSError as error:
            _warn(f"{self._cache_path}: {error.strerror or error}")


def _used(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Return names, and stamps or values, of the compiled functions and the constants that a function refers to.

    First come its own instructions: code may be generated from what other files say. Functions that write LLVM's code
    themselves have the stamp of their file.
    """
    code = function.__code__
    numbers = [value for value in code.co_consts if isinstance(value, int | float)]
    found: list[tuple[str, Any]] = [("", f"{code.co_code.hex()} {code.co_names} {numbers}")]
    for name in sorted(function.__code__.co_names):
        value = function.__globals__.get(name)
        if isinstance(cache := getattr(value, "_cache", None), _FileCache):
            found.append((name, cache.stamp))
        elif isinstance(writer := getattr(value, "__wrapped__", None), FunctionType):
            file = Path(writer.__code__.co_filename).stat()
            found.append((name, (file.st_mtime, file.st_size)))
        elif isinstance(value, int | float | str | tuple | np.number):
            found.append((name, repr(value)))
    return found


class _NoCache(NullCache):  # type: ignore[misc]
    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Warn that nothing is cached."""
        _warn("no folder for them can be written to")


_warned: list[str] = []


def _warn(why: str) -> None:
    if not _warned:
        _warned.append(why)
        warnings.warn(
            f"compiled kernels cannot be cached, and the next run compiles them again ({why}); "
            "set SPARSENN_CACHE to a writable folder",
            stacklevel=2,
        )
