"""`sparsenn kernels tune` as its users meet it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from sparsenn.studies.tuning import tunable_named

Run = Callable[..., Result]
Spawn = Callable[..., "subprocess.Popen[str]"]

QUICK = ("--device", "cpu", "--layers", 1, "--samples", 20, "--runs", 1)
FEW = (*QUICK, "--values", "lanes=8,16", "--values", "chunk_rows=2048")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Where the table of the programs that a test runs is."""
    return tmp_path / "cache" / "tuning.json"


def test_every_choice_is_shown_and_the_best_is_kept(run: Run, problem: Path, kept: Path, tmp_path: Path) -> None:
    done = run("kernels", "tune", "panel", "--dataset", problem, *QUICK, "--json", tmp_path / "tune.json")
    assert done.exit_code == 0, done.output
    choices = list(tunable_named("panel", "cpu").tunable.combinations())
    record = json.loads((tmp_path / "tune.json").read_text())
    assert (record["operation"], record["rung"], record["runs"]) == ("spmspm", "panel", 1)
    (found,) = record["found"]
    assert found["sizes"] == "width 1024, rows 16-31"
    assert [trial["parameters"] for trial in found["trials"]] == [{}, *choices]
    assert all(trial["correct"] and trial["seconds"] > 0 for trial in found["trials"])
    (best,) = record["stored"]
    assert best["seconds"] == min(trial["seconds"] for trial in found["trials"])
    assert json.loads(kept.read_text())["entries"] == record["stored"]
    lines = done.stdout.splitlines()
    assert sum("lanes 64, chunk_rows" in line for line in lines) >= 3
    assert sum("as it comes" in line for line in lines) >= 1
    assert any("width 1024, rows 16-31" in line and "speed-up" not in line for line in lines)


def test_a_cache_that_cannot_be_written_to_is_refused_before_the_work(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    (tmp_path / "damaged.h5").write_text("is not read")
    done = run("kernels", "tune", "panel", "--dataset", tmp_path / "damaged.h5", *FEW)
    assert done.exit_code == 2
    assert "set SPARSENN_CACHE" in done.stderr


def test_kept_numbers_are_shown_and_forgotten(run: Run, problem: Path, kept: Path) -> None:
    assert "No parameters are stored" in run("kernels", "tune", "--show").stdout
    assert run("kernels", "tune", "panel", "--dataset", problem, *FEW).exit_code == 0
    shown = run("kernels", "tune", "--show", "--json", "-")
    (entry,) = json.loads(shown.stdout)["stored"]
    assert entry["rung"] == "panel"
    assert "width 1024" in run("kernels", "tune", "--show", "panel").stdout
    for filters in (("scipy",), ("--operation", "conv2d")):
        assert "No parameters are stored" in run("kernels", "tune", "--show", *filters).stdout
        assert "0 entries dropped" in run("kernels", "tune", "--forget", *filters).stdout
    assert "1 entry dropped" in run("kernels", "tune", "panel", "--forget").stdout
    assert json.loads(kept.read_text())["entries"] == []


def test_infer_uses_what_was_kept(run: Run, problem: Path, monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    from sparsenn.backends.cpu import panel

    options = (
        "--device",
        "cpu",
        "--kernel",
        "panel",
        "--no-merging",
        "--no-deduplication",
        "--no-compaction",
        "--samples",
        20,
        "--layers",
        1,
    )
    assert run("kernels", "tune", "panel", "--dataset", problem, *FEW).exit_code == 0
    table = json.loads(kept.read_text())
    table["entries"][0]["parameters"] = {"lanes": 32, "chunk_rows": 512}
    kept.write_text(json.dumps(table))
    asked = []
    counted = panel._stride
    monkeypatch.setattr(panel, "_stride", lambda *given: asked.append(given[2]) or counted(*given))
    assert run("infer", problem, *options).exit_code == 0
    assert set(asked) - {None} == {32}  # estimates ask for no number of lanes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "which kernel? Those with parameters to tune on cpu: conv_im2col_blas (conv2d), panel (spmspm)"),
        (("panel", "--operation", "conv2d"), "unknown cpu kernel for conv2d to tune 'panel'"),
        (("sequential",), "unknown cpu kernel that can be tuned 'sequential'"),
        (("coarsened",), "unknown cpu kernel that can be tuned 'coarsened'"),
        (("panel", "--show", "--forget"), "--show and --forget cannot be combined"),
        (("panel", "--dataset", "nowhere.h5"), "no such file or folder"),
        (("panel", "--json", "nowhere/tune.json"), "the folder nowhere does not exist"),
        (("panel", "--device", "gpu"), "unknown device 'gpu'"),
        (("panel", "--runs", 0), "--runs"),
        (("panel", "--values", "lanes"), "--values lanes: name a parameter and whole numbers to try"),
        (("panel", "--values", "lanes=8,"), "--values lanes=8,: name a parameter"),
        (("panel", "--values", f"lanes={10**18}"), "000: name a parameter"),
        (("panel", "--values", "lanes=9"), "lanes of 9 cannot be tried; panel takes 8, 16"),
        (("panel", "--values", "width=8"), "unknown number of panel 'width'"),
    ],
)
def test_bad_usage_is_refused_with_a_message(run: Run, arguments: tuple[object, ...], message: str) -> None:
    options = () if "--device" in arguments else ("--device", "cpu")
    done = run("kernels", "tune", *arguments, *options)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_a_wrong_choice_is_exit_code_1(run: Run, problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsenn.studies.ladder import Settled
    from sparsenn.studies.spmspm.ladder import LayerStage

    monkeypatch.setattr(LayerStage, "settle", lambda self, output: Settled(None, 1.0, correct=False))
    done = run("kernels", "tune", "panel", "--dataset", problem, *FEW)
    assert done.exit_code == 1
    assert "wrong" in done.stdout
    assert "No parameters are stored" in run("kernels", "tune", "--show").stdout


def test_a_damaged_table_is_a_warning_and_the_run_goes_on(spawn: Spawn, problem: Path, kept: Path) -> None:
    kept.parent.mkdir()
    kept.write_text('{"version": 1, "entries": [')
    for arguments in (("kernels", "tune", "--show"), ("infer", problem, "--device", "cpu")):
        process = spawn(*arguments)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        assert err.startswith(f"warning: kept numbers are not used: {kept}: is not JSON")
        assert err.count("\n") == 1
        assert "PASSED" in out or "No parameters are stored" in out
    process = spawn("kernels", "tune", "panel", "--forget")
    assert "is not JSON" in process.communicate(timeout=240)[1]
    assert process.returncode == 2
    process = spawn("kernels", "tune", "--forget")
    assert process.communicate(timeout=240) == ("0 entries dropped.\n", "")
    assert process.returncode == 0
    assert json.loads(kept.read_text()) == {"version": 1, "entries": []}


def test_tuning_begins_a_damaged_table_anew(spawn: Spawn, problem: Path, kept: Path) -> None:
    kept.parent.mkdir()
    kept.write_text("[]")
    process = spawn("kernels", "tune", "panel", "--dataset", problem, *FEW)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert err.count("warning: ") == 1
    assert "Stored:" in out
    assert len(json.loads(kept.read_text())["entries"]) == 1
    assert [item.name for item in kept.parent.iterdir()] == [kept.name]
