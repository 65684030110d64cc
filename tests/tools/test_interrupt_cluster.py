"""Parts of a cluster, each killed once at a random moment; `tools/interrupt_cluster.py` by itself does so for long."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "interrupt_cluster.py"


def interrupt(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_is_there_twice(tmp_path: Path) -> None:
    pytest.importorskip("distributed.client", reason="the extra dask is not installed")
    done = interrupt("--runs", 1, "--json", tmp_path / "counts.json")
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads((tmp_path / "counts.json").read_text())
    assert sorted(name.split()[0] for name in counts) == ["client", "scheduler", "worker"]
    assert set(counts.values()) == {1}
