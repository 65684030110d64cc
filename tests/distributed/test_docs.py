"""The examples of docs/dask.md run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def test_examples_run_as_they_stand(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed.client", reason="the extra dask is not installed")
    (example,) = re.findall(r"```python\n(.*?)```", (repository / "docs" / "dask.md").read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run([sys.executable, "example.py"], capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "dask.array<sparsenn, shape=(500, 64), dtype=float32, chunksize=(100, 64)" in done.stdout
    assert "Pieces('pieces', 500 rows in 5 pieces)" in done.stdout
    assert "400 (100, 64)" in done.stdout
