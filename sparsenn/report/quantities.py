"""Numbers as people read them: grouped digits, and units that fit the size."""

from __future__ import annotations

import math

_DURATIONS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_RATES = ((1e12, "TeraEdges/s"), (1e9, "GigaEdges/s"), (1e6, "MegaEdges/s"), (1e3, "KiloEdges/s"), (1.0, "Edges/s"))

UNCOUNTED = ", without ONNX Runtime's layers"
"""Stands behind a number of weights or multiply-adds."""


def count(number: int) -> str:
    """Return a count with its thousands grouped."""
    return f"{number:,}"


def rows_text(number: int) -> str:
    """Return a number of rows in words."""
    return "1 row" if number == 1 else f"{number:,} rows"


def duration(seconds: float) -> str:
    """Return a time with three significant digits, in s, ms or µs."""
    return _scaled(seconds, _DURATIONS)


def milliseconds(seconds: float | None) -> str:
    """Return a time in ms with three significant digits, without the unit; a dash for None."""
    return "–" if seconds is None else significant(1e3 * seconds)


def rate(edges_per_second: float) -> str:
    """Return the challenge's rate with three significant digits, in TeraEdges/s or a smaller unit."""
    return _scaled(edges_per_second, _RATES)


def percentage(part: float, whole: float) -> str:
    """Return what `part` is of `whole` in per cent, with three significant digits; n/a where `whole` is 0."""
    return f"{significant(100 * part / whole)} %" if whole else "n/a"


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    if not math.isfinite(value):
        return "n/a"
    for scale, unit in units:
        if abs(value) >= scale:
            return f"{significant(value / scale)} {unit}"
    scale, unit = units[-1]
    return f"{significant(value / scale)} {unit}"


def significant(value: float) -> str:
    """Return three significant digits; all digits of the whole part; never an exponent above 0.001."""
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return f"{value:.2e}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"
