"""`sparsenn cache` as its users meet it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Run = Callable[..., Result]


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "tuning.json"
    path.parent.mkdir()
    path.write_text("{}")
    return path


def test_info_tells_sizes_and_places(run: Run, tuned: Path, tmp_path: Path) -> None:
    done = run("cache", "info", "--json", tmp_path / "caches.json")
    assert done.exit_code == 0
    assert "tuning" in done.stdout
    (entry,) = (
        each for each in json.loads((tmp_path / "caches.json").read_text())["caches"] if each["name"] == "tuning"
    )
    assert (entry["folder"], entry["files"], entry["bytes"]) == (str(tuned.parent), 1, 2)


def test_clear_says_what_was_removed(run: Run, tuned: Path) -> None:
    done = run("cache", "clear", "tuning", "datasets")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["tuning: 1 file removed, 0.0 MB", "datasets: 0 files removed, 0.0 MB"]
    assert not tuned.exists()


def test_a_wrong_name_removes_nothing(run: Run, tuned: Path) -> None:
    done = run("cache", "clear", "tuning", "tunings")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "unknown cache 'tunings'" in done.stderr
    assert tuned.exists()


def test_what_cannot_be_removed_is_exit_code_2(run: Run, tuned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    done = run("cache", "clear", "tuning")
    assert done.exit_code == 2
    assert done.stderr == f"error: {tuned} cannot be removed: Permission denied\n"
