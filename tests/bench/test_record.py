"""Recording: cases by name, time limits, cases that fail or are left out, further cases, and the command itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import record
import table_ladders
import timing
from cases import OFFICIAL_FOLDER
from record import Case, Row, Run, Table, WrongAnswerError
from recorders import RECORDERS
from recordings import Recorder
from results_file import read_results

from sparsenn.datasets import generate
from sparsenn.io import write_official
from sparsenn.studies.measure import Roofs

Measure = Callable[[str, Run], Row]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Table]:
    """Have a table of three cases in place of `choice`."""

    def make(measure: Measure, **others: Any) -> Table:
        columns = [("name", "name"), ("milliseconds", "time (ms)", "{:.1f}")]
        cases = [Case(name, {"name": name}, partial(measure, name)) for name in ("a-1", "a-2", "b")]
        found = Table("Cases", columns, lambda options: cases, **others)
        monkeypatch.setattr(record, "_table", lambda name: found)
        return found

    return make


def measured(name: str, run: Run) -> Row:
    return {"milliseconds": float(len(run.rows) + 1)}


def test_rows_are_written_in_order_with_notes_and_options(recorder: Recorder, table: Any) -> None:
    options = {"runs": 7, "seconds": 0.5, "rows": [1, 64]}
    table(measured, notes=["One."], options=options, order=lambda row: -row["milliseconds"])
    found = recorder("choice", "--runs", "9", "--rows", "2")
    assert [row["name"] for row in found.rows] == ["b", "a-2", "a-1"]
    assert (found.result.title, found.result.notes) == ("Cases", ("One.",))  # type: ignore[union-attr]
    assert found.result.configuration == {"runs": 9, "seconds": 0.5, "rows": [2]}  # type: ignore[union-attr]
    with pytest.raises(SystemExit):
        recorder("choice", "--runs", "0")


def test_a_case_that_fails_is_not_recorded_and_costs_the_others_nothing(recorder: Recorder, table: Any) -> None:
    errors = {"a-1": WrongAnswerError("outputs are off"), "a-2": FileNotFoundError("no folder mnist")}

    def failing(name: str, run: Run) -> Row:
        if name in errors:
            raise errors[name]
        return measured(name, run)

    table(failing)
    found = recorder("choice")
    assert found.failures == ("outputs are off",)
    assert [row["name"] for row in found.rows] == ["b"]
    assert found.result.notes == ("a-2: left out: no folder mnist.",)  # type: ignore[union-attr]


def test_cases_of_the_same_commit_are_added_to(recorder: Recorder, table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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


# ---- The command ------------------------------------------------------------------------------------------------


def test_every_table_that_is_recorded_has_a_recorder(repository: Path) -> None:
    tables = {read_results(path).table for path in (repository / "bench" / "results").glob("*/*.json")}
    assert tables <= set(RECORDERS)
    for name, (module, _) in RECORDERS.items():
        assert f'"{name}":' in (repository / "bench" / f"{module}.py").read_text(encoding="utf-8")


def test_a_ladder_is_recorded_by_the_command(repository: Path, tmp_path: Path) -> None:
    write_official(generate(1024, 2, inputs="digits", images=20), tmp_path / OFFICIAL_FOLDER)
    words = ["spmspm-ladder", "--data", str(tmp_path), "--device", "cpu", "--layers", "1", "--inputs", "5"]
    command = [sys.executable, "bench/record.py", *words, "--runs", "1", "--machine", str(tmp_path / "lab")]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = read_results(tmp_path / "lab" / "spmspm-ladder-cpu.json")
    assert [row["kernel"] for row in result.rows] == ["sequential", "scipy", "scatter", "panel"]
    assert result.command.startswith("python bench/record.py spmspm-ladder ")


def test_ladders_make_their_problems(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_ladders, "SIZES", ((64, 32, 16),))
    monkeypatch.setattr(table_ladders, "SHAPES", {(2, 9, 9, 3, 3, 1): (4,)})
    monkeypatch.setattr(table_ladders, "MLP_ROWS", (30,))
    monkeypatch.setattr(table_ladders, "LIBRARIES", ("blas",))
    roofs = Roofs(1e10, 1e11, "L3", 1 << 20, {"float32": 1e11})
    for module in (timing, table_ladders):
        monkeypatch.setattr(module, "roofs", lambda device: roofs)
    found = {name: recorder(name, "--device", "cpu", "--runs", "2") for name in ("gemm", "conv2d", "mlp")}
    assert not any(each.failures for each in found.values())
    assert [row["kernel"] for row in found["gemm"].rows] == ["sequential", "blas"]
    assert found["gemm"].rows[0]["sizes"] == "64 × 32 × 16"
    assert found["gemm"].rows[1]["over_peer"] == 1
    assert {row["shape"] for row in found["conv2d"].rows} == {"2 × 9 × 9 → 3, 3 × 3"}
    assert [row["rows"] for row in found["mlp"].rows] == [30, 30]
    for row in (row for each in found.values() for row in each.rows):
        assert row["milliseconds"] > 0
        assert row["error"] < 1e-5
