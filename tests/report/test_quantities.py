"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from sparsenn.report.quantities import count, duration, percentage, rate, significant


def test_count_groups_thousands() -> None:
    assert (count(0), count(999), count(60000)) == ("0", "999", "60,000")


@pytest.mark.parametrize(
    ("written", "number", "text"),
    [
        *((duration, 0.0, "0 µs"), (duration, 1.5e-7, "0.150 µs"), (duration, 1e-10, "1.00e-04 µs")),
        *((duration, 1.234e-5, "12.3 µs"), (duration, 0.0456, "45.6 ms"), (duration, 0.999, "999 ms")),
        *((duration, 1.0, "1.00 s"), (duration, 12345.6, "12,346 s"), (duration, math.nan, "n/a")),
        *((rate, 0.0, "0 Edges/s"), (rate, 5e2, "500 Edges/s"), (rate, 2.5e3, "2.50 KiloEdges/s")),
        *((rate, 4.56e6, "4.56 MegaEdges/s"), (rate, 235.9e9, "236 GigaEdges/s"), (rate, 1.25e12, "1.25 TeraEdges/s")),
        *((rate, 3.2e15, "3,200 TeraEdges/s"), (rate, math.inf, "n/a")),
    ],
)
def test_durations_and_rates(written: Callable[[float], str], number: float, text: str) -> None:
    assert written(number) == text


def test_three_digits_without_a_unit() -> None:
    assert [significant(value) for value in (0.002, 0.0305, 2, 7200)] == ["0.00200", "0.0305", "2.00", "7,200"]


def test_percentage() -> None:
    assert percentage(1, 8) == "12.5 %"
    assert percentage(0, 8) == "0 %"
    assert percentage(1, 0) == "n/a"
    assert percentage(1, 10**9) == "1.00e-07 %"
