"""The packages dask and distributed; they are imported when they are first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sparsenn.errors import UsageError


def dask_module(name: str) -> Any:
    """Return a module of these packages, such as `dask.array`."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(
            f'clusters need the packages dask and distributed ({error}): pip install "dask[array]" distributed'
        ) from error
