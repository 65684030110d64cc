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
        (("spmspm", "--rows", 10), "--rows: the ladder of spmspm takes a dataset"),
        (("spmspm", "--widths", "72,64,64,4", "--seed", 0), "--widths, --seed: the ladder of spmspm"),
        (("mlp", "--limit-inputs", 1200), "--limit-inputs: the ladder of mlp takes a random problem"),
        (("mlp", "--dataset", "radixnet-1024x120", "--neurons", 1024), "--dataset, --neurons: the ladder of mlp"),
        (("mlp", "--layers", 2), "--layers: the ladder of mlp"),
        (("mlp", "--widths", "72"), "--widths 72: take two or more whole numbers"),
        (("mlp", "--widths", "72,,4"), "--widths 72,,4: take"),
        (("mlp", "--widths", "72,0"), "--widths 72,0: take"),
        (("mlp", "--widths", "72,-4"), "--widths 72,-4: take"),
        (("mlp", "--widths", "72,٤"), "take two or more whole numbers"),
        (("mlp", "--widths", "72,9999999999999"), "from 1 to 1,048,576"),
        (("mlp", "--rows", 2**31 - 1, "--widths", "1048576,1", "--device", "cpu"), "take fewer --rows"),
        (("mlp", "--rows", 0), "--rows"),
        (("mlp", "--sweep", "--device", "cpu"), "leave --sweep out"),
    ],
)
def test_bad_usage_is_refused_with_a_message(run: Run, arguments: tuple[str, ...], message: str) -> None:
    done = run("ladder", *arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_dense_layers_are_run_on_random_rows(run: Run, tmp_path: Path) -> None:
    options = ("--device", "cpu", "--runs", 2, "--json", tmp_path / "mlp.json")
    done = run("ladder", "mlp", "--rows", 33, "--widths", "7,5,3", "--seed", 4, *options)
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "mlp.json").read_text())
    assert (record["rows"], record["widths"], record["seed"], record["stages"]) == (33, [7, 5, 3], 4, 1)
    assert record["multiply_adds"] == 33 * (7 * 5 + 5 * 3)
    assert record["bytes"] == 4 * (33 * 7 + 33 * 3 + 7 * 5 + 5 + 5 * 3 + 3)
    assert [(rung["name"], rung["precision"]) for rung in record["rungs"]] == [("blas", "float32")]
    assert 0 < record["rungs"][0]["error"] < 1e-6


def test_dense_layers_are_those_of_the_study_unless_told_otherwise(run: Run) -> None:
    done = run("ladder", "mlp", "--device", "cpu", "--runs", 1, "--json", "-")
    record = json.loads(done.stdout)
    assert (record["rows"], record["widths"]) == (12_800, [72, 64, 64, 4])


def test_a_wrong_rung_is_exit_code_1(run: Run, problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsenn.backends.ladder import Settled
    from sparsenn.backends.layer_ladder import LayerStage

    monkeypatch.setattr(LayerStage, "settle", lambda self, output: Settled(None, 1.0, correct=False))
    done = run("ladder", "spmspm", "--device", "cpu", "--dataset", problem, "--limit-inputs", 5, "--runs", 1)
    assert done.exit_code == 1
    assert "wrong" in done.stdout
