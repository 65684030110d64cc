"""datasets/README.md says of each model what its file says."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from sparsenn.io import write_model
from sparsenn.layers import Conv2d, Flatten, Linear, MaxPool2d, SparseLinear
from sparsenn.model import Model
from sparsenn.network import Network

EMPTY = "# Data\n\n<!-- model:small.h5 -->\n<!-- /model -->\n\nText.\n"
MODELS = ("lenet86.h5", "lenet86-pruned.h5")

Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def tool(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("describe_datasets", repository / "tools" / "describe_datasets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def describe(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, root: Path = tmp_path) -> tuple[int, str]:
        code = tool.main(["--root", str(root), *arguments])
        out, said = capsys.readouterr()
        assert out == ""
        return code, said

    return run


@pytest.fixture
def readme(tmp_path: Path) -> Path:
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "README.md").write_text(EMPTY)
    return tmp_path / "datasets" / "README.md"


def put_model(readme: Path, seed: int = 1) -> bytes:
    """Convolution, pool, Flatten, sparse and dense layer on 2 × 6 × 6 pixels; returns the file's content."""
    rng = np.random.default_rng(seed)
    sparse = np.zeros((12, 4))
    sparse[::4] = rng.normal(size=(3, 4))
    from scipy.sparse import csc_array

    layers = (
        *(Conv2d(rng.normal(size=(3, 2, 3, 3)), rng.normal(size=3)), MaxPool2d(2), Flatten()),
        *(SparseLinear.from_scipy(csc_array(sparse), 1.0), Linear(rng.normal(size=(4, 2)))),
    )
    model = Model(Network(layers, (2, 6, 6)), "mse", False, {"seed": "4", "by": "a|b"}, "bilinear")
    write_model(readme.parent / "small.h5", model)
    return (readme.parent / "small.h5").read_bytes()


def test_what_is_said_comes_from_the_file(readme: Path, describe: Run) -> None:
    content = put_model(readme)
    assert describe("--check")[0] == 1
    assert readme.read_text() == EMPTY
    assert describe() == (0, "")
    text = readme.read_text()
    assert text.startswith("# Data\n\n<!-- model:small.h5 -->\n\n|  | small.h5 |\n| --- | --- |\n| size | ")
    assert text.endswith("\n<!-- /model -->\n\nText.\n")
    for line in (
        f"| size | {len(content):,} bytes |",
        f"| SHA-256 | `{hashlib.sha256(content).hexdigest()}` |",
        "| images | 2 × 6 × 6 (channels × height × width); smaller ones are enlarged (bilinear) |",
        "| parameters | 83 |",
        "| multiply-adds of an input | 884 |",
        "| seed | 4 |",
        "| by | a\\|b |",
        "|  | inputs | 2 × 6 × 6 |  |  |",
        "| 1 | convolution 3 × 3 | 3 × 4 × 4 | 57 | 864 |",
        "| 2 | max-pool 2 × 2 | 3 × 2 × 2 | – | – |",
        "| 3 | flatten | 12 | – | – |",
        "| 4 | sparse, 25.0 % of the weights | 4 | 16 | 12 |",
        "| 5 | dense | 2 | 10 | 8 |",
    ):
        assert f"{line}\n" in text
    assert describe("--check") == (0, "")
    once = readme.read_text()
    describe()
    assert readme.read_text() == once


def test_another_file_makes_the_readme_stale(readme: Path, describe: Run) -> None:
    put_model(readme)
    describe()
    put_model(readme, seed=2)
    code, said = describe("--check")
    assert code == 1
    assert "README.md is stale; run tools/describe_datasets.py" in said


def test_a_figure_edited_by_hand_is_found(readme: Path, describe: Run) -> None:
    put_model(readme)
    describe()
    right = readme.read_text()
    readme.write_text(right.replace("| 884 |", "| 885 |"))
    assert describe("--check")[0] == 1
    describe()
    assert readme.read_text() == right


def test_what_is_said_of_a_file_that_is_gone_stays(readme: Path, describe: Run) -> None:
    put_model(readme)
    describe()
    right = readme.read_text()
    (readme.parent / "small.h5").unlink()
    code, said = describe()
    assert (code, readme.read_text()) == (0, right)
    assert "small.h5 is not there; what is said of it stays" in said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<!-- model:small.h5 -->\n", "model small.h5 has no <!-- /model -->"),
        ("x\n<!-- /model -->\n", "README.md:2: <!-- /model --> where a model is not"),
        ("<!-- model:a.h5 -->\n<!-- model:b.h5 -->\n", "README.md:2: <!-- model:b.h5 --> where a model is open"),
    ],
)
def test_faulty_markers(readme: Path, describe: Run, text: str, told: str) -> None:
    readme.write_text(text)
    code, said = describe()
    assert code == 2
    assert told in said
    assert readme.read_text() == text


def test_as_a_program_it_does_the_same(tool: ModuleType, readme: Path, describe: Run) -> None:
    put_model(readme)
    command = [sys.executable, str(tool.__file__), "--root", str(readme.parents[1])]
    done = subprocess.run([*command, "--check"], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", describe("--check")[1])


def test_faulty_files(readme: Path, describe: Run) -> None:
    (readme.parent / "small.h5").write_text("text")
    code, said = describe()
    assert code == 2
    assert "small.h5" in said
    assert "Traceback" not in said
    assert readme.read_text() == EMPTY


@pytest.mark.parametrize("name", MODELS)
def test_readme_of_this_repository_tells_the_checksums(repository: Path, describe: Run, name: str) -> None:
    path = repository / "datasets" / name
    if not path.is_file():
        pytest.skip(f"the model is not here: no file {path}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert f"`{digest}`" in (repository / "datasets" / "README.md").read_text(encoding="utf-8")
    assert describe("--check", root=repository)[0] == 0


@pytest.mark.parametrize("name", [*MODELS, "lenet86-classes.json"])
def test_git_does_not_ignore_the_models(repository: Path, name: str) -> None:
    command = ["git", "-C", str(repository), "check-ignore", "--quiet", "--no-index", f"datasets/{name}"]
    try:
        code = subprocess.run(command, timeout=240, check=False).returncode
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if code == 128:
        pytest.skip("this is no working tree of git")
    assert code == 1
