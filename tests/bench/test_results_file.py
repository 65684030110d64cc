from __future__ import annotations

import re
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import results_file
from results_file import read_results, write_results

PARTS: dict[str, Any] = {
    "table": "main-job",
    "title": "The main job",
    "columns": [("kernel", "kernel"), ("seconds", "time (s)", "{:.3f}")],
    "rows": [{"kernel": "scipy", "seconds": 12.5, "detail": [1, 2]}, {"kernel": "panel", "seconds": None}],
    "configuration": {"neurons": 1024},
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "main-job.json"
    written = write_results(path, **PARTS)
    read = read_results(path)
    assert read == written
    assert read.cells() == [["scipy", "12.500"], ["panel", "–"]]
    assert read.rows[0]["detail"] == [1, 2]
    assert read.configuration == {"neurons": 1024}
    assert read.notes == ()
    assert [entry.name for entry in path.parent.iterdir()] == ["main-job.json"]


def test_a_file_says_where_its_figures_come_from(tmp_path: Path) -> None:
    result = write_results(tmp_path / "a.json", **PARTS)
    assert {"cpu", "cores", "memory_gib", "gpu", "driver"} <= result.machine.keys()
    assert result.machine["cpu"]
    assert result.machine["cores"] >= 1
    assert result.machine["memory_gib"] > 0
    assert {"python", "sparsenn", "numpy", "scipy", "numba"} <= result.versions.keys()
    assert result.versions["numpy"] == np.__version__
    assert datetime.fromisoformat(result.date).utcoffset() is not None
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", result.commit)
    assert result.command.startswith("python ")
    assert read_results(tmp_path / "a.json").command == result.command


def test_commit_of_a_clean_and_a_changed_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", "-C", tmp_path, *identity, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    monkeypatch.setattr(results_file, "ROOT", tmp_path)
    git("init", "-q")
    (tmp_path / "code.py").write_text("1")
    (tmp_path / "README.md").write_text("1")
    git("add", ".")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD")
    (tmp_path / "README.md").write_text("2")
    write_results(tmp_path / "bench" / "results" / "m" / "a.json", **PARTS)
    assert write_results(tmp_path / "bench" / "results" / "m" / "b.json", **PARTS).commit == commit
    (tmp_path / "new.py").write_text("2")
    assert write_results(tmp_path / "bench" / "results" / "m" / "b.json", **PARTS).commit == f"{commit}-dirty"
