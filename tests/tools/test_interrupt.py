"""Verbs that are ended at random moments, once by each signal; `tools/interrupt.py` by itself does so for long."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "interrupt.py"


@pytest.mark.parametrize("verbs", [["convert"], pytest.param([], marks=pytest.mark.slow, id="all")])
def test_nothing_is_left_half_written(verbs: list[str], tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, *verbs, "--runs", "1", "--json", tmp_path / "counts.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads((tmp_path / "counts.json").read_text())
    ended = {tuple(name.split()[:2]) for name in counts}
    seen = {verb for verb, _ in ended}
    assert seen == set(verbs) if verbs else len(seen) > 5
    assert sum(counts.values()) == len(ended) == 3 * len(seen)
