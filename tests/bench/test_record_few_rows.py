"""The record of few rows on a GPU: a row for each cell, and an error where outputs differ."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="is compared")
pytest.importorskip("cupy", reason="rows are on a GPU")
import record_few_rows
from results_file import read_results

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENN_COMMIT", "a" * 40)
    monkeypatch.setattr(record_few_rows, "CELLS", ((64, 0.25),))
    monkeypatch.setattr(record_few_rows, "ROWS", (1, 9))
    monkeypatch.setattr(record_few_rows, "results_path", lambda name, folder=None: tmp_path / f"{name}.json")


def test_each_cell_has_a_row(tmp_path: Path) -> None:
    assert record_few_rows.main(["--seconds", "0.01"]) == 0
    rows = read_results(tmp_path / "few-rows.json").rows
    assert {(row["precision"], row["rows"]) for row in rows} == {
        (kind, n) for kind in ("float32", "float16") for n in (1, 9)
    }
    assert [row["times"] for row in rows] == sorted(row["times"] for row in rows)
    assert all(row["times"] == pytest.approx(row["torch"] / row["bound"]) for row in rows)


def test_outputs_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(record_few_rows, "TOLERANCE", {"float32": -1.0, "float16": -1.0})
    assert record_few_rows.main(["--seconds", "0.01", "float32"]) == 1
    assert "outputs differ" in capsys.readouterr().err
