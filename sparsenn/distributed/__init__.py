"""Networks run by several devices at once: rows are independent, so that each device has the weights and some rows.

==================  =================================================================================================
`Sessions`          a network ready on several GPUs of this machine
`stream`            rows from a file to a file, larger than memory, on one device or several
==================  =================================================================================================

The names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsenn.distributed.devices import Sessions
    from sparsenn.distributed.streaming import stream

__all__ = ["Sessions", "stream"]

_HOMES = {"Sessions": "devices", "stream": "streaming"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
