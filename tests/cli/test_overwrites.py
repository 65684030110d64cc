"""No file that is read is overwritten, and no result by another."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from typer.testing import Result

from sparsenn.cli.overwrites import check_apart
from sparsenn.datasets import named
from sparsenn.errors import UsageError
from sparsenn.io import write_model
from sparsenn.layers import Linear
from sparsenn.model import Model
from sparsenn.network import Network

Run = Callable[..., Result]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Path, folder: Path) -> Path:
    """The current folder: a dataset in p.h5 and challenge, a model m.h5, its data in d.h5 and t.csv, a matrix l.tsv."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(problem, "p.h5")
    shutil.copytree(folder, "challenge")
    weights = np.ones((3, 1), np.float32)
    write_model(Path("m.h5"), Model(Network((Linear(weights, np.zeros(1)),)), "mse", False, {}))
    with h5py.File("d.h5", "w") as file:
        file["inputs"], file["targets"] = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)
    Path("t.csv").write_text("1,2,3,4\n" * 4)
    Path("l.tsv").write_text("1\t1\t1\n")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("infer p.h5 --output p.h5", ["--output p.h5", "DATASET p.h5"]),
        ("infer p.h5 --json ./p.h5", ["--json p.h5", "DATASET p.h5"]),
        ("infer challenge --json challenge/sparse-images-1024.tsv", ["--json", "DATASET challenge"]),
        ("infer challenge --output challenge/neuron1024-l6-categories.tsv", ["--output", "DATASET challenge"]),
        ("infer challenge --json challenge/neuron1024/n1024-l1.tsv", ["--json", "DATASET challenge"]),
        ("infer m.h5 --inputs d.h5 --output m.h5", ["--output m.h5", "DATASET m.h5"]),
        ("infer m.h5 --inputs d.h5 --output d.h5", ["--output d.h5", "--inputs d.h5"]),
        ("infer p.h5 --json q.svg --plot q.svg", ["--json q.svg", "--plot q.svg"]),
        ("infer p.h5 --json q.h5 --output q.h5", ["--json q.h5", "--output q.h5"]),
        ("infer p.h5 --json q.json --trace q.json", ["--json q.json", "--trace q.json"]),
        ("train d.h5 --output d.h5", ["--output d.h5", "DATA d.h5"]),
        ("train d.h5 --output x.h5 --checkpoint d.h5", ["--checkpoint d.h5", "DATA d.h5"]),
        ("train t.csv --validation d.h5 --output d.h5", ["--output d.h5", "--validation d.h5"]),
        ("train t.csv --labels p.h5 --output p.h5", ["--output p.h5", "--labels p.h5"]),
        ("train t.csv --output x.h5 --json x.h5", ["--output x.h5", "--json x.h5"]),
        ("train t.csv --output x.h5 --checkpoint ../{here}/x.h5", ["--output x.h5", "--checkpoint"]),
        ("convert p.h5 p.h5 --samples 3", ["DST p.h5", "SRC p.h5"]),
        ("convert challenge challenge/ --samples 3", ["DST challenge", "SRC challenge"]),
        ("convert l.tsv l.tsv --shape 1x1", ["DST l.tsv", "SRC l.tsv"]),
        ("kernels ladder spmspm --dataset p.h5 --json p.h5", ["--json p.h5", "--dataset p.h5"]),
        ("kernels ladder gemm --json a.svg --plot a.svg", ["--json a.svg", "--plot a.svg"]),
        ("kernels roofline spmspm --dataset p.h5 --json p.h5", ["--json p.h5", "--dataset p.h5"]),
    ],
)
def test_refused_and_nothing_is_touched(run: Run, place: Path, line: str, named: list[str]) -> None:
    before = contents(place)
    done = run(*line.format(here=place.name).split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert all(part in done.stderr for part in named), done.stderr
    assert contents(place) == before


def test_images_that_a_problem_is_generated_from(run: Run, tmp_path: Path) -> None:
    images = tmp_path / "train-images-idx3-ubyte.gz"
    images.write_bytes(gzip.compress(b""))
    os.link(images, tmp_path / "made.h5")
    done = run("generate", tmp_path / "made.h5", "--mnist", tmp_path)
    assert done.exit_code == 2
    assert "DST" in done.stderr
    assert "--mnist" in done.stderr


@pytest.mark.parametrize("kind", ["mnist", "digits"])
def test_a_named_dataset_is_a_file_in_the_cache(run: Run, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "cache" / "datasets"
    folder.mkdir(parents=True)
    target = folder / f"radixnet-1024x120-{kind}-v{named.GENERATION}.h5"
    target.write_bytes(b"kept")
    done = run("infer", "radixnet-1024x120", "--output", target)
    assert done.exit_code == 2
    assert "DATASET radixnet-1024x120" in done.stderr
    assert target.read_bytes() == b"kept"


@pytest.mark.parametrize("spelling", ["a/../data", "./data", "soft", "hard", "{here}/data"])
def test_one_file_has_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "data").write_text("")
    (tmp_path / "soft").symlink_to("data")
    os.link("data", "hard")
    name = spelling.format(here=tmp_path)
    with pytest.raises(UsageError, match=r"--output .* would overwrite DATA data"):
        check_apart({"DATA": "data"}, {"--output": Path(name)})
    with pytest.raises(UsageError, match=r"--json data and --output .* are one file"):
        check_apart({}, {"--json": Path("data"), "--output": Path(name)})


@pytest.mark.parametrize("spelling", ["a/../new", "soft", "{here}/new"])
def test_also_before_the_file_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "soft").symlink_to("new")
    with pytest.raises(UsageError, match=r"--json new and --output .* are one file"):
        check_apart({}, {"--json": Path("new"), "--output": Path(spelling.format(here=tmp_path))})


def test_stdout_is_no_file_and_files_of_their_own_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "found.tsv").write_text("1")
    check_apart({"DATA": "-", "--labels": None}, {"--json": Path("-"), "--output": None})
    check_apart({"DATA": "data"}, {"--json": Path("a"), "--output": Path("b"), "--plot": None})
    check_apart({"DATA": "folder"}, {"--output": Path("folder/found.tsv")})
    check_apart({"DATA": "folder"}, {"--output": Path("folder/neuron8-l2-categories.tsv")})  # a new one
