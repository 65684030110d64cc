"""Ladders as tables, pictures and JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from screens import cells, shown

from sparsenn.report import to_json
from sparsenn.report.ladder import ladder_record, ladder_table
from sparsenn.studies.measure import Roofs
from sparsenn.studies.run import LadderResult, RungResult

ROOFS = Roofs(4e12, 6e12, "L2", 50 << 20, {"float32": 3e13})


@pytest.fixture
def result() -> LadderResult:
    """Two stages; one rung timed on a GPU, a faster one, and one that is wrong."""
    rungs = (
        RungResult("naive", "plain", True, 1e-6, (0.002, 0.004), 0.006, 0.0001, 0.005, 25, 0),
        RungResult("quick", "best", True, 2e-6, (0.001, 0.001), 0.002, 0.0002, None, None, 12296),
        RungResult("broken", "wrong", False, float("inf"), (), None, None, None, None, None),
    )
    return LadderResult("spmspm", "cuda:0 (Test)", "layer", 2, 1200, 20, ROOFS, 1e-5, 40, 300, rungs)


def test_table_has_a_line_a_rung(result: LadderResult) -> None:
    assert cells(shown(ladder_table(result))) == [
        ["naive", "3.00", "6.00", "0.100", "5.00", "1.00", "0.167 %", "25", "0 B", "1.00e-06"],
        ["quick", "1.00", "2.00", "0.200", "–", "3.00", "0.500 %", "–", "12,296 B", "2.00e-06"],
        ["broken", "–", "wrong", "–", "–", "–", "–", "–", "–", "inf"],
    ]


def test_caption_tells_what_was_left_out_and_how_errors_are_measured(result: LadderResult) -> None:
    plain, told = str(ladder_table(result).caption), "Errors are relative to the reference's largest output."
    assert told not in plain
    assert "Left out" not in plain
    noted = str(ladder_table(replace(result, note="Errors are absolute.")).caption)
    assert noted == f"{plain} Errors are absolute."
    left_out = (("wide", "4 columns are too few"), ("odd", "4 is even"), ("long", "4 columns are too few"))
    caption = str(ladder_table(replace(result, scaled=True, left_out=left_out)).caption)
    assert told in caption
    assert caption.endswith("Left out, because 4 columns are too few: wide, long. Left out, because 4 is even: odd.")


def test_caption_explains_a_rung_that_is_faster_than_the_floor(result: LadderResult) -> None:
    assert "Above 100 %" not in str(ladder_table(result).caption)
    assert "Above 100 %" in str(ladder_table(replace(result, floor_seconds=0.003)).caption)


def test_record_is_json_and_holds_what_is_derived(result: LadderResult) -> None:
    record = json.loads(to_json(ladder_record(result)))
    naive, quick, broken = record["rungs"]
    assert (naive["speedup"], quick["speedup"], broken["speedup"]) == (1, pytest.approx(3), None)
    assert quick["floor_share"] == pytest.approx(0.005)
    assert broken["error"] is None
    assert record["ceilings"]["copy_bandwidth"] == 4e12
    assert record["ceilings"]["multiply_adds"] == {"float32": 3e13}
