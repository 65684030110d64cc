"""The program as its users meet it: a small problem on disk, and two ways to run a verb."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from children import interrupts_obeyed
from typer.testing import CliRunner, Result

from sparsenn.cli.app import app
from sparsenn.datasets import generate
from sparsenn.io import Dataset, write_dataset, write_official

Run = Callable[..., Result]
Spawn = Callable[..., "subprocess.Popen[str]"]


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
    """Run a verb in this process; whatever happens, a traceback is none of it. Named datasets are out of reach."""
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARSENN_MNIST", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        return result

    return invoke


@pytest.fixture
def refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a verb in the folder of the test; all that comes of it is exit code 2 and a message with all fragments."""
    monkeypatch.chdir(tmp_path)

    def files() -> list[Path]:
        return sorted(path for path in tmp_path.rglob("*") if path.is_file() and "cache" not in path.parts)

    def check(arguments: Iterable[object], *fragments: str) -> None:
        before = files()
        done = run(*arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        text = " ".join(done.stderr.replace("│", " ").split())
        assert [fragment for fragment in fragments if fragment not in text] == [], text
        assert files() == before

    return check


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
