"""Networks run by many processes: of one machine, or of a Dask cluster.

==================  =================================================================================================
`infer`             run a network's rows on a Dask cluster: a lazy Dask array, or pieces in a folder
`local_cluster`     a cluster of this machine's GPUs, or of so many processes that share its cores
==================  =================================================================================================

The names are imported when they are first used. They need the extra `dask`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsenn.distributed.cluster.api import infer
    from sparsenn.distributed.cluster.local import local_cluster

__all__ = ["infer", "local_cluster"]

_HOMES = {"infer": "api", "local_cluster": "local"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.cluster.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
