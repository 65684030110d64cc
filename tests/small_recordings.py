"""Small networks and folders for recorders that take torchvision's models."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import record_torchvision
import torch

__all__ = ["record_small"]


def record_small(recorder: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a recorder take one small network, with a depthwise convolution, in place of all, and write to a folder."""

    def drawn(name: str) -> torch.nn.Module:
        head = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5)
        depthwise = torch.nn.Conv2d(8, 8, 3, groups=8)
        return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), depthwise, *head)

    monkeypatch.setenv("SPARSENN_COMMIT", "a" * 40)
    monkeypatch.setattr(recorder, "PIXELS", 16)
    monkeypatch.setattr(record_torchvision, "PIXELS", 16)
    monkeypatch.setattr(record_torchvision, "drawn", drawn)
    monkeypatch.setattr(recorder, "results_path", lambda name, **_: folder / f"{name}.json")
