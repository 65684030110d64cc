"""Files are refused before the work begins: missing, not writable, or about to be overwritten."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import h5py
import numpy as np
import pytest
from command_line import Refused

from sparsenn.cli.files import check_files
from sparsenn.datasets import named
from sparsenn.errors import ResourceError, UsageError
from sparsenn.io import write_model
from sparsenn.layers import Linear
from sparsenn.model import Model
from sparsenn.network import Network

SUFFIXES = (".tsv", ".h5")


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


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("infer p.h5 --output p.h5", ["--output p.h5", "DATASET p.h5"]),
        ("infer challenge --output challenge/neuron1024-l6-categories.tsv", ["--output", "DATASET challenge"]),
        ("infer challenge --json challenge/neuron1024/n1024-l1.tsv", ["--json", "DATASET challenge"]),
        ("predict m.h5 d.h5 --output d.h5", ["--output d.h5", "ROWS d.h5"]),
        ("infer p.h5 --json q.svg --plot q.svg", ["--json q.svg", "--plot q.svg"]),
        ("train d.h5 --output d.h5", ["--output d.h5", "DATA d.h5"]),
        ("train t.csv --validation d.h5 --output d.h5", ["--output d.h5", "--validation d.h5"]),
        ("train t.csv --labels p.h5 --output p.h5", ["--output p.h5", "--labels p.h5"]),
        ("train t.csv --output x.h5 --checkpoint ../{here}/x.h5", ["--output x.h5", "--checkpoint"]),
        ("challenge convert p.h5 p.h5 --limit-inputs 3", ["DST p.h5", "SRC p.h5"]),
        ("challenge convert challenge challenge/ --limit-inputs 3", ["DST challenge", "SRC challenge"]),
        ("kernels ladder spmspm --dataset p.h5 --json p.h5", ["--json p.h5", "--dataset p.h5"]),
    ],
)
def test_refused_and_nothing_is_touched(refused: Refused, place: Path, line: str, named: list[str]) -> None:
    refused(line.format(here=place.name).split(), *named)


@pytest.mark.parametrize("kind", ["mnist", "digits"])
def test_a_named_dataset_is_a_file_in_the_cache(refused: Refused, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "cache" / "datasets"
    folder.mkdir(parents=True)
    target = folder / f"radixnet-1024x120-{kind}-v{named.GENERATION}.h5"
    target.write_bytes(b"kept")
    refused(("infer", "radixnet-1024x120", "--output", target), "DATASET radixnet-1024x120")


@pytest.mark.parametrize("spelling", ["a/../data", "./data", "soft", "hard", "{here}/data"])
def test_one_file_has_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "data").write_text("")
    (tmp_path / "soft").symlink_to("data")
    os.link("data", "hard")
    name = Path(spelling.format(here=tmp_path))
    with pytest.raises(UsageError, match=r"--output .* would overwrite DATA data"):
        check_files({"DATA": Path("data")}, {"--output": name}, ())
    with pytest.raises(UsageError, match=r"--json data and --output .* are one file"):
        check_files({}, {"--json": Path("data"), "--output": name}, ())


def test_files_that_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for name in ("data", "old.H5"):
        Path(name).write_text("old")
    Path("folder").mkdir()
    Path("folder/found.tsv").write_text("1")
    for name in ("-", "report", "data", "/dev/stdout", "/dev/fd/2", "/dev/null", "pipe"):
        check_files({"--labels": None}, {"--json": Path(name), "--output": None})
    for name in ("new.tsv", "new.H5", "old.H5"):
        check_files({"DATA": Path("data")}, {"--output": Path(name), "--json": Path("a"), "--plot": None}, SUFFIXES)
    check_files({"DATA": "folder"}, {"--output": Path("folder/found.tsv")}, ())
    check_files({"DATA": "folder"}, {"--output": Path("folder/neuron8-l2-categories.tsv")}, ())  # a new one
    check_files({"DATA": "a-name"}, {"DST": Path("new-folder")})
    assert Path("old.H5").read_text() == "old"


@pytest.mark.parametrize(
    ("option", "name", "error", "message"),
    [
        ("--output", "a.csv", UsageError, r"'\.csv' .* use \.tsv, \.h5"),
        ("--output", "a", UsageError, "no suffix"),
        ("--output", ".h5", UsageError, "no suffix"),
        ("--trace", "a.txt", UsageError, r"use \.json, \.json\.gz"),
        ("--output", "none/a.tsv", ResourceError, "the folder none does not exist"),
        ("--output", "plain/a.tsv", ResourceError, "plain does not exist"),
        ("--output", "folder.h5", UsageError, "is a folder"),
        ("--json", "socket", UsageError, "is a socket"),
        ("--json", "/dev/fd/9876", ResourceError, "is not open"),
    ],
)
def test_places_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, name: str, error: type[Exception], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain").write_text("")
    Path("folder.h5").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
        with pytest.raises(error, match=rf"{option} {name}: .*{message}"):
            check_files({}, {option: Path(name)}, SUFFIXES)
