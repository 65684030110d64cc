from __future__ import annotations

from pathlib import Path

import pytest
from recordings import Recorder


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Records tables into a folder of the test."""
    return Recorder(tmp_path / "results", monkeypatch)
