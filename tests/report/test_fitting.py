"""Tables that fit the terminal."""

from __future__ import annotations

import pytest
from screens import shown

from sparsenn.report.fitting import FittedTable, numbers, unbroken


@pytest.fixture
def table() -> FittedTable:
    importance = {"non-zeros": 1, "density": 2}
    others = numbers("rows computed", *importance, "nothing known")
    columns = *numbers("layer"), *unbroken("kernel"), *others, "what it is"
    made = FittedTable(*columns, importance=importance, title="by layer")
    made.add_row("1", "spatial_cluster", "1,234,567", "9,876,543,210", "0.123", "–", "some words that can be broken")
    made.add_row("2", "panel", "–", "5", "1.000", "", "few")
    return made


NUMBERS = "1,234,567", "spatial_cluster"


def test_wide_it_is_whole_but_for_what_is_empty(table: FittedTable) -> None:
    text = shown(table, 200)
    assert all(each in text for each in (*NUMBERS, "9,876,543,210", "0.123", "│", "some words that can be broken"))
    assert "nothing" not in text
    assert "Not shown" not in text


@pytest.mark.parametrize("width", [90, 80, 70, 60])
def test_narrow_no_number_is_cut(table: FittedTable, width: int) -> None:
    text = shown(table, width)
    assert all(each in text for each in NUMBERS)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_what_is_of_least_importance_goes_first_and_is_named(table: FittedTable) -> None:
    assert "Not shown in 60 columns: non-zeros." in shown(table, 60)
    assert "0.123" in shown(table, 60)
    assert "Not shown in 48 columns: non-zeros, density." in " ".join(shown(table, 48).split())
