"""The packages dask and distributed; they are imported when they are first needed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from sparsenn.errors import UsageError

__all__ = ["dask_module", "require_dask"]


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


def dask_module(name: str) -> Any:
    """Return a module of these packages, such as `dask.array`.

    Raises
    ------
    UsageError
        It cannot be imported; the message says what to install.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise _missing(str(error)) from error


def _missing(reason: str) -> UsageError:
    return UsageError(
        f'clusters need the packages dask and distributed ({reason}): pip install "dask[array]" distributed'
    )
