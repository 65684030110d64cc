"""`sparsenn benchmark`: a table in 80 columns, JSON, and one line for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Refused, Run

QUICK = ("--device", "cpu", "--seconds", "0.01")


def test_latencies_stand_beside_a_peer(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = run("benchmark", model, "--rows", "1,30", "--against", "scipy", *QUICK)
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "model.h5 on cpu" in lines[0]
    assert "…" not in done.stdout
    assert [line.split()[1] for line in lines if "sparsenn " in line and "│" in line] == ["1", "30"]
    assert sum("scipy" in line and "│" in line for line in lines) == 2


def test_json_alone(run: Run, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.eye(6, dtype=np.float32))
    options = ("--rows", 12, "--against", "none", "--inputs", tmp_path / "rows.npy", "--json", "-")
    done = run("benchmark", model, *options, *QUICK)
    record = json.loads(done.stdout)
    (call,) = record["calls"]
    assert (record["model"], call["rows"], call["way"]) == ("model.h5", 12, "sparsenn")
    assert call["median"] <= call["p95"] <= call["p99"]


def test_a_pruned_model_is_said_to_be(run: Run, model: Path, tmp_path: Path) -> None:
    files = ("--json", tmp_path / "bench.json", "--report", tmp_path / "bench.html")
    done = run("benchmark", model, "--rows", "2", "--against", "none", "--prune", 0.5, *files, *QUICK)
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "bench.json").read_text())
    shown = done.stdout, record["provenance"]["pruned"], (tmp_path / "bench.html").read_text()
    assert all("loses accuracy" in " ".join(text.split()) for text in shown)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rows", "0"), "--rows 0: take whole numbers from 1 to 2,147,483,647"),
        (("--rows", "2147483648"), "--rows 2147483648: take whole numbers from 1 to 2,147,483,647"),
        (("--rows", "1,x"), "--rows 1,x: take whole numbers"),
        (("--seconds", "0"), "--seconds 0: take more than 0"),
        (("--seconds", "nan"), "--seconds nan is not a finite number"),
        (("--against", "tensorflow"), "unknown peer 'tensorflow'"),
        (("--inputs", "missing.npy"), "missing.npy: no such file"),
        (("--json", "model.h5"), "would overwrite"),
    ],
)
def test_bad_usage_is_one_line(refused: Refused, model: Path, options: tuple[str, str], message: str) -> None:
    refused(("benchmark", model, *QUICK, *options), message)
