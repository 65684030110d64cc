"""Traces, read and held against the Trace Event Format."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

__all__ = ["checked_spans", "lines"]

ROUNDING = 1e-3
"""Microseconds: times have three digits behind the point."""


def checked_spans(path: Path) -> list[dict[str, Any]]:
    """The complete events of a trace, whose form is checked: those of one line lie one in another, or apart."""
    raw = path.read_bytes()
    document = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    named = lines(path)
    for event in document["traceEvents"]:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
    by_line = defaultdict(list)
    for event in spans:
        assert set(event) == {"ph", "name", "cat", "ts", "dur", "pid", "tid", "args"}
        assert min(event["ts"], event["dur"]) >= 0
        assert event["tid"] in named
        by_line[event["tid"]].append(event)
    for events in by_line.values():
        _check_nesting(events)
    return spans


def lines(path: Path) -> dict[int, str]:
    """The name of each line of a trace: a thread, or a device."""
    raw = path.read_bytes()
    document = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    names = [event for event in document["traceEvents"] if event["ph"] == "M"]
    assert [event["args"] for event in names if event["name"] == "process_name"] == [{"name": "sparsenn"}]
    return {event["tid"]: event["args"]["name"] for event in names if event["name"] == "thread_name"}


def _check_nesting(events: list[dict[str, Any]]) -> None:
    around: list[tuple[float, float]] = []  # ends, and what is left of the time inside
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        while around and around[-1][0] <= event["ts"] + ROUNDING:
            around.pop()
        if around:
            limit, left = around.pop()
            assert end <= limit + ROUNDING, event
            assert event["dur"] <= left + ROUNDING, f"{event}: more than what it is part of"
            around.append((limit, left - event["dur"]))
        around.append((end, event["dur"]))
