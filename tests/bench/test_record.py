"""Recording: cells by name, time limits, cells that fail or are left out, further cells, and the command itself."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import record
from record import Row, Run, Table, WrongAnswerError
from recorders import RECORDERS
from recordings import Recorder
from results_file import read_results

from sparsenn.datasets import generate
from sparsenn.io import write_official

Measure = Callable[[str, Run], Row]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Table]:
    """Have a table of three cells in place of `choice`."""

    def make(measure: Measure, **others: Any) -> Table:
        columns = [("name", "name"), ("milliseconds", "time (ms)", "{:.1f}")]
        found = Table("Cells", columns, lambda options: ["a-1", "a-2", "b"], measure, **others)
        monkeypatch.setattr(record, "_table", lambda name: found)
        return found

    return make


def measured(cell: str, run: Run) -> Row:
    return {"name": cell, "milliseconds": float(len(run.rows) + 1)}


def test_rows_are_written_in_order_with_notes_and_options(recorder: Recorder, table: Any) -> None:
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--runs", type=record.count, default=7)

    table(measured, notes=["One."], options=options, configuration=("runs",), order=lambda row: -row["milliseconds"])
    found = recorder("choice", "--runs", "9")
    assert [row["name"] for row in found.rows] == ["b", "a-2", "a-1"]
    assert (found.result.title, found.result.notes) == ("Cells", ("One.",))  # type: ignore[union-attr]
    assert found.result.configuration == {"runs": 9}  # type: ignore[union-attr]
    with pytest.raises(SystemExit):
        recorder("choice", "--runs", "0")


def test_a_cell_that_fails_is_not_recorded_and_costs_the_others_nothing(recorder: Recorder, table: Any) -> None:
    errors = {"a-1": WrongAnswerError("outputs are off"), "a-2": FileNotFoundError("no folder mnist")}

    def failing(cell: str, run: Run) -> Row:
        if cell in errors:
            raise errors[cell]
        return measured(cell, run)

    table(failing)
    found = recorder("choice")
    assert found.failures == ("outputs are off",)
    assert [row["name"] for row in found.rows] == ["b"]
    assert found.result.notes == ("a-2: left out: no folder mnist.",)  # type: ignore[union-attr]


def test_cells_of_the_same_commit_are_added_to(recorder: Recorder, table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table(measured)
    recorder("choice", "--only", "a")
    assert [(row["name"], row["milliseconds"]) for row in recorder("choice", "--add").rows] == [
        ("a-1", 1.0),
        ("a-2", 2.0),
        ("b", 3.0),
    ]
    monkeypatch.setenv("SPARSENN_COMMIT", "b" * 40)
    found = recorder("choice", "--add", "--only", "b")
    assert [row["name"] for row in found.rows] == ["b"]
    (before,) = found.result.history  # type: ignore[union-attr]
    assert (before["commit"], before["figures"]) == ("a" * 40, {"a-1": 1.0, "a-2": 2.0, "b": 3.0})


# ---- The command ------------------------------------------------------------------------------------------------


def test_every_table_that_is_recorded_has_a_recorder(repository: Path) -> None:
    tables = {read_results(path).table for path in (repository / "bench" / "results").glob("*/*.json")}
    assert tables <= set(RECORDERS)
    for name, recorder in RECORDERS.items():
        source = (repository / "bench" / f"{recorder.module}.py").read_text(encoding="utf-8")
        assert f'"{name}":' in source
        assert recorder.measures
        assert all((repository / path).exists() for path in recorder.measures)


def test_a_ladder_is_recorded_by_the_command(repository: Path, tmp_path: Path) -> None:
    write_official(generate(1024, 2, inputs="digits", images=20), tmp_path / "challenge")
    words = ["spmspm-ladder", str(tmp_path / "challenge"), "--device", "cpu", "--layers", "1", "--inputs", "5"]
    command = [sys.executable, "bench/record.py", *words, "--runs", "1", "--machine", str(tmp_path / "lab")]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = read_results(tmp_path / "lab" / "spmspm-ladder.json")
    assert [row["kernel"] for row in result.rows] == ["sequential", "scipy", "scatter", "panel"]
    assert result.command.startswith("python bench/record.py spmspm-ladder ")
