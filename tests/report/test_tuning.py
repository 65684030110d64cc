"""What tuning found, as tables and JSON."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from sparsenn.backends.tuning_table import Tuned
from sparsenn.report import to_json
from sparsenn.report.tuning import tuned_record, tuned_table, tuning_record, tuning_tables
from sparsenn.studies.tuning import Trial, TunedSizes, TuningResult

KEPT = Tuned("A chip", "spmspm", "panel", "width 64", {"lanes": 2048}, 0.002, 0.003, 10, "0")


@pytest.fixture
def result() -> TuningResult:
    trials = (
        Trial({}, 0.003, 1e-6, correct=True),
        Trial({"lanes": 8}, None, float("nan"), correct=False),
        Trial({"lanes": 16}, None, 0.0, correct=True, refused="it is odd"),
        Trial({"lanes": 2048}, 0.002, 2e-6, correct=True),
    )
    return TuningResult("A chip", "spmspm", "panel", 10, (TunedSizes("width 64", trials),))


def rows(table: Table) -> list[list[str]]:
    console = Console(file=StringIO(), width=200)
    console.print(table)
    lines = console.file.getvalue().splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if "│" in line]


def test_choices_are_listed_the_fastest_first(result: TuningResult) -> None:
    (table,) = tuning_tables(result)
    assert table.title == "spmspm panel on A chip: width 64"
    assert rows(table) == [
        ["lanes 2,048", "2", "1.5", "2.00e-06"],
        ["as it comes", "3", "1", "1.00e-06"],
        ["lanes 8", "wrong", "–", "nan"],
        ["lanes 16", "refused: it is odd", "–", "–"],
    ]


def test_kept_numbers_are_listed() -> None:
    assert rows(tuned_table([KEPT])) == [
        ["A chip", "spmspm", "panel", "width 64", "lanes 2,048", "2.00 ms", "1.5", "10"]
    ]


def test_records_are_plain_json(result: TuningResult) -> None:
    record = json.loads(to_json(tuning_record(result, [KEPT])))
    assert record["stored"] == tuned_record([KEPT]) == [json.loads(to_json(tuned_record([KEPT])[0]))]
    trials = record["found"][0]["trials"]
    assert [trial["error"] for trial in trials] == [1e-6, None, 0.0, 2e-6]
    assert trials[3]["parameters"] == {"lanes": 2048}
