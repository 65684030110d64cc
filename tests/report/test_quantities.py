"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from sparsenn.report.quantities import count, duration, percentage, rate, significant


def test_count_groups_thousands() -> None:
    assert (count(0), count(999), count(60000)) == ("0", "999", "60,000")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 µs"),
        (1.5e-7, "0.150 µs"),
        (1e-10, "1.00e-04 µs"),
        (1.234e-5, "12.3 µs"),
        (0.0456, "45.6 ms"),
        (0.999, "999 ms"),
        (1.0, "1.00 s"),
        (12345.6, "12,346 s"),
        (math.nan, "n/a"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("edges_per_second", "text"),
    [
        (0.0, "0 Edges/s"),
        (5e2, "500 Edges/s"),
        (2.5e3, "2.50 KiloEdges/s"),
        (4.56e6, "4.56 MegaEdges/s"),
        (235.9e9, "236 GigaEdges/s"),
        (1.25e12, "1.25 TeraEdges/s"),
        (3.2e15, "3,200 TeraEdges/s"),
        (math.inf, "n/a"),
    ],
)
def test_rate(edges_per_second: float, text: str) -> None:
    assert rate(edges_per_second) == text


def test_three_digits_without_a_unit() -> None:
    assert [significant(value) for value in (0.002, 0.0305, 2, 7200)] == ["0.00200", "0.0305", "2.00", "7,200"]


def test_percentage() -> None:
    assert percentage(1, 8) == "12.5 %"
    assert percentage(0, 8) == "0 %"
    assert percentage(1, 0) == "n/a"
    assert percentage(1, 10**9) == "1.00e-07 %"
