"""The record of pruned networks of convolutions: a row for each model, share of weights and number of images."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="exports the models")
pytest.importorskip("onnxruntime", reason="is compared")
import record_cpu_convolutions
import record_torchvision
from results_file import read_results
from small_recordings import record_small


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_small(record_cpu_convolutions, tmp_path, monkeypatch)


def test_shares_of_weights_stand_beside_onnx_runtime_and_the_floor(tmp_path: Path) -> None:
    assert record_cpu_convolutions.main(["--only", "resnet18", "--seconds", "0.01"]) == 0
    rows = read_results(tmp_path / "cpu-convolutions.json").rows
    assert [(row["left"], row["rows"]) for row in rows] == [(left, n) for left in (1.0, 0.1, 0.05) for n in (1, 16)]
    assert all(0 < row["floor"] < row["milliseconds"] for row in rows)
    pruned = record_torchvision.made("resnet18", 0.1, spares_depthwise=True)
    assert int((pruned[0].weight != 0).sum()) <= 0.11 * pruned[0].weight.numel()
    assert bool((pruned[2].weight != 0).all())


def test_outputs_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(record_cpu_convolutions, "TOLERANCE", -1.0)
    assert record_cpu_convolutions.main(["--only", "vgg11", "--seconds", "0.01"]) == 1
    assert "vgg11-1-1: outputs differ" in capsys.readouterr().err
