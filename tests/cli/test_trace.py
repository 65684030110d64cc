"""`--trace`: a file that shows what a verb ran, and none where it failed."""

from __future__ import annotations

import json
import operator
import re
import subprocess
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from traces import checked_spans
from typer.testing import Result

import sparsenn.training
from sparsenn import Linear, Model, Network, write_dataset, write_model
from sparsenn.io import Dataset
from sparsenn.runtime.progress import COMPILING
from sparsenn.training.choice import Choice

Run = Callable[..., Result]
Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = np.random.default_rng(1).normal(size=(6, 3))
    write_model(tmp_path / "model.h5", Model(Network((Linear(weights),)), "mse", False))
    np.save(tmp_path / "rows.npy", np.eye(6, dtype=np.float32))
    (tmp_path / "table.csv").write_text("1,2,3\n2,3,4\n3,1,2\n")
    return tmp_path / "model.h5"


def test_infer_of_a_dataset(run: Run, problem: Path, tmp_path: Path) -> None:
    done = run("infer", problem, "--device", "cpu", "--batch-size", 50, "--trace", tmp_path / "t.json.gz")
    assert (done.exit_code, done.stderr) == (0, "")
    names = [span["name"] for span in checked_spans(tmp_path / "t.json.gz")]
    assert names.count("batch") == 4
    assert {f"read {problem}", "run", "report", "find equal outputs"} <= set(names)


def test_a_wrong_answer_is_traced_all_the_same(run: Run, dataset: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "wrong.h5"
    write_dataset(Dataset("wrong", dataset.network, dataset.inputs, dataset.truth[1:]), path)
    assert run("infer", path, "--device", "cpu", "--trace", tmp_path / "t.json").exit_code == 1
    assert checked_spans(tmp_path / "t.json")


def test_infer_of_a_model(run: Run, model: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.npy"
    done = run("predict", model, rows, "--device", "cpu", "--trace", tmp_path / "t.json")
    assert done.exit_code == 0, done.output
    names = [span["name"] for span in checked_spans(tmp_path / "t.json")]
    assert {"read model.h5", "read rows.npy", "run"} <= set(names)


def test_train(run: Run, model: Path, tmp_path: Path) -> None:
    table, checkpoint = tmp_path / "table.csv", ("--checkpoint", tmp_path / "c.h5")
    what = ("--epochs", 3, "--validation", table, *checkpoint, "--device", "cpu")
    done = run("train", table, "--output", tmp_path / "m.h5", *what, "--trace", tmp_path / "t.json")
    assert done.exit_code == 0, done.output
    names = [span["name"] for span in checked_spans(tmp_path / "t.json")]
    assert [name for name in names if name.startswith("epoch")] == ["epoch 1", "epoch 2", "epoch 3"]
    assert names.count("evaluate") == 3
    assert names.count("checkpoint") == 4


def compiled_of_package(function: Callable[[int], int]) -> Any:
    """A function that numba is to compile, as if it were the package's."""
    function.__module__ = "sparsenn.of_the_package"
    return numba.njit(function)


@pytest.mark.parametrize("verb", ["predict", "train"])
def test_what_is_compiled_beside_the_network_is_told_as_that(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def compiling(function: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*given: Any, **named: Any) -> Any:
            fresh(1)
            return function(*given, **named)

        return changed

    monkeypatch.setattr("sparsenn.training.read_rows", compiling(sparsenn.training.read_rows))
    monkeypatch.setattr(Choice, "start", compiling(Choice.start))
    what, keys = {
        "predict": ((model, tmp_path / "rows.npy"), ("seconds", "compile")),
        "train": ((tmp_path / "table.csv", "--output", tmp_path / "m.h5", "--epochs", 1), ("compile_seconds",)),
    }[verb]

    def seconds() -> float:
        json_file = tmp_path / "result.json"
        files = ("--json", json_file, "--trace", tmp_path / "t.json")
        done = run(verb, *what, "--device", "cpu", "--progress", *files)
        assert done.exit_code == 0, done.output
        assert bool(re.search(r"time .*compile [1-9][\d.]* m?s", done.stdout)) == fresh_is_new
        assert done.stderr.count(COMPILING) == fresh_is_new
        return float(reduce(operator.getitem, keys, json.loads(json_file.read_text())))

    fresh, fresh_is_new = compiled_of_package(lambda number: number + 1), True
    run(verb, *what, "--device", "cpu")  # the engine's own functions, too
    fresh = compiled_of_package(lambda number: number + 2)
    told = seconds()
    traced = [span["dur"] for span in checked_spans(tmp_path / "t.json") if span["cat"] == "compile"]
    assert len(traced) == 1
    assert told == pytest.approx(traced[0] / 1e6, rel=0.5)
    fresh_is_new = False
    assert seconds() == 0


@pytest.mark.slow
def test_a_first_run_tells_what_it_compiles_and_the_next_loads_it(spawn: Spawn, model: Path, tmp_path: Path) -> None:
    found = []
    for number in range(2):
        files = (tmp_path / f"{number}.json", tmp_path / f"t{number}.json")
        line = ("predict", model, tmp_path / "rows.npy", "--device", "cpu", "--json", files[0])
        process = spawn(*line, "--trace", files[1], env={"NUMBA_CACHE_DIR": str(tmp_path / "numba")})
        _, told = process.communicate(timeout=240)
        assert (process.returncode, told) == (0, "")
        traced = sum(span["dur"] for span in checked_spans(files[1]) if span["cat"] == "compile") / 1e6
        found.append((json.loads(files[0].read_text())["seconds"]["compile"], traced))
    (told, traced), warm = found
    assert 0.01 < told <= 1.1 * traced  # functions that others call are compiled inside these
    assert warm == (0, 0)


def test_benchmark_shows_calls_that_are_not_timed(run: Run, model: Path, tmp_path: Path) -> None:
    what = ("--rows", "1,5", "--against", "none", "--seconds", "0.01", "--device", "cpu")
    done = run("benchmark", model, *what, "--trace", tmp_path / "t.json")
    assert done.exit_code == 0, done.output
    spans = checked_spans(tmp_path / "t.json")
    assert [span["args"]["rows"] for span in spans if span["cat"] == "step"] == [1, 1, 1, 1, 5, 5, 5, 5]


@pytest.mark.parametrize("verb", ["predict", "train", "benchmark"])
@pytest.mark.parametrize(
    ("name", "told"),
    [("none/t.json", "the folder {}/none does not exist"), ("t.txt", "use .json, .json.gz"), (".", "use .json")],
)
def test_a_place_that_cannot_be_written_to(
    run: Run, model: Path, tmp_path: Path, verb: str, name: str, told: str
) -> None:
    rest = {
        "predict": (model, tmp_path / "rows.npy"),
        "train": (tmp_path / "table.csv", "--output", tmp_path / "m.h5"),
        "benchmark": (model,),
    }[verb]
    before = sorted(tmp_path.iterdir())
    done = run(verb, *rest, "--trace", tmp_path / name)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "--trace" in done.stderr
    assert told.format(tmp_path) in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_failure_leaves_no_file(run: Run, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.eye(7, dtype=np.float32))
    before = sorted(tmp_path.iterdir())
    done = run("predict", model, tmp_path / "rows.npy", "--trace", tmp_path / "t.json")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert sorted(tmp_path.iterdir()) == before
