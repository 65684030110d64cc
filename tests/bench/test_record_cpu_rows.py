"""The record of sparse layers on a CPU: a row for each network and number of rows."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="is compared")
import record_cpu_rows
from results_file import read_results

SMALL = record_cpu_rows.Case((40, 30, 20), (4, 3), (1, 16))


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENN_COMMIT", "a" * 40)
    monkeypatch.setattr(record_cpu_rows, "CASES", {"small": SMALL})
    monkeypatch.setattr(record_cpu_rows, "results_path", lambda name, folder=None: tmp_path / f"{name}.json")


def test_networks_stand_beside_onnx_runtime_and_the_floor(tmp_path: Path) -> None:
    assert record_cpu_rows.main(["--only", "small", "--seconds", "0.01"]) == 0
    rows = read_results(tmp_path / "cpu-rows.json").rows
    assert [(row["network"], row["rows"]) for row in rows] == [("small", 1), ("small", 16)]
    assert all(0 < row["floor"] < row["milliseconds"] for row in rows)
    assert [layer.edges for layer in SMALL.network()] == [120, 60]


def test_outputs_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(record_cpu_rows, "TOLERANCE", -1.0)
    assert record_cpu_rows.main(["--seconds", "0.01"]) == 1
    assert "small-1: outputs differ" in capsys.readouterr().err
