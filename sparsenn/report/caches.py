"""Caches and measured choices, as tables and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from sparsenn.printable import printable
from sparsenn.report.fitting import FittedTable, numbers, unbroken
from sparsenn.report.quantities import count
from sparsenn.runtime.memory import shown_bytes
from sparsenn.runtime.storage import Cache


def cache_table(caches: Iterable[Cache]) -> Table:
    """Return the table of caches: what each holds, how much, and where."""
    table = FittedTable(*unbroken("cache"), *numbers("files", "size"), "what", Column("folder", overflow="fold"))
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


def choices_table(entries: Iterable[Mapping[str, Any]]) -> Table:
    """Return the table of measured choices: what each depends on, its kernels, and when they were measured.

    A value that a record lacks is shown as a dash.
    """
    columns = "device", "network", *numbers("rows"), "form", "kernels", "measured"
    table = FittedTable(*columns, title="Measured choices")
    for entry in entries:
        values = [entry["key"].get(name, "–") for name in ("device", "network", "rows", "form")]
        texts = [count(value) if isinstance(value, int) else value for value in values]
        texts += [_kernel_names(entry), str(entry.get("measured", "–"))]
        table.add_row(*(Text(printable(text)) for text in texts))
    return table


def _kernel_names(entry: Mapping[str, Any]) -> str:
    steps = entry.get("choices")
    found = [step.get("kernel") for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return ", ".join(dict.fromkeys(map(str, found))) or "–"
