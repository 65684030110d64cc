"""Ladders as tables, pictures and JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sparsenn.report import to_json
from sparsenn.report.ladder import draw_ladder, ladder_record, ladder_table
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


def shown(result: LadderResult) -> list[list[str]]:
    console = Console(file=StringIO(), width=200)
    console.print(ladder_table(result))
    lines = console.file.getvalue().splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if "│" in line]


def test_table_has_a_line_a_rung(result: LadderResult) -> None:
    assert shown(result) == [
        ["naive", "3.00", "6.00", "0.100", "5.00", "1.00", "0.167 %", "25", "0 B", "1.00e-06"],
        ["quick", "1.00", "2.00", "0.200", "–", "3.00", "0.500 %", "–", "12,296 B", "2.00e-06"],
        ["broken", "–", "wrong", "–", "–", "–", "–", "–", "–", "inf"],
    ]


def test_columns_of_which_nothing_is_known_are_left_out_and_no_number_is_cut(result: LadderResult) -> None:
    rungs = tuple(replace(rung, kernel_seconds=None, registers=None, shared_bytes=None) for rung in result.rungs)
    assert [len(line) for line in shown(replace(result, rungs=rungs))] == [7, 7, 7]
    console = Console(file=StringIO(), width=60)
    console.print(ladder_table(result))
    assert "…" not in console.file.getvalue()


def test_precision_is_shown_where_rungs_differ_in_it(result: LadderResult) -> None:
    mixed = replace(result, rungs=(result.rungs[0], replace(result.rungs[1], precision="float16")))
    assert [line[:3] for line in shown(mixed)] == [["naive", "float32", "3.00"], ["quick", "float16", "1.00"]]


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


def test_record_is_json_and_holds_what_is_derived(result: LadderResult) -> None:
    record = json.loads(to_json(ladder_record(result)))
    naive, quick, broken = record["rungs"]
    assert (naive["speedup"], quick["speedup"], broken["speedup"]) == (1, pytest.approx(3), None)
    assert quick["floor_share"] == pytest.approx(0.005)
    assert broken["error"] is None
    assert record["ceilings"]["copy_bandwidth"] == 4e12
    assert record["ceilings"]["multiply_adds"] == {"float32": 3e13}


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_picture_is_of_the_type_asked_for(result: LadderResult, tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = tmp_path / f"ladder{suffix}"
    draw_ladder(result, path)
    assert path.read_bytes().startswith(magic)


def test_picture_shows_the_rungs_that_were_timed(result: LadderResult, tmp_path: Path) -> None:
    path = tmp_path / "ladder.svg"
    draw_ladder(result, path)
    text = path.read_text()
    assert "naive" in text
    assert "broken" not in text
