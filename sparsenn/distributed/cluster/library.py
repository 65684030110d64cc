"""The packages dask and distributed; they are imported when they are first needed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from sparsenn.errors import UsageError

__all__ = ["dask_array", "dask_delayed", "distributed_library", "require_dask"]


def require_dask() -> None:
    """Refuse to go on where the packages are not installed; import none of them.

    Raises
    ------
    UsageError
        One is not; the message says what to install.
    """
    for name in ("dask", "distributed"):
        found = find_spec(name)
        if found is None or found.origin is None:  # a folder of that name
            raise _missing(f"there is no {name}")


def distributed_library() -> Any:
    """Return the package distributed.

    Raises
    ------
    UsageError
        It is not installed; the message says what to install.
    """
    _imported("distributed.client")  # any folder may be a package of the shorter name
    return _imported("distributed")


def dask_array() -> Any:
    """Return the package `dask.array`.

    Raises
    ------
    UsageError
        It is not installed; the message says what to install.
    """
    return _imported("dask.array")


def dask_delayed(function: Callable[..., Any], *, pure: bool) -> Callable[..., Any]:
    """Return a function that makes tasks of calls, as `dask.delayed` does."""
    delayed: Callable[..., Any] = _imported("dask").delayed(function, pure=pure)
    return delayed


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise _missing(str(error)) from error


def _missing(reason: str) -> UsageError:
    return UsageError(
        f'clusters need the packages dask and distributed ({reason}): pip install "dask[array]" distributed'
    )
