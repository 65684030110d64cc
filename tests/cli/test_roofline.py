"""`sparsenn kernels roofline` as its users meet it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Refused, Run

from sparsenn.studies.ladder import _LADDERS, ladder_for, ladders
from sparsenn.studies.measure import Roofs

MLP = ("kernels", "roofline", "mlp", "--device", "cpu", "--rows", 33, "--widths", "7,5,3", "--runs", 2)


pytestmark = pytest.mark.usefixtures("measured")


def test_predictions_stand_beside_measurements(run: Run, tmp_path: Path) -> None:
    document, picture = tmp_path / "roofline.json", tmp_path / "roofline.svg"
    done = run(*MLP, "--json", document, "--plot", picture)
    record = json.loads(document.read_text())
    assert record["ceilings"]["multiply_adds"] == {"float32": 1e11}
    assert record["ceilings"]["cache_bandwidth"] == 1e11
    assert record["ceilings"]["device"]
    (ladder,) = record["ladders"]
    assert (ladder["operation"], ladder["rows"], ladder["runs"], ladder["widths"]) == ("mlp", 33, 2, [7, 5, 3])
    rung = ladder["rungs"][-1]
    moved, operations = 4 * (33 * 7 + 33 * 3 + 7 * 5 + 5 + 5 * 3 + 3), 2 * 33 * (7 * 5 + 5 * 3)
    assert (rung["name"], rung["model"]) == ("register_tiled", "compulsory")
    assert (rung["bytes"], rung["operations"]) == (moved, operations)
    assert rung["intensity"] == operations / moved
    assert rung["predicted_seconds"] == max(moved / 1e10, operations / 2e11)
    assert (rung["bound"], rung["source"]) == ("memory", "memory")
    assert rung["measured_seconds"] > 0
    assert rung["operations_per_second"] == operations / rung["measured_seconds"]
    text = " ".join(done.stdout.split())
    assert "memory bandwidth 10 GB/s L3 bandwidth 100 GB/s" in text
    assert "float32 rate 0.2 TFLOP/s" in text
    assert "compulsory" in text
    drawn = picture.read_text()
    assert drawn.startswith("<?xml")
    assert "memory, 10 GB/s" in drawn  # each text is a comment beside its outlines


def test_layers_of_a_dataset_are_added_up(run: Run, problem: Path) -> None:
    options = ("--dataset", problem, "--rows", 20, "--layers", 2, "--runs", 1, "--json", "-")
    done = run("kernels", "roofline", "spmspm", "--device", "cpu", *options)
    (ladder,) = json.loads(done.stdout)["ladders"]
    assert [rung["name"] for rung in ladder["rungs"]] == ["sequential", "scipy", "scatter", "panel"]
    assert ladder["stages"] == 2
    assert {rung["bytes"] for rung in ladder["rungs"]} == {ladder["bytes"]}
    assert {rung["operations"] for rung in ladder["rungs"]} == {2 * ladder["multiply_adds"]}
    assert "sequential" in done.stderr


def test_without_an_operation_all_ladders_of_the_device_are_shown(
    run: Run, problem: Path, monkeypatch: pytest.MonkeyPatch, roofs: Roofs
) -> None:
    from sparsenn.studies import run as ladder

    asked = []

    def recorded(operation: str, *given: object, **how: object) -> object:
        asked.append(operation)
        return ladder.LadderResult(
            operation, "test", "stage", 1, 1, 1, roofs, 1.0, 10, 0, (), left_out=(("all", "none"),)
        )

    monkeypatch.setattr(ladder, "run_ladder", recorded)
    done = run("kernels", "roofline", "--device", "cpu", "--dataset", problem, "--rows", 5, "--json", "-")
    expected = [name for name in ladders() if ladder_for(name).rungs.get("cpu")]
    assert asked == expected
    assert {"spmspm", "mlp"} <= set(asked)
    assert [entry["operation"] for entry in json.loads(done.stdout)["ladders"]] == expected


@pytest.fixture
def small_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random problems of the ladders that take no time."""
    sizes = {"conv2d": (2, (1, 9, 9, 2, 3, 0)), "gemm": (0, (9, 8, 7)), "mlp": (9, (5, 4)), "train": (9, (5, 4))}
    for operation, (rows, widths) in sizes.items():
        monkeypatch.setitem(_LADDERS, operation, replace(ladder_for(operation), rows=rows, sizes=widths))


@pytest.mark.usefixtures("small_problems")
def test_the_problems_of_all_ladders_can_be_run(run: Run, problem: Path) -> None:
    done = run("kernels", "roofline", "--device", "cpu", "--dataset", problem, "--rows", 5, "--runs", 1, "--json", "-")
    record = json.loads(done.stdout)
    assert {ladder["operation"] for ladder in record["ladders"]} >= {"conv2d", "gemm", "mlp", "spmspm", "train"}
    assert record["failed"] == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mlp", "--device", "cuda:99"), "use device cpu"),
        (("mlp", "--dataset", "radixnet-1024x120"), "--dataset: the ladder of mlp takes a random problem"),
        (("spmspm", "--widths", "7,5", "--device", "cpu"), "--widths: the ladder of spmspm takes a dataset"),
        (("mlp", "--runs", 0), "--runs"),
        (("--widths", "7,5", "--sizes", "m=1", "--device", "cpu"), "--widths, --sizes: name the OPERATION"),
    ],
)
def test_bad_usage_is_refused_with_a_message(refused: Refused, arguments: tuple[object, ...], message: str) -> None:
    refused(("kernels", "roofline", *arguments), message)


def test_a_wrong_rung_is_exit_code_1(run: Run, problem: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sparsenn.studies.ladder import Settled
    from sparsenn.studies.spmspm.ladder import LayerStage

    monkeypatch.setattr(LayerStage, "settle", lambda self, output: Settled(None, 1.0, correct=False))
    options = ("--dataset", problem, "--rows", 5, "--runs", 1, "--plot", tmp_path / "a.png")
    assert "wrong" in run("kernels", "roofline", "spmspm", "--device", "cpu", *options, code=1).stdout
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
