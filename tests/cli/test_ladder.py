"""`sparsenn kernels ladder` as its users meet it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from sparsenn.studies.measure import Roofs
from sparsenn.studies.measure.meter import HostMeter

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ceilings that take no time; a number for each time they were measured."""
    times: list[int] = []

    def roofs(self: HostMeter) -> Roofs:
        times.append(1)
        return Roofs(1e10, 1e11, "L3", 1 << 25, {"float32": 1e9})

    monkeypatch.setattr(HostMeter, "roofs", roofs)
    return times


def test_ceilings_are_those_that_roofline_keeps(run: Run, measured: list[int], tmp_path: Path) -> None:
    document = tmp_path / "ladder.json"
    for verb in ("ladder", "roofline", "ladder"):
        done = run(
            "kernels", verb, "gemm", "--device", "cpu", "--sizes", "m=3,k=4,n=5", "--runs", 1, "--json", document
        )
        assert done.exit_code == 0, done.output
    assert len(measured) == 1
    ceilings = json.loads(document.read_text())["ceilings"]
    assert (ceilings["copy_bandwidth"], ceilings["multiply_adds"]) == (1e10, {"float32": 1e9})
    (tmp_path / "cache" / "ceilings.json").write_text("{")
    assert "is not JSON" in run("kernels", "ladder", "gemm", "--device", "cpu", "--sizes", "m=3,k=4,n=5").stderr
    assert len(measured) == 2


def test_all_rungs_are_shown_written_and_drawn(run: Run, problem: Path, tmp_path: Path) -> None:
    document, picture = tmp_path / "ladder.json", tmp_path / "ladder.png"
    options = ("--rows", 20, "--layers", 2, "--runs", 1, "--json", document, "--plot", picture)
    done = run("kernels", "ladder", "spmspm", "--device", "cpu", "--dataset", problem, *options)
    assert done.exit_code == 0, done.output
    record = json.loads(document.read_text())
    names = ["sequential", "scipy", "scatter", "panel"]
    assert [rung["name"] for rung in record["rungs"]] == names
    assert all(name in done.stdout for name in names)
    assert (record["rows"], record["stages"], record["runs"]) == (20, 2, 1)
    assert picture.read_bytes().startswith(b"\x89PNG")
    told = " ".join(done.stdout.split())
    assert "Every row is computed in every layer. Errors are absolute, of outputs; the largest of all layers." in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("spmm",), "unknown ladder 'spmm'"),
        (("sort", "--device", "cpu"), "sort has no kernel for the device cpu"),
        (("spmspm", "--plot", "ladder.gif"), "'.gif' does not name a known file type"),
        (("spmspm", "--json", "nowhere/ladder.json"), "the folder nowhere does not exist"),
        (("spmspm", "--dataset", "nowhere.h5"), "no such file or folder"),
        (("mlp", "--dataset", "radixnet-1024x120", "--neurons", 1024), "--dataset, --neurons: the ladder of mlp"),
        (("mlp", "--widths", "72"), "--widths 72: take two or more whole numbers"),
        (("mlp", "--sweep", "--device", "cpu"), "no cpu kernel for mlp has a number to vary; leave --sweep out"),
        (("mlp", "--sizes", "72,4"), "--sizes: the ladder of mlp takes --widths N,N,..."),
        (("gemm", "--rows", 5), "--rows: the ladder of gemm takes --sizes m,k,n"),
        (
            ("gemm", "--sizes", "5,5"),
            "--sizes 5,5: give m, k, n, whole numbers from 1 to 1,048,576, separated by commas",
        ),
        (("gemm", "--sizes", "m=1048576,k=1048576,n=1", "--device", "cpu"), "take smaller --sizes"),
        (("conv2d", "--sizes", "1,9,9,4"), "--sizes 1,9,9,4: give channels, height, width, filters, side, padding"),
        (
            ("conv2d", "--sizes", "height=5,width=5,side=8,padding=1", "--device", "cpu"),
            "larger than an image of 7 x 7",
        ),
    ],
)
def test_bad_usage_is_refused_with_a_message(run: Run, arguments: tuple[str, ...], message: str) -> None:
    done = run("kernels", "ladder", *arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_dense_layers_are_run_on_random_rows(run: Run, tmp_path: Path) -> None:
    options = ("--device", "cpu", "--runs", 2, "--json", tmp_path / "mlp.json")
    done = run("kernels", "ladder", "mlp", "--rows", 33, "--widths", "7,5,3", "--seed", 4, *options)
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "mlp.json").read_text())
    assert (record["rows"], record["widths"], record["seed"], record["stages"]) == (33, [7, 5, 3], 4, 1)
    assert record["multiply_adds"] == 33 * (7 * 5 + 5 * 3)
    assert record["bytes"] == 4 * (33 * 7 + 33 * 3 + 7 * 5 + 5 + 5 * 3 + 3)
    rungs = [(rung["name"], rung["precision"]) for rung in record["rungs"]]
    assert rungs == [("blas", "float32"), ("register_tiled", "float32")]
    assert all(0 < rung["error"] < 1e-6 for rung in record["rungs"])


def test_a_wrong_rung_is_exit_code_1(run: Run, problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsenn.studies.ladder import Settled
    from sparsenn.studies.spmspm.ladder import LayerStage

    monkeypatch.setattr(LayerStage, "settle", lambda self, output: Settled(None, 1.0, correct=False))
    done = run("kernels", "ladder", "spmspm", "--device", "cpu", "--dataset", problem, "--rows", 5, "--runs", 1)
    assert done.exit_code == 1
    assert "wrong" in done.stdout


def test_a_rung_of_ones_own_on_an_emulated_gpu(run: Run, repository: Path, tmp_path: Path, measured: list[int]) -> None:
    """The files and the command of the page, with smaller sizes."""
    if shutil.which("g++") is None:
        pytest.skip("emulating a kernel takes g++")
    page = (repository / "docs" / "ladders.md").read_text()
    for name, kind in (("my.cu", "cuda"), ("my.py", "python")):
        text, *_ = re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)
        (tmp_path / name).write_text(text)
    (command,) = re.findall(r"^    sparsenn (kernels ladder gemm --device emulated .*)$", page, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-m", "sparsenn", *command.split(), "--sizes", "m=20,k=30,n=10", "--json", "ladder.json"],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "ladder.json").read_text())
    assert [rung["name"] for rung in record["rungs"]][-1] == "my_kernel"
    assert record["ceilings"] is None
    assert "Answers only; nothing is timed." in done.stdout


def test_what_an_emulated_gpu_does_not_do(run: Run, tmp_path: Path) -> None:
    for option in (("--plot", tmp_path / "x.png"), ("--runs", 3)):
        done = run("kernels", "ladder", "gemm", "--device", "emulated", *option)
        assert (done.exit_code, "are timed, not emulated" in done.stderr) == (2, True)
    done = run("kernels", "ladder", "mlp", "--device", "emulated")
    assert done.exit_code == 2
    assert "mlp has no kernel for the device emulated; use --device cpu, cuda or reference" in done.stderr
    done = run("kernels", "ladder", "gemm", "--plugin", tmp_path / "none.py")
    assert (done.exit_code, "none.py" in done.stderr) == (2, True)
