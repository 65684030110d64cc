"""Verbs that are ended at random moments, once by each signal; `tools/interrupt.py` by itself does so for long."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import rest_slow

SCRIPT = Path(__file__).parents[2] / "tools" / "interrupt.py"
VERBS = (
    "convert",
    "convert-into",
    "infer",
    "stream",
    "train",
    "generate",
    "generate-folder",
    "convert-folder",
    "download",
)


def interrupt(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize("verb", rest_slow(VERBS))
def test_nothing_is_left_half_written(verb: str, tmp_path: Path) -> None:
    done = interrupt(verb, "--runs", 1, "--json", tmp_path / "counts.json")
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads((tmp_path / "counts.json").read_text())
    assert sum(counts.values()) == 3
    assert all(name.startswith(f"{verb} SIG") for name in counts)


def test_an_unknown_verb_is_refused() -> None:
    done = interrupt("conjure")
    assert done.returncode == 2
    assert "no such verb: conjure" in done.stderr
