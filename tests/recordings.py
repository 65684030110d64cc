"""Recording tables in a test: small cases, and result files in a folder of the test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import record
from results_file import ResultFile, read_results
from timing import Timer

__all__ = ["Recorded", "Recorder", "small_model"]


@dataclass(frozen=True)
class Recorded:
    """A recording's result file, None where it recorded nothing, and why cases failed."""

    result: ResultFile | None
    failures: tuple[str, ...]

    @property
    def rows(self) -> tuple[dict[str, Any], ...]:
        assert self.result is not None
        return self.result.rows


class Recorder:
    """Records tables as `tools/bench` does, without its process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.setenv("SPARSENN_COMMIT", "a" * 40)
        monkeypatch.setattr(record, "results_path", lambda name, folder=None: self.folder / f"{name}.json")

    def __call__(self, *words: str) -> Recorded:
        """Record all cases that the words select."""
        run, cases, rest = record.run_of(words)
        assert not rest
        failures = []
        for case in cases:
            try:
                run.record(case, Timer())
            except pytest.skip.Exception:
                continue
            except Exception as error:
                failures.append(str(error))
        return Recorded(read_results(run.path) if run.path.is_file() else None, tuple(failures))


def small_model(name: str) -> Any:
    """Return a network with a depthwise convolution in place of one of torchvision's."""
    import torch

    head = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5)
    depthwise = torch.nn.Conv2d(8, 8, 3, groups=8)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), depthwise, *head)
