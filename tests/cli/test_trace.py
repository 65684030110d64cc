"""`--trace`: a file that shows what a verb ran, and none where it failed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Run, Spawn, ended
from traces import checked_spans


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", np.eye(6, dtype=np.float32))
    return tmp_path / "rows.npy"


def test_infer_of_a_dataset(run: Run, problem: Path, tmp_path: Path) -> None:
    run("infer", problem, "--device", "cpu", "--batch-size", 50, "--trace", tmp_path / "t.json.gz")
    names = [span["name"] for span in checked_spans(tmp_path / "t.json.gz")]
    assert names.count("batch") == 4
    assert {f"read {problem}", "run", "report", "find equal outputs"} <= set(names)


def test_infer_of_a_model(run: Run, model: Path, rows: Path, tmp_path: Path) -> None:
    run("predict", model, rows, "--device", "cpu", "--trace", tmp_path / "t.json")
    names = [span["name"] for span in checked_spans(tmp_path / "t.json")]
    assert {"read model.h5", "read rows.npy", "run"} <= set(names)


def test_train(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("1,2,3\n2,3,4\n3,1,2\n")
    what = ("--epochs", 3, "--validation", table, "--checkpoint", tmp_path / "c.h5", "--device", "cpu")
    run("train", table, "--output", tmp_path / "m.h5", *what, "--trace", tmp_path / "t.json")
    names = [span["name"] for span in checked_spans(tmp_path / "t.json")]
    assert [name for name in names if name.startswith("epoch")] == ["epoch 1", "epoch 2", "epoch 3"]
    assert names.count("evaluate") == 3
    assert names.count("checkpoint") == 4


@pytest.mark.slow
def test_a_first_run_tells_what_it_compiles_and_the_next_loads_it(
    spawn: Spawn, model: Path, rows: Path, tmp_path: Path
) -> None:
    found = []
    for number in range(2):
        files = (tmp_path / f"{number}.json", tmp_path / f"t{number}.json")
        line = ("predict", model, rows, "--device", "cpu", "--json", files[0])
        process = spawn(*line, "--trace", files[1], env={"NUMBA_CACHE_DIR": str(tmp_path / "numba")})
        code, _, err = ended(process)
        assert (code, err) == (0, "")
        traced = sum(span["dur"] for span in checked_spans(files[1]) if span["cat"] == "compile") / 1e6
        found.append((json.loads(files[0].read_text())["seconds"]["compile"], traced))
    (told, traced), warm = found
    assert 0.01 < told <= 1.1 * traced  # functions that others call are compiled inside these
    assert warm == (0, 0)
