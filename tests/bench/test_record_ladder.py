"""The recorded ladder of spmspm."""

from __future__ import annotations

from pathlib import Path

import pytest
import record_ladder
from results_file import read_results

from sparsenn.datasets import generate
from sparsenn.io import write_official
from sparsenn.studies.ladder import Settled
from sparsenn.studies.measure.meter import HostMeter, Roofs
from sparsenn.studies.spmspm.ladder import LayerStage


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(HostMeter, "roofs", lambda self: Roofs(1e10, 1e11, "L3", 1 << 25, {"float32": 1e9}))
    monkeypatch.setattr(
        record_ladder, "results_path", lambda name, folder=None: tmp_path / (folder or "desk") / f"{name}.json"
    )
    write_official(generate(1024, 4, inputs="digits", images=30), tmp_path / "challenge")
    return tmp_path / "challenge"


def test_every_rung_has_its_row(folder: Path) -> None:
    options = ["--device", "cpu", "--layers", "2", "--inputs", "20", "--runs", "2", "--machine", "lab"]
    assert record_ladder.main([str(folder), *options]) == 0
    result = read_results(folder.parent / "lab" / "spmspm-ladder.json")
    assert result.table == "spmspm-ladder"
    assert [row["kernel"] for row in result.rows] == ["sequential", "scipy", "scatter", "panel"]
    assert (result.configuration["rows"], result.configuration["layers"]) == (20, 2)
    assert result.rows[0]["speedup"] == 1
    assert all(len(row["layer_seconds"]) == 2 for row in result.rows)


def test_nothing_is_written_if_a_rung_is_wrong(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LayerStage, "settle", lambda self, output: Settled(None, 1.0, correct=False))
    options = ["--device", "cpu", "--layers", "1", "--inputs", "5", "--runs", "1"]
    assert record_ladder.main([str(folder), *options]) == 1
    assert not (folder.parent / "desk").exists()
