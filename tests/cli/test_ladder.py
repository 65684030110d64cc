"""`sparsenn ladder` as its users meet it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from sparsenn import backends
from sparsenn.backends.meter import Ceilings, HostMeter

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _quick_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostMeter, "ceilings", lambda self: Ceilings(1e10, 1e9))


def test_all_rungs_are_shown_written_and_drawn(run: Run, problem: Path, tmp_path: Path) -> None:
    document, picture = tmp_path / "ladder.json", tmp_path / "ladder.png"
    options = ("--limit-inputs", 20, "--layers", 2, "--runs", 1, "--json", document, "--plot", picture)
    done = run("ladder", "spmspm", "--device", "cpu", "--dataset", problem, *options)
    assert done.exit_code == 0, done.output
    record = json.loads(document.read_text())
    names = [entry.name for entry in backends.variants("spmspm", "cpu")]
    assert [rung["name"] for rung in record["rungs"]] == names
    assert all(name in done.stdout for name in names)
    assert (record["rows"], record["stages"], record["runs"]) == (20, 2, 1)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_json_can_be_all_of_stdout(run: Run, problem: Path) -> None:
    done = run("ladder", "spmspm", "--dataset", problem, "--limit-inputs", 5, "--layers", 1, "--runs", 1, "--json", "-")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["operation"] == "spmspm"
    assert "sequential" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("spmm",), "unknown ladder 'spmm'"),
        (("sort", "--device", "cpu"), "sort has no kernel for the device cpu"),
        (("spmspm", "--sweep", "--device", "cpu"), "leave --sweep out"),
        (("spmspm", "--device", "cuda:99"), "use --device cpu"),
        (("spmspm", "--plot", "ladder.gif"), "'.gif' does not name a known file type"),
        (("spmspm", "--json", "nowhere/ladder.json"), "the folder nowhere does not exist"),
        (("spmspm", "--dataset", "nowhere.h5"), "no such file or folder"),
    ],
)
def test_bad_usage_is_refused_with_a_message(run: Run, arguments: tuple[str, ...], message: str) -> None:
    done = run("ladder", *arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_a_wrong_rung_is_exit_code_1(run: Run, problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsenn.backends.ladder import Settled
    from sparsenn.backends.layer_ladder import LayerStage

    monkeypatch.setattr(LayerStage, "settle", lambda self, output: Settled(None, 1.0, correct=False))
    done = run("ladder", "spmspm", "--device", "cpu", "--dataset", problem, "--limit-inputs", 5, "--runs", 1)
    assert done.exit_code == 1
    assert "wrong" in done.stdout
