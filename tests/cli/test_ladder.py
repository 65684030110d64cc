"""`sparsenn kernels ladder` as its users meet it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from command_line import Refused, Run, Spawn, ended

pytestmark = pytest.mark.usefixtures("measured")


def test_ceilings_are_those_that_roofline_keeps(run: Run, measured: list[int], tmp_path: Path) -> None:
    document = tmp_path / "ladder.json"
    for verb in ("ladder", "roofline", "ladder"):
        run("kernels", verb, "gemm", "--device", "cpu", "--sizes", "m=3,k=4,n=5", "--runs", 1, "--json", document)
    assert len(measured) == 1
    ceilings = json.loads(document.read_text())["ceilings"]
    assert (ceilings["copy_bandwidth"], ceilings["multiply_adds"]) == (1e10, {"float32": 1e11})
    (tmp_path / "cache" / "ceilings.json").write_text("{")
    warned = run("kernels", "ladder", "gemm", "--device", "cpu", "--sizes", "m=3,k=4,n=5", "--json", "-")
    assert "is not JSON" in warned.stderr
    assert len(measured) == 2


def test_all_rungs_are_shown_written_and_drawn(run: Run, problem: Path, tmp_path: Path) -> None:
    document, picture = tmp_path / "ladder.json", tmp_path / "ladder.png"
    options = ("--rows", 20, "--layers", 2, "--runs", 1, "--json", document, "--plot", picture)
    done = run("kernels", "ladder", "spmspm", "--device", "cpu", "--dataset", problem, *options)
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
        (("gemm", "--device", "emulated", "--plot", "x.png"), "are timed, not emulated"),
        (("gemm", "--device", "emulated", "--runs", 3), "are timed, not emulated"),
        (("mlp", "--device", "emulated"), "mlp has no kernel for the device emulated; use --device cpu, cuda or"),
        (("gemm", "--plugin", "none.py"), "none.py"),
    ],
)
def test_bad_usage_is_refused_with_a_message(refused: Refused, arguments: tuple[str, ...], message: str) -> None:
    refused(("kernels", "ladder", *arguments), message)


def test_dense_layers_are_run_on_random_rows(run: Run, tmp_path: Path) -> None:
    options = ("--device", "cpu", "--runs", 2, "--json", tmp_path / "mlp.json")
    run("kernels", "ladder", "mlp", "--rows", 33, "--widths", "7,5,3", "--seed", 4, *options)
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
    how = ("--device", "cpu", "--dataset", problem, "--rows", 5, "--runs", 1)
    assert "wrong" in run("kernels", "ladder", "spmspm", *how, code=1).stdout


def test_a_rung_of_ones_own_on_an_emulated_gpu(spawn: Spawn, repository: Path, tmp_path: Path) -> None:
    """The files and the command of the page, with smaller sizes."""
    if shutil.which("g++") is None:
        pytest.skip("emulating a kernel takes g++")
    page = (repository / "docs" / "ladders.md").read_text()
    for name, kind in (("my.cu", "cuda"), ("my.py", "python")):
        text, *_ = re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)
        (tmp_path / name).write_text(text)
    (command,) = re.findall(r"^    sparsenn (kernels ladder gemm --device emulated .*)$", page, re.MULTILINE)
    sizes = ("--sizes", "m=20,k=30,n=10", "--json", "ladder.json")
    code, out, err = ended(spawn(*command.split(), *sizes, cwd=tmp_path))
    assert code == 0, err
    record = json.loads((tmp_path / "ladder.json").read_text())
    assert [rung["name"] for rung in record["rungs"]][-1] == "my_kernel"
    assert record["ceilings"] is None
    assert "Answers only; nothing is timed." in out
