"""`sparsenn train`, and `sparsenn infer` on what it wrote."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from children import terminal
from typer.testing import Result

from sparsenn.io import read_checkpoint, read_model

Run = Callable[..., Result]
Spawn = Callable[..., "subprocess.Popen[str]"]
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
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert "3 → 12 → 7 → 2" in done.stderr
    assert (record["epochs"], len(record["losses"]), len(record["validation"])) == (12, 12, 12)
    assert record["losses"][-1] < 0.2 * record["losses"][0]
    assert plot.read_bytes().startswith(b"\x89PNG")
    found = read_model(model)
    assert (found.loss, found.classes, found.provenance["data"]) == ("mse", False, "table.npz")
    assert [str(layer.activation) for layer in found.network] == ["tanh", "tanh", "identity"]
    done = run("infer", model, "--inputs", table, "--json", "-", "--device", "cpu")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["value"] == record["validation"][-1]["value"]
    assert (result["rows"], result["accuracy"]) == (300, None)
    assert "mse" in run("infer", model, "--inputs", table).stdout


def test_classes(run: Run, labelled: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.h5"
    done = run("train", labelled, "--classes", *HOW, "--epochs", 10, "--validation", labelled, "--output", model)
    assert done.exit_code == 0, done.output
    assert "cross_entropy" in done.stdout
    done = run("infer", model, "--inputs", labelled, "--json", "-")
    assert json.loads(done.stdout)["accuracy"] > 0.9
    assert "accuracy" in run("infer", model, "--inputs", labelled).stdout


def test_the_same_model_again_and_with_another_kernel(run: Run, table: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.h5" for name in "abc"]
    for path, extra in zip(files, ((), (), ("--kernel", "numba")), strict=True):
        assert run("train", table, *HOW, "--epochs", 3, "--output", path, *extra).exit_code == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    one, other = (read_model(path).network[0].weights for path in files[1:])
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_killed_and_resumed_equals_uninterrupted(spawn: Spawn, table: Path, tmp_path: Path) -> None:
    command = ("train", table, *HOW, "--validation", table)
    whole, resumed, state = (tmp_path / f"{name}.h5" for name in ("whole", "resumed", "state"))
    slow = (*command, "--epochs", 100_000, "--output", resumed, "--checkpoint", state)
    process = spawn(*slow, "--progress")
    assert process.stderr is not None
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
    for finished in (first, second):
        out, err = finished.communicate(timeout=240)
        assert (finished.returncode, err) == (0, "")
    assert f"{done} of them before this run" in out
    assert whole.read_bytes() == resumed.read_bytes()
    left = {path.name for path in tmp_path.iterdir() if not path.name.endswith(".part")}
    assert left - {"cache"} == {"table.npz", "whole.h5", "resumed.h5", "state.h5"}


def test_interrupt_keeps_the_checkpoint(spawn: Spawn, table: Path, tmp_path: Path) -> None:
    files = ("--output", tmp_path / "model.h5", "--checkpoint", tmp_path / "state.h5")
    process = spawn("train", table, *HOW, "--epochs", 100_000, *files, "--progress")
    assert process.stderr is not None
    while not process.stderr.readline().startswith("epoch 3 "):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert err.endswith("error: interrupted\n")
    assert {path.name for path in tmp_path.glob("*.h5")} == {"state.h5"}
    assert len(read_checkpoint(tmp_path / "state.h5").losses) >= 2


@pytest.mark.parametrize(("option", "shown"), [((), True), (("--no-progress",), False)])
def test_progress_on_a_terminal(
    spawn: Spawn, table: Path, tmp_path: Path, option: tuple[str, ...], shown: bool
) -> None:
    files = ("--output", tmp_path / "model.h5")
    environment = {"TERM": "xterm-256color", "COLUMNS": "160"}
    with terminal() as (stream, written):
        process = spawn("train", table, *HOW, "--epochs", 50, *files, *option, stderr=stream, env=environment)
        assert "loss (mse)" in process.communicate(timeout=240)[0]
        text = written()
    assert (b"rows/s" in text and b"50 of 50" in text) == shown
    assert bool(text) == shown


def test_piped_output_has_no_progress(spawn: Spawn, table: Path, tmp_path: Path) -> None:
    process = spawn("train", table, *HOW, "--epochs", 2, "--output", tmp_path / "model.h5", env={"TERM": "xterm"})
    out, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, "")
    assert "\x1b" not in out


def test_divergence(run: Run, table: Path, tmp_path: Path) -> None:
    model, state = tmp_path / "model.h5", tmp_path / "state.h5"
    extra = ("--learning-rate", 1e9, "--epochs", 50, "--output", model, "--checkpoint", state)
    done = run("train", table, *HOW, *extra)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "the training diverged" in done.stderr
    assert not model.exists()
    assert all(np.isfinite(layer.weights).all() for layer in read_checkpoint(state).layers)


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("--output", "model.txt"), ["use .h5, .hdf5"]),
        (("--output", "none/model.h5"), ["the folder none does not exist"]),
        (("--hidden", "5,x"), ["--hidden 5,x", "whole numbers"]),
        (("--hidden", "5,0"), ["--hidden 5,0"]),
        (("--hidden", "99999999"), ["--hidden 99999999"]),
        (("--activation", "softmax"), ["unknown activation 'softmax'"]),
        (("--output-activation", "x"), ["unknown activation 'x'"]),
        (("--epochs", "0"), ["--epochs"]),
        (("--batch-size", "0"), ["--batch-size"]),
        (("--learning-rate", "0"), ["learning rate of 0"]),
        (("--learning-rate", "nan"), ["learning rate is nan"]),
        (("--momentum", "1"), ["momentum of 1"]),
        (("--loss", "hinge"), ["unknown loss 'hinge'"]),
        (("--loss", "cross_entropy"), ["a loss for classes", "--classes"]),
        (("--classes",), ["one-hot"]),
        (("--kernel", "conjured"), ["conjured", "known: "]),
        (("--precision", "float16"), ["cpu does not train in float16"]),
        (("--precision", "int8"), ["unknown precision 'int8'"]),
        (("--device", "abacus"), ["unknown device 'abacus'"]),
        (("--resume",), ["--checkpoint"]),
        (("--target", "x"), ["--target goes with CSV, TSV or Parquet data"]),
        (("--scale", "1/255"), ["unknown scale '1/255'"]),
        (("--checkpoint", "model.h5"), ["name two files"]),
        (("--checkpoint-seconds", "-1"), ["--checkpoint-seconds"]),
        (("--validation", "none.csv"), ["none.csv: no such file"]),
        (("--validation-labels", "none"), ["goes with --validation"]),
        (("--labels", "/dev/null"), ["only IDX images"]),
        (("--labels", "none"), ["none: no such file"]),
        (("--plot", "loss.bmp"), ["use .png, .svg, .pdf"]),
        (("--json", "none/r.json"), ["the folder none does not exist"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_options(
    run: Run,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    fragments: list[str],
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    done = run("train", table, *HOW, "--epochs", 1, "--output", "model.h5", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    text = " ".join(done.stderr.replace("│", " ").split())
    for fragment in fragments:
        assert fragment in text
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.csv", b"1,2\n3\n", "a.csv:2"),
        ("a.csv", b"", "a.csv:1"),
        ("a.h5", b"text", "a.h5"),
        ("a.txt", b"text", "does not say what kind"),
        ("a-images-idx3-ubyte", b"text", "not IDX"),
    ],
)
def test_bad_data(run: Run, tmp_path: Path, name: str, content: bytes, place: str) -> None:
    (tmp_path / name).write_bytes(content)
    done = run("train", tmp_path / name, "--output", tmp_path / "model.h5")
    assert (done.exit_code, done.stdout) == (2, "")
    assert place in done.stderr
    assert not (tmp_path / "model.h5").exists()


def test_infer_tells_models_from_datasets(run: Run, table: Path, problem: Path, labelled: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.h5"
    assert run("train", table, "--epochs", 1, "--output", model, "--device", "cpu").exit_code == 0
    for arguments, fragment in (
        ((model,), "is a model; name the data to run it on (--inputs)"),
        ((model, "--inputs", table, "--layers", 4), "--layers goes with a dataset, not with a model"),
        ((model, "--inputs", table, "--no-verify"), "--no-verify goes with a dataset"),
        ((model, "--inputs", table, "--device", "cpu", "--kernel", "panel"), "unknown cpu kernel for mlp"),
        ((model, "--inputs", table, "--device", "cpu", "--precision", "tf32"), "not multiplied in tf32 on cpu"),
        ((model, "--inputs", labelled, "--targets", 1), "('x', 'y', 'class'); the model takes 3 and then 1 of targets"),
        ((problem, "--inputs", labelled), "not a sparsenn model: it says 'sparsenn dataset'"),
        ((problem, "--classes"), "--classes goes with a model"),
        ((tmp_path / "none.h5", "--inputs", labelled), "no such file"),
    ):
        done = run("infer", *arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert fragment in " ".join(done.stderr.split())


@pytest.mark.parametrize("limit", [(), ("--samples", 1)])
def test_infer_looks_at_widths_before_labels(
    run: Run, labelled: Path, tmp_path: Path, limit: tuple[object, ...]
) -> None:
    model, wide, bad = tmp_path / "model.h5", tmp_path / "wide.csv", tmp_path / "bad.csv"
    assert run("train", labelled, "--classes", "--epochs", 1, "--output", model, "--device", "cpu").exit_code == 0
    wide.write_text("1,2,3,0.25\n")
    bad.write_text("1,2,0.25\n")
    for data, options, fragment in (
        (wide, (), "wide.csv does not fit"),
        (wide, ("--targets", 1), "the table has 4 columns; the model takes 2 and then 1 of targets"),
        (bad, (), "if the last are targets, pass infer --targets 1"),
        (bad, ("--targets", 1), "label 0.25"),
    ):
        done = run("infer", model, "--inputs", data, *options, *limit)
        assert (done.exit_code, done.stdout) == (2, "")
        assert fragment in done.stderr


def test_info_describes_a_model(run: Run, table: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.h5"
    options = ("--hidden", "7,5", "--epochs", 1, "--activation", "tanh", "--device", "cpu")
    assert run("train", table, *options, "--output", model).exit_code == 0
    done = run("info", model)
    text = " ".join(done.stdout.split())
    assert done.exit_code == 0
    assert "model model.h5 network 3 layers" in text
    assert "numbers; loss: mse" in text
    assert text.count("tanh") >= 2
    refused = run("info", model, "--layers", 2)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--layers goes with a dataset, not with a model" in refused.stderr
