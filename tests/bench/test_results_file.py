from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import results_file
from results_file import Column, ResultError, machine, read_results, replace_text, results_path, write_results

PARTS: dict[str, Any] = {
    "table": "main-job",
    "title": "The main job",
    "columns": [Column("kernel", "kernel"), {"key": "seconds", "label": "time (s)", "format": "{:.3f}"}],
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


def test_half_precision_is_float16_also_in_files_that_call_it_otherwise(tmp_path: Path) -> None:
    rows = [{"kernel": "cublas_fp16", "precision": "fp16", "seconds": 1.0}]
    write_results(tmp_path / "a.json", **PARTS | {"rows": rows, "configuration": {"rates": {"fp16": 2.0}}})
    read = read_results(tmp_path / "a.json")
    assert read.rows == ({"kernel": "cublas_float16", "precision": "float16", "seconds": 1.0},)
    assert read.configuration == {"rates": {"float16": 2.0}}


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


def test_a_command_is_told_from_the_root_of_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    script = str(results_file.ROOT / "bench" / "record.py")
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", script, "gemm", "--plot", "a b.png"])
    assert results_file.command_of_process() == "python bench/record.py gemm --plot 'a b.png'"


def test_numpy_numbers_become_plain_ones(tmp_path: Path) -> None:
    rows = [{"kernel": np.str_("a"), "seconds": np.float32(0.5)}, {"kernel": "b", "seconds": np.int64(3)}]
    write_results(tmp_path / "a.json", **PARTS | {"rows": rows, "configuration": {"widths": np.arange(2)}})
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["rows"] == [{"kernel": "a", "seconds": 0.5}, {"kernel": "b", "seconds": 3}]
    assert content["configuration"] == {"widths": [0, 1]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"table": "Main Job"}, "'Main Job' is not lower-case words"),
        ({"table": ""}, "not lower-case words"),
        ({"rows": []}, "at least one column and one row"),
        ({"columns": []}, "at least one column and one row"),
        ({"columns": [("a", "x")]}, "column 'a' is in no row"),
        ({"columns": [("kernel", "x"), ("kernel", "y")]}, "column 'kernel' is given twice"),
        ({"columns": [("kernel", "x", "{:.2f}")]}, "cannot show 'scipy'"),
        ({"columns": [("kernel", "x", "{nothing}")]}, "cannot show 'scipy'"),
        ({"rows": [{"kernel": "a", "seconds": float("nan")}]}, "NaN is no measurement"),
        ({"rows": [{"kernel": "a", "seconds": np.float64("inf")}]}, "Infinity is no measurement"),
        ({"configuration": {"a": float("nan")}}, "NaN is no measurement"),
        ({"rows": [{"kernel": object(), "seconds": 1}]}, "JSON cannot hold"),
    ],
)
def test_what_breaks_the_schema_is_not_written(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text("before")
    with pytest.raises(ResultError, match=message):
        write_results(path, **PARTS | changes)
    assert path.read_text() == "before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_format_needs_a_place_for_the_value() -> None:
    with pytest.raises(ResultError, match=r"column 'a': the format '\.2f' has no place"):
        Column("a", "label", ".2f")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("commit"), "commit"),
        (lambda content: content.update(extra=1), "extra"),
        (lambda content: content["columns"][0].update(width=3), "width"),
        (lambda content: content["columns"][0].pop("label"), "label"),
        (lambda content: content.update(rows=[3]), "int"),
        (lambda content: content.update(columns=3), "not iterable"),
    ],
)
def test_corrupted_files_are_refused_by_name(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "a.json"
    write_results(path, **PARTS)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ResultError, match=message) as raised:
        read_results(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"missing\.json"):
        read_results(tmp_path / "missing.json")


def test_results_path_is_named_after_the_machine(tmp_path: Path) -> None:
    assert results_path("layers", tmp_path, "desk") == tmp_path / "bench" / "results" / "desk" / "layers.json"
    path = results_path("layers", tmp_path)
    assert path.name == "layers.json"
    assert path.parent.parent == tmp_path / "bench" / "results"
    assert re.fullmatch(r"[a-z0-9-]+", path.parent.name)
    assert f"-{machine()['cores']}-cores" in path.parent.name


def test_a_gpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        results_file, "_output", lambda *command: "NVIDIA H200, 143771, 570.86\nNVIDIA H200, 143771, 570.86"
    )
    facts = machine()
    assert (facts["gpu"], facts["gpu_memory_gib"], facts["driver"]) == ("NVIDIA H200", 140.4, "570.86")
    assert results_path("a").parent.name.endswith("-nvidia-h200")


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


def test_replacing_a_file_keeps_it_whole_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, "half \ud800")
    assert path.read_text() == "before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]
    replace_text(path, "after")
    assert path.read_text() == "after"
