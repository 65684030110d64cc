"""`sparsenn tune`: choices measured ahead of time are shown, and read by later sessions."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Refused, Run
from kernel_registry import let_auto_take

from sparsenn import Session, backends, read_model
from sparsenn.runtime import choices
from sparsenn.runtime.storage import cache_folder

SLOW_SECONDS = 5e-3


@pytest.fixture
def runs_of_slow(measuring_kernels: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let `auto` take two kernels of dense layers, `slow` and `fast`; return the rows of each run of the slow one."""
    kernel = backends.kernel_named("mlp", "register_tiled", "cpu")
    runs = []

    def launch(stack: Any, features: Any) -> Any:
        runs.append(len(features))
        time.sleep(SLOW_SECONDS)
        return kernel.launch(stack, features)

    slow = replace(kernel, name="slow", seconds=lambda *problem: 1e-6, launch=launch)
    let_auto_take(monkeypatch, slow, replace(kernel, name="fast", seconds=lambda *problem: 1e-6))
    return runs


def test_a_later_session_does_not_measure(run: Run, model: Path, runs_of_slow: list[int]) -> None:
    done = run("tune", model, "--rows", "1,5", "--device", "cpu")
    lines = [line.split() for line in done.stdout.splitlines() if "fast" in line]
    assert [[words[1], words[3], words[5], "slow" in words] for words in lines] == [
        ["1", "1", "fast", True],
        ["5", "1", "fast", True],
    ]
    assert re.search(r" (\d+) of \1 ", done.stdout)
    assert f"Choices are stored in {cache_folder() / 'choices'}" in done.stdout
    assert {entry["key"]["rows"] for entry in choices.entries()} == {1, 8}
    measured = len(runs_of_slow)
    plan = Session(read_model(model).network, device="cpu").plan(np.ones((7, 6), np.float32))
    assert (plan.kernel.name, plan.steps[0].is_measured) == ("fast", True)
    run("tune", model, "--rows", "1,5", "--device", "cpu")
    assert len(runs_of_slow) == measured


def test_json_alone(run: Run, model: Path, runs_of_slow: list[int]) -> None:
    record = json.loads(run("tune", model, "--rows", 5, "--device", "cpu", "--json", "-").stdout)
    (entry,) = record["rows"]
    assert (record["model"], record["precision"], entry["rows"], entry["form"]) == (str(model), "float32", 5, "dense")
    (choice,) = entry["choices"]
    assert (entry["kernels"], choice["kernel"], choice["first"], choice["last"]) == (["fast"], "fast", 1, 1)
    assert choice["seconds"] < SLOW_SECONDS <= choice["others"]["slow"]
    assert entry["measuring_seconds"] > len(runs_of_slow) * SLOW_SECONDS
    ((stored,),) = (each["choices"] for each in choices.entries())
    assert {name: stored[name] for name in ("kernel", "seconds", "others", "wins", "runs")} == {
        name: choice[name] for name in ("kernel", "seconds", "others", "wins", "runs")
    }


@pytest.mark.usefixtures("measuring_kernels")
def test_one_candidate_is_not_measured(run: Run, model: Path) -> None:
    done = run("tune", model, "--rows", 5, "--device", "cpu")
    assert "register_tiled" in done.stdout
    assert "there is no other candidate" in " ".join(done.stdout.split())
    assert "stored in" not in done.stdout
    assert not choices.entries()


@pytest.mark.parametrize(("form", "of_plan"), [(None, "iso"), ("csr", "iso"), ("dense", "dense")])
def test_a_datasets_rows_are_its_own(run: Run, problem: Path, form: str | None, of_plan: str) -> None:
    options = () if form is None else ("--form", form)
    done = run("tune", problem, "--rows", 3, "--device", "cpu", "--json", "-", *options)
    assert [(entry["rows"], entry["form"]) for entry in json.loads(done.stdout)["rows"]] == [(3, of_plan)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rows", "0"), "--rows 0: take whole numbers from 1 to"),
        (("--rows", "1,x"), "--rows 1,x: take whole numbers"),
        (("--form", "coo"), "--form coo: take dense or csr"),
        (("--form", "csr"), "--form csr goes with --inputs"),
        (("--inputs", "missing.npy"), "missing.npy: no such file"),
        (("--precision", "float8"), "float8"),
    ],
)
def test_bad_usage_is_one_line(refused: Refused, model: Path, options: tuple[str, str], message: str) -> None:
    refused(("tune", model, "--device", "cpu", *options), message)
