"""The cache on disk of functions that numba compiled, and what happens where files are damaged or cannot be written.

The folder is the first of these that can be written to: what NUMBA_CACHE_DIR names, `numba` within what SPARSENN_CACHE
names, `__pycache__` beside the source, and numba's folder of the user. Files begin with a digest of what they hold: one
that is damaged, or that another numba wrote, is as good as none, and is written anew. So is what was compiled of a
function that uses others, or constants, of another file that has changed since: numba looks at its own file alone.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
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

__all__ = ["LOADING", "compiled_cache", "compiled_folders", "is_cached"]

LOADING = "sparsenn:load"
"""The event, as numba has them, of a function that is loaded; its data name what `numba:compile`'s do."""

_SEAL_BYTES = 16
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
    return bool(getattr(function._cache, "has_entries", False))


class _OwnFolder(_first):  # type: ignore[misc, valid-type]
    """The folder that SPARSENN_CACHE names. What is there is read, too, where nothing can be written."""

    def __init__(self, function: Any, path: str) -> None:
        self._py_file = path
        self._lineno = function.__code__.co_firstlineno
        self._cache_path = str(Path(os.environ["SPARSENN_CACHE"], "numba", self.get_suitable_cache_subpath(path)))

    @classmethod
    def from_function(cls, function: Any, path: str) -> Any:
        """Return the place for a function of a file; None where it is not set, or no folder."""
        if not os.environ.get("SPARSENN_CACHE"):
            return None
        made = cls(function, path)
        try:
            made.ensure_cache_path()
        except OSError:
            return made if Path(made.get_cache_path()).is_dir() else None
        return made


class _Folders(CompileResultCacheImpl):  # type: ignore[misc]
    """The candidate folders, SPARSENN_CACHE among them."""

    _locator_classes = (_first, _OwnFolder, *_others)


class _SealedFiles(IndexDataCacheFile):  # type: ignore[misc]
    """An index of what was compiled of a function, and a file for each, all of them sealed by a digest."""

    def save(self, key: Any, data: Any) -> None:
        """Keep what was compiled, together with its key: the index may be another process's."""
        super().save(key, (key, data))

    def load(self, key: Any) -> Any:
        """Return what was compiled; None where it is not there, or damaged."""
        found = super().load(key)
        return found[1] if found is not None and found[0] == key else None

    def _load_index(self) -> dict[Any, str]:
        try:
            stamp, overloads = self._load_data(self._index_name)
        except OSError:
            return {}
        return overloads if stamp == self._source_stamp else {}

    def _save_index(self, overloads: dict[Any, str]) -> None:
        self._save_data(self._index_name, (self._source_stamp, overloads))

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        if content[:_SEAL_BYTES] != self._seal(content[_SEAL_BYTES:]):
            raise OSError(f"{name} is damaged, or of another numba")
        return pickle.loads(content[_SEAL_BYTES:])

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(self._seal(content) + content)

    def _seal(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, digest_size=_SEAL_BYTES, key=str(self._version).encode()[:64]).digest()


class _FileCache(FunctionCache):  # type: ignore[misc]
    """Files of a function; whatever is wrong with them costs its compilation, no more."""

    _impl_class = _Folders

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self.py_func = function
        self.stamp = self._impl.locator.get_source_stamp(), *_used(function)
        """Of the source, and of what is compiled into the function from other files."""
        self._cache_file = _SealedFiles(self._cache_path, self._impl.filename_base, self.stamp)

    @property
    def has_entries(self) -> bool:
        """Whether the cache holds any compiled version."""
        return bool(self._cache_file._load_index())

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return what was compiled for a signature, or None."""
        try:
            with event.trigger_event(LOADING, data={"dispatcher": self}):
                return super().load_overload(signature, context)
        except Exception:  # what numba fails to build from what it once wrote can be anything
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep what was compiled, or say why not."""
        try:
            super().save_overload(signature, compiled)
        except OSError as error:
            _warn(f"{self._cache_path}: {error.strerror or error}")


def _used(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Return names, and stamps or values, of the compiled functions and the constants that a function refers to.

    First come its own instructions: code may be generated from what other files say.
    """
    code = function.__code__
    numbers = [value for value in code.co_consts if isinstance(value, int | float)]
    found: list[tuple[str, Any]] = [("", f"{code.co_code.hex()} {code.co_names} {numbers}")]
    for name in sorted(function.__code__.co_names):
        value = function.__globals__.get(name)
        if isinstance(cache := getattr(value, "_cache", None), _FileCache):
            found.append((name, cache.stamp))
        elif isinstance(value, int | float | str | tuple | np.number):
            found.append((name, repr(value)))
    return found


class _NoCache(NullCache):  # type: ignore[misc]
    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Warn that nothing is cached."""
        _warn("no folder for them can be written to")


_warned: list[str] = []


def _warn(why: str) -> None:
    """Warn, once in a process, that compiled kernels are not cached."""
    if not _warned:
        _warned.append(why)
        warnings.warn(
            f"compiled kernels cannot be cached, and the next run compiles them again ({why}); "
            "set SPARSENN_CACHE to a writable folder",
            stacklevel=2,
        )
