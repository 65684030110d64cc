"""The program as its users meet it: a small problem on disk, and two ways to run a verb."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from children import interrupts_obeyed
from command_line import Refused, Run, Spawn
from typer.testing import CliRunner, Result

from sparsenn import Linear, Model, Network, write_model
from sparsenn.cli.app import app
from sparsenn.datasets import generate
from sparsenn.io import Dataset, write_dataset, write_official
from sparsenn.studies.measure import Roofs
from sparsenn.studies.measure.meter import HostMeter


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    """1024 neurons, 6 layers, 200 digits, and the truth."""
    return generate(1024, 6, inputs="digits", images=200)


@pytest.fixture(scope="session")
def problem(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That dataset as an HDF5 file."""
    path = tmp_path_factory.mktemp("problem") / "problem.h5"
    write_dataset(dataset, path)
    return path


@pytest.fixture(scope="session")
def folder(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That dataset in the official layout."""
    path = tmp_path_factory.mktemp("official") / "challenge"
    write_official(dataset, path)
    return path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a verb in this process, which ends with the code that is said and, where that is 0, without a warning.

    What is to be read by people goes to stderr where JSON is on stdout. Named datasets are out of reach.
    """
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARSENN_MNIST", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments: object, code: int = 0) -> Result:
        words = [str(argument) for argument in arguments]
        result = CliRunner().invoke(app, words)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        assert result.exit_code == code, result.output
        assert code or "-" in words or not result.stderr
        return result

    return invoke


@pytest.fixture
def refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Run a verb in the folder of the test; all that comes of it is exit code 2 and one line with all fragments.

    No file there is made or changed.
    """
    monkeypatch.chdir(tmp_path)

    def files() -> dict[Path, bytes]:
        return {
            path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "cache"
        }

    def check(arguments: Iterable[object], *fragments: str) -> None:
        before = files()
        done = run(*arguments, code=2)
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
        assert [fragment for fragment in fragments if fragment not in done.stderr] == [], done.stderr
        assert files() == before

    return check


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of one layer, of six inputs and three outputs."""
    weights = np.random.default_rng(1).normal(size=(6, 3))
    write_model(tmp_path / "model.h5", Model(Network((Linear(weights),)), "mse", False))
    return tmp_path / "model.h5"


@pytest.fixture
def roofs() -> Roofs:
    """Ceilings of a host, of which nothing is measured."""
    return Roofs(1e10, 1e11, "L3", 1 << 25, {"float32": 1e11}, processors=2)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, roofs: Roofs) -> list[int]:
    """Have those ceilings found at once; a number for each time that they were measured."""
    times: list[int] = []
    monkeypatch.setattr(HostMeter, "roofs", lambda self: times.append(1) or roofs)
    return times


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Start the program as a process of its own, in a folder of its own; what is left of it ends with the test.

    It obeys interrupts, unless `interrupts` says otherwise.
    """
    started = []

    def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "sparsenn", *map(str, arguments)]
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
        environment = os.environ | {"SPARSENN_CACHE": str(tmp_path / "cache")} | options.pop("env", {})
        with options.pop("interrupts", interrupts_obeyed)():
            started.append(subprocess.Popen(command, env=environment, **(settings | options)))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
