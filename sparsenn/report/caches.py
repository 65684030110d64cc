"""What the caches hold, as a table and JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from sparsenn.printable import printable
from sparsenn.report.quantities import count
from sparsenn.runtime.memory import shown_bytes
from sparsenn.runtime.storage import Cache

__all__ = ["cache_record", "cache_table"]


def cache_table(caches: Iterable[Cache]) -> Table:
    """Return the table of caches: what each holds, how much, and where."""
    table = Table()
    table.add_column("cache", no_wrap=True)
    table.add_column("files", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("what", min_width=16)
    table.add_column("folder", overflow="fold")
    for cache in caches:
        place = "–" if cache.folder is None else printable(str(cache.folder))
        notes = [] if cache.writable else ["cannot be written to"]
        notes += [] if cache.own else ["shared, never removed"]
        place += f" ({', '.join(notes)})" if notes else ""
        size = shown_bytes(cache.nbytes) if cache.nbytes else "–"
        table.add_row(cache.name, count(len(cache.files)), size, cache.what, Text(place))
    return table


def cache_record(caches: Iterable[Cache]) -> list[dict[str, Any]]:
    """Return caches as plain values, fit for JSON: the fields of `Cache`, with the number of files."""
    return [
        {
            "name": cache.name,
            "what": cache.what,
            "folder": None if cache.folder is None else str(cache.folder),
            "files": len(cache.files),
            "bytes": cache.nbytes,
            "writable": cache.writable,
            "own": cache.own,
        }
        for cache in caches
    ]
