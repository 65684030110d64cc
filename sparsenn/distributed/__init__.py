"""Networks run by several devices or processes: rows are independent, so that each has the weights and some rows.

==================  =================================================================================================
`Sessions`          a network ready on several GPUs of this machine
`stream`            rows from a file to a file, larger than memory, on one device or several
`infer`             rows run on a Dask cluster, as a lazy Dask array
`local_cluster`     a cluster of this machine's GPUs, or of processes that share its cores
==================  =================================================================================================

The names are imported when they are first used. The last two need the extra `dask`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsenn.distributed.cluster.api import infer
    from sparsenn.distributed.cluster.local import local_cluster
    from sparsenn.distributed.devices import Sessions
    from sparsenn.distributed.streaming import stream

__all__ = ["Sessions", "infer", "local_cluster", "stream"]

_HOMES = {"Sessions": "devices", "infer": "cluster.api", "local_cluster": "cluster.local", "stream": "streaming"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
