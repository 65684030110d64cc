"""`sparsenn train`, and `sparsenn infer` on what it wrote."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from command_line import Refused, Run, Spawn, ended

from sparsenn.io import read_checkpoint, read_model

HOW = ("--hidden", "12,7", "--learning-rate", 0.05, "--momentum", 0.9, "--device", "cpu")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """300 rows of 3 inputs and 2 targets, in NumPy's form."""
    rng = np.random.default_rng(11)
    inputs = rng.uniform(-1, 1, (300, 3)).astype(np.float32)
    path = tmp_path / "table.npz"
    np.savez(path, inputs=inputs, targets=np.tanh(inputs @ rng.normal(size=(3, 2))).astype(np.float32))
    return path


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """200 rows of 2 inputs and their class, in CSV."""
    rng = np.random.default_rng(12)
    labels = rng.integers(0, 3, 200)
    inputs = rng.normal(size=(200, 2)) + 4 * np.array([[0, 0], [1, 0], [0, 1]])[labels]
    path = tmp_path / "table.csv"
    lines = [f"{x:.6g},{y:.6g},{label}\n" for (x, y), label in zip(inputs, labels, strict=True)]
    path.write_text("x,y,class\n" + "".join(lines))
    return path


def test_train_then_infer(run: Run, table: Path, tmp_path: Path) -> None:
    model, plot = tmp_path / "model.h5", tmp_path / "loss.png"
    files = ("--output", model, "--plot", plot, "--json", "-", "--validation", table)
    done = run("train", table, *HOW, "--activation", "tanh", "--epochs", 12, *files)
    record = json.loads(done.stdout)
    assert "3 → 12 → 7 → 2" in done.stderr
    assert (record["epochs"], len(record["losses"]), len(record["validation"])) == (12, 12, 12)
    assert record["losses"][-1] < 0.2 * record["losses"][0]
    assert plot.read_bytes().startswith(b"\x89PNG")
    found = read_model(model)
    assert (found.loss, found.classes, found.provenance["data"]) == ("mse", False, "table.npz")
    assert [str(layer.activation) for layer in found.network] == ["tanh", "tanh", "identity"]
    done = run("predict", model, table, "--json", "-", "--device", "cpu")
    result = json.loads(done.stdout)
    assert result["value"] == record["validation"][-1]["value"]
    assert (result["rows"], result["accuracy"]) == (300, None)
    assert "mse" in run("predict", model, table).stdout


def test_classes(run: Run, labelled: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.h5"
    done = run("train", labelled, "--classes", *HOW, "--epochs", 10, "--validation", labelled, "--output", model)
    assert "cross_entropy" in done.stdout
    done = run("predict", model, labelled, "--json", "-")
    assert json.loads(done.stdout)["accuracy"] > 0.9
    assert "accuracy" in run("predict", model, labelled, "--targets", 1).stdout


def test_killed_and_resumed_equals_uninterrupted(spawn: Spawn, table: Path, tmp_path: Path) -> None:
    command = ("train", table, *HOW, "--validation", table)
    whole, resumed, state = (tmp_path / f"{name}.h5" for name in ("whole", "resumed", "state"))
    slow = (*command, "--epochs", 100_000, "--output", resumed, "--checkpoint", state)
    process = spawn(*slow, "--progress")
    while not process.stderr.readline().startswith("epoch 5 "):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=240)
    assert not resumed.exists()
    done = len(read_checkpoint(state).losses)
    assert done >= 5
    enough = (*command, "--epochs", done + 5)
    first = spawn(*enough, "--output", whole)
    second = spawn(*enough, "--output", resumed, "--checkpoint", state, "--resume")
    for process in (first, second):
        code, out, err = ended(process)
        assert (code, err) == (0, "")
    assert f"{done} of them before this run" in out
    assert whole.read_bytes() == resumed.read_bytes()
    left = {path.name for path in tmp_path.iterdir() if not path.name.endswith(".part")}
    assert left - {"cache"} == {"table.npz", "whole.h5", "resumed.h5", "state.h5"}


def test_interrupt_keeps_the_checkpoint(spawn: Spawn, table: Path, tmp_path: Path) -> None:
    files = ("--output", tmp_path / "model.h5", "--checkpoint", tmp_path / "state.h5")
    process = spawn("train", table, *HOW, "--epochs", 100_000, *files, "--progress")
    while not process.stderr.readline().startswith("epoch 3 "):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130
    assert err.endswith("error: interrupted\n")
    assert {path.name for path in tmp_path.glob("*.h5")} == {"state.h5"}
    assert len(read_checkpoint(tmp_path / "state.h5").losses) >= 2


def test_divergence(run: Run, table: Path, tmp_path: Path) -> None:
    model, state = tmp_path / "model.h5", tmp_path / "state.h5"
    extra = ("--learning-rate", 1e9, "--epochs", 50, "--output", model, "--checkpoint", state)
    done = run("train", table, *HOW, *extra, code=2)
    assert "the training diverged" in done.stderr
    assert not model.exists()
    assert all(np.isfinite(layer.weights).all() for layer in read_checkpoint(state).layers)


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("--output", "model.txt"), ["use .h5, .hdf5"]),
        (("--hidden", "5,0"), ["--hidden 5,0"]),
        (("--activation", "softmax"), ["unknown activation 'softmax'"]),
        (("--epochs", "0"), ["--epochs"]),
        (("--learning-rate", "0"), ["learning rate of 0"]),
        (("--loss", "hinge"), ["unknown loss 'hinge'"]),
        (("--loss", "cross_entropy"), ["a loss for classes", "--classes"]),
        (("--classes",), ["one-hot"]),
        (("--kernel", "conjured"), ["conjured", "known: "]),
        (("--precision", "float16"), ["cpu does not train in float16"]),
        (("--resume",), ["--checkpoint"]),
        (("--targets", "x"), ["--targets goes with CSV, TSV or Parquet data"]),
        (("--checkpoint", "model.h5"), ["name two files"]),
        (("--validation", "none.csv"), ["none.csv: no such file"]),
        (("--validation-labels", "none"), ["go with --validation"]),
        (("--labels", "/dev/null"), ["only IDX images"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_options(refused: Refused, table: Path, arguments: tuple[str, ...], fragments: list[str]) -> None:
    refused(("train", table, *HOW, "--epochs", 1, "--output", "model.h5", *arguments), *fragments)


def test_predict_takes_models_and_infer_datasets(
    run: Run, refused: Refused, table: Path, problem: Path, folder: Path, labelled: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model.h5"
    run("train", table, "--epochs", 1, "--output", model, "--device", "cpu")
    for arguments, fragment in (
        (("infer", model), f"run it with sparsenn predict {model} ROWS"),
        (("challenge", "run", model), "is a model, not a dataset"),
        (("predict", problem, table), "a dataset is run with sparsenn challenge run"),
        (("predict", folder, table), "a dataset is run with sparsenn challenge run"),
        (("predict", "radixnet-1024x120", table), "a dataset is run with sparsenn challenge run"),
        (("predict", labelled, model), "give the model first, then the rows"),
        (("predict", model), "missing argument 'ROWS'"),
        (("predict", model, table, "--layers", 4), "no such option"),
        (("predict", model, table, "--device", "cpu", "--precision", "tf32"), "not multiplied in tf32 on cpu"),
        (("predict", model, labelled, "--targets", 1), "('x', 'y', 'class'); the model takes 3 and then 1 of targets"),
        (("predict", tmp_path / "none.h5", table), "no such file"),
    ):
        refused(arguments, fragment)
