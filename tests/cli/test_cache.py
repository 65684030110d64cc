"""`sparsenn cache` as its users meet it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Run = Callable[..., Result]


@pytest.fixture
def ceilings(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "ceilings.json"
    path.parent.mkdir()
    path.write_text("{}")
    return path


def test_info_tells_sizes_and_places(run: Run, ceilings: Path, tmp_path: Path) -> None:
    done = run("cache", "info", "--json", tmp_path / "caches.json")
    assert done.exit_code == 0
    assert "measurements" in done.stdout
    (entry,) = (
        each for each in json.loads((tmp_path / "caches.json").read_text())["caches"] if each["name"] == "measurements"
    )
    assert (entry["folder"], entry["files"], entry["bytes"]) == (str(ceilings.parent), 1, 2)


def test_clear_says_what_was_removed(run: Run, ceilings: Path) -> None:
    done = run("cache", "clear", "measurements", "datasets")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["measurements: 1 file removed, 0.0 MB", "datasets: 0 files removed, 0.0 MB"]
    assert not ceilings.exists()


def test_a_wrong_name_removes_nothing(run: Run, ceilings: Path) -> None:
    done = run("cache", "clear", "measurements", "measurement")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "unknown cache 'measurement'" in done.stderr
    assert ceilings.exists()


def test_what_cannot_be_removed_is_exit_code_2(run: Run, ceilings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    done = run("cache", "clear", "measurements")
    assert done.exit_code == 2
    assert done.stderr == f"error: {ceilings} cannot be removed: Permission denied\n"
