"""`sparsenn info` and `sparsenn kernels`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Refused, Run

from sparsenn import find_structure, radixnet
from sparsenn.backends import operations
from sparsenn.io import Dataset, write_model
from sparsenn.model import Model
from sparsenn.studies.ladder import listing


@pytest.mark.parametrize("source", ["problem", "folder"])
def test_info(run: Run, request: pytest.FixtureRequest, dataset: Dataset, source: str) -> None:
    done = run("info", request.getfixturevalue(source))
    for fact in (
        "6 layers, 1,024 inputs → 1,024 outputs",
        "196,608, density 3.12 %",
        f"200 × 1,024, {dataset.inputs.nnz:,} non-zeros",
        f"{dataset.truth.size} categories",
        "all 0.0625",
        "all -0.3",
        "relu clipped at 32",
        "1–6",
        "provenance",
    ):
        assert fact in done.stdout


def test_info_about_the_structure_of_a_model(run: Run, tmp_path: Path) -> None:
    network = radixnet(64, 2)
    write_model(tmp_path / "model.h5", Model(network, "mse", False, {}))
    done = run("info", tmp_path / "model.h5")
    told = " ".join(done.stdout.split())
    assert " ".join(f"structure {find_structure(network)}".split()) in told
    assert "structure" not in run("info", MODEL).stdout


MODEL = Path(__file__).parents[2] / "datasets" / "lenet86-pruned.h5"


def test_plan_of_a_model(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    done = run("info", MODEL, "--plan", "--rows", 1000, "--device", "cpu", "--json", target)
    for fact in ("planned for 1,000 rows", "density", "left out", "10.0 %", "conv_direct", "4 × 80 × 80"):
        assert fact in done.stdout
    record = json.loads(target.read_text())
    assert record["rows"] == 1000
    assert [layer["kernel"] for layer in record["per_layer"]][-1] == "softmax"
    alone = run("info", MODEL, "--plan", "--rows", 1000, "--device", "cpu", "--json", "-")
    assert json.loads(alone.stdout)["per_layer"] == record["per_layer"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rows", 5), "go with --plan"),
        (("--json", "-"), "go with --plan"),
        (("--plan", "--rows", 0), "--rows"),
        (("--plan", "--device", "toaster"), "toaster"),
        (("--plan", "--precision", "bf17"), "bf17"),
        (("--plan", "--json", MODEL), "would overwrite"),
        (("--plan", "--layers", 2), "go with a dataset"),
    ],
)
def test_plan_refuses(refused: Refused, arguments: tuple[object, ...], message: str) -> None:
    refused(("info", MODEL, *arguments), message)


@pytest.mark.parametrize("option", [("--plan",), ("--prune", 0.5)])
def test_what_goes_with_models_is_refused_for_a_dataset(
    refused: Refused, problem: Path, option: tuple[object, ...]
) -> None:
    refused(("info", problem, *option), "go with a model")


def test_a_pruned_model_is_planned_as_such_and_said_to_be(run: Run) -> None:
    done = run("info", MODEL.with_name("lenet86.h5"), "--plan", "--prune", 0.05, "--device", "cpu")
    assert "weights were set to zero" in done.stdout
    assert "not retrained and loses accuracy" in " ".join(done.stdout.split())
    assert "sparse" in done.stdout
    assert "5.00 %" in done.stdout


@pytest.mark.parametrize("operation", [None, *operations()])
def test_kernels_are_those_of_the_registry(run: Run, operation: str | None) -> None:
    done = run("kernels", *([operation] if operation else []))
    listed = [line for line in done.stdout.splitlines() if line.startswith("│")]
    names = [line.split("│")[2].strip() for line in listed]
    assert [name for name in names if name] == [kernel.name for kernel in listing(operation)]


def test_kernels_are_compiled_on_demand_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("sparsenn.cli.compilation.compile_kernels", lambda report: calls.append(report))
    plain = run("kernels")
    assert not calls
    compiled = run("kernels", "--compile")
    assert (len(calls), compiled.stdout) == (1, plain.stdout)
