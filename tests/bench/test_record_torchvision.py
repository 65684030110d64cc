"""The record of torchvision's models: a row for each model, dense and pruned, and number of rows."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="exports the models")
pytest.importorskip("onnxruntime", reason="is compared")
import record_torchvision
import torch
from results_file import read_results


def test_dense_and_pruned_models_stand_beside_onnx_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(name: str) -> torch.nn.Module:
        head = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5)
        return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), *head)

    monkeypatch.setenv("SPARSENN_COMMIT", "a" * 40)
    monkeypatch.setattr(record_torchvision, "PIXELS", 16)
    monkeypatch.setattr(record_torchvision, "drawn", drawn)
    monkeypatch.setattr(record_torchvision, "results_path", lambda name, folder=None: tmp_path / f"{name}.json")
    assert record_torchvision.main(["--only", "resnet18", "--seconds", "0.01"]) == 0
    rows = read_results(tmp_path / "torchvision.json").rows
    titles = ("resnet18", "resnet18, 10% of its weights")
    assert [(row["network"], row["rows"]) for row in rows] == [(title, count) for title in titles for count in (1, 16)]
    pruned = record_torchvision.made("resnet18", 0.1)
    assert 0 < int((pruned[0].weight != 0).sum()) <= 0.11 * pruned[0].weight.numel()
