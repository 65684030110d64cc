"""The record of torchvision's networks on a GPU: a row for each cell, and an error where outputs differ."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="is compared")
pytest.importorskip("cupy", reason="images are on a GPU")
import record_gpu_convolutions
from results_file import read_results
from small_recordings import record_small

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_small(record_gpu_convolutions, tmp_path, monkeypatch)


ARGUMENTS = ["--only", "resnet18", "--seconds", "0.01", "--left", "0.1", "--images", "2"]


def test_each_cell_has_a_row(tmp_path: Path) -> None:
    assert record_gpu_convolutions.main(ARGUMENTS) == 0
    rows = read_results(tmp_path / "gpu-convolutions.json").rows
    assert [row["precision"] for row in rows] == ["float32", "tf32", "float16"]
    assert all(row["times"] == pytest.approx(row["torch"] / row["bound"]) for row in rows)


def test_outputs_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(record_gpu_convolutions, "TOLERANCE", dict.fromkeys(record_gpu_convolutions.TOLERANCE, -1.0))
    assert record_gpu_convolutions.main(ARGUMENTS) == 1
    assert "outputs differ" in capsys.readouterr().err
