"""The record of ONNX files of many kinds: a row for each network and number of rows; an error where outputs differ."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="exports the networks")
pytest.importorskip("onnxruntime", reason="is compared")
import record_golden
from golden_networks import NETWORKS
from results_file import read_results

TITLES = ("policy of ELU", "U-Net")


@pytest.fixture(autouse=True)
def _few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENN_COMMIT", "a" * 40)
    monkeypatch.setattr(record_golden, "NETWORKS", {title: NETWORKS[title] for title in TITLES})
    monkeypatch.setattr(record_golden, "results_path", lambda name, folder=None: tmp_path / f"{name}.json")


def test_networks_stand_beside_onnx_runtime(tmp_path: Path) -> None:
    assert record_golden.main(["--seconds", "0.01"]) == 0
    rows = read_results(tmp_path / "golden.json").rows
    assert {(row["network"], row["rows"]) for row in rows} == {(title, count) for title in TITLES for count in (1, 64)}
    assert [row["times"] for row in rows] == sorted(row["times"] for row in rows)
    for row in rows:
        assert row["times"] == pytest.approx(row["onnxruntime"] / row["milliseconds"])
        assert row["layers"] + row["foreign"] > 0


def test_outputs_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(record_golden, "TOLERANCE", -1.0)
    assert record_golden.main(["--seconds", "0.01"]) == 1
    assert "policy of ELU-1: outputs differ" in capsys.readouterr().err
