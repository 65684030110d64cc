"""`sparsenn cache` as its users meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Run

from sparsenn.runtime import choices


@pytest.fixture
def ceilings(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "ceilings.json"
    path.parent.mkdir()
    path.write_text("{}")
    return path


def test_info_tells_sizes_and_places(run: Run, ceilings: Path, tmp_path: Path) -> None:
    done = run("cache", "info", "--json", tmp_path / "caches.json")
    assert "measurements" in done.stdout
    (entry,) = (
        each for each in json.loads((tmp_path / "caches.json").read_text())["caches"] if each["name"] == "measurements"
    )
    assert (entry["folder"], entry["files"], entry["bytes"]) == (str(ceilings.parent), 1, 2)


def test_clear_says_what_was_removed(run: Run, ceilings: Path) -> None:
    done = run("cache", "clear", "measurements", "datasets")
    assert done.stdout.splitlines() == ["measurements: 1 file removed, 0.0 MB", "datasets: 0 files removed, 0.0 MB"]
    assert not ceilings.exists()


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices for two devices, the second of them without any of what is usually in a record."""
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "cache"))
    steps = [{"first": 1, "last": 3, "kernel": "chunks"}, {"first": 4, "last": 4, "kernel": "cublas"}]
    key = {"device": "NVIDIA H200", "network": "ab12", "rows": 4096, "form": "csr"}
    choices.write(key, {"choices": [*steps, steps[0]], "measured": "2026-11-28"})
    choices.write({"device": "EPYC\x1b[2J"}, {"choices": None})


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("words", [("cache",), ("cache", "info")])
def test_measured_choices_are_listed(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words)
    lines = done.stdout.splitlines()
    (line,) = (line for line in lines if "H200" in line)
    assert all(text in line for text in ("ab12", "4,096", "csr", "chunks, cublas", "2026-11-28"))
    assert any(r"EPYC\x1b[2J" in line for line in lines)
    (size,) = (line for line in lines if "chosen by measurement" in line)
    assert " 2 " in size


@pytest.mark.usefixtures("measured")
def test_measured_choices_are_in_json(run: Run) -> None:
    record = json.loads(run("cache", "--json", "-").stdout)
    assert {entry["key"]["device"] for entry in record["choices"]} == {"NVIDIA H200", "EPYC\x1b[2J"}
    assert [step["kernel"] for entry in record["choices"] for step in entry["choices"] or []] == [
        *("chunks", "cublas", "chunks")
    ]


@pytest.mark.usefixtures("measured")
def test_matching_choices_are_cleared(run: Run) -> None:
    for matching in (("--matching", "H200"), ()):
        assert run("cache", "clear", "choices", *matching).stdout == "choices: 1 file removed, 0.0 MB\n"
