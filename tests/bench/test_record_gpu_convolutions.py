"""The record of torchvision's networks on a GPU: a row for each cell, and an error where outputs differ."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="is compared")
pytest.importorskip("cupy", reason="images are on a GPU")
import record_gpu_convolutions
import record_torchvision
import torch
from results_file import read_results

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(name: str) -> torch.nn.Module:
        head = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5)
        depthwise = torch.nn.Conv2d(8, 8, 3, groups=8)
        return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), depthwise, *head)

    monkeypatch.setenv("SPARSENN_COMMIT", "a" * 40)
    monkeypatch.setattr(record_gpu_convolutions, "PIXELS", 16)
    monkeypatch.setattr(record_torchvision, "PIXELS", 16)
    monkeypatch.setattr(record_torchvision, "drawn", drawn)
    monkeypatch.setattr(record_gpu_convolutions, "results_path", lambda name, folder=None: tmp_path / f"{name}.json")


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
