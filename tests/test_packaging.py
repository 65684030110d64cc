"""What is published: wheels that are the same bit by bit, sources that hold what their tests need, and extras."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import sparsenn

NOT_SHIPPED = {".gitattributes"}


@pytest.fixture(scope="module")
def project(repository: Path) -> dict[str, Any]:
    """The table of that name of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    return found


@pytest.mark.parametrize("extra", ["cuda12", "cuda13"])
def test_extras_for_gpus_bring_the_compiler(project: dict[str, dict[str, list[str]]], extra: str) -> None:
    compiler, *_ = project["optional-dependencies"][extra]
    assert compiler.startswith(f"cupy-{extra}x[ctk]>=")


def test_the_project_describes_itself(repository: Path, project: dict[str, Any]) -> None:
    assert project["authors"]
    assert project["urls"]
    assert "Operating System :: POSIX :: Linux" in project["classifiers"]
    newest = re.findall(r"^## \[(\d.*)\] - (.*)$", (repository / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    citation = (repository / "CITATION.cff").read_text()
    assert (sparsenn.__version__, *re.findall(r"^version: (.*)$", citation, re.MULTILINE)) == (newest[0], newest[0])
    assert re.findall(r"^date-released: (.*)$", citation, re.MULTILINE) == [newest[1]]


def test_libraries_whose_private_parts_are_used_have_an_upper_bound(project: dict[str, list[str]]) -> None:
    bounded = [each for each in project["dependencies"] if "<" in each]
    assert [re.split("[<>=]", each)[0] for each in bounded] == ["numba", "typer"]


def test_test_runs_have_all_that_users_may_install(project: dict[str, dict[str, list[str]]]) -> None:
    extras = project["optional-dependencies"]
    tested = {*extras["test"], *(each for name in ("docs", "plot") for each in extras[name])}
    assert "sparsenn[docs,plot]" in tested
    assert [each for name in ("onnxruntime", "dask") for each in extras[name] if each not in tested] == []


def build(source: Path, target: Path, kind: str) -> Path:
    """Build a distribution by the backend alone, at a time that is always the same."""
    code = f"import hatchling.build as backend; backend.build_{kind}({str(target)!r})"
    target.mkdir(parents=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run([sys.executable, "-c", code], cwd=source, env=environment, check=True, timeout=240)
    (made,) = target.iterdir()
    return made


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def copied(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git knows, in another folder and with other times."""
    pytest.importorskip("hatchling", reason="builds distributions")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("the repository's history is not here")
    folder = tmp_path_factory.mktemp("copied")
    for name in filter(None, listed.stdout.split("\0")):
        if (repository / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / name, folder / name)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_what_is_built_twice_is_the_same(repository: Path, copied: Path, tmp_path: Path, kind: str) -> None:
    twin = shutil.copytree(copied, tmp_path / "elsewhere" / "twin")
    for path in twin.rglob("*"):
        os.utime(path, (1e9, 1e9))
    one, other = build(copied, tmp_path / "one", kind), build(twin, tmp_path / "other", kind)
    assert one.name == other.name
    assert digest(one) == digest(other)


@pytest.mark.slow
def test_sources_hold_all_files_of_the_repository(copied: Path, tmp_path: Path) -> None:
    with tarfile.open(build(copied, tmp_path / "dist", "sdist")) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    there = {str(path.relative_to(copied)) for path in copied.rglob("*") if path.is_file()}
    assert there - held == NOT_SHIPPED & there
    assert held - there == {"PKG-INFO"}


@pytest.mark.slow
def test_a_wheel_holds_the_package_alone(copied: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(build(copied, tmp_path / "dist", "wheel")) as archive:
        names = archive.namelist()
    held = {name for name in names if name.startswith("sparsenn/")}
    assert held == {str(path.relative_to(copied)) for path in (copied / "sparsenn").rglob("*") if path.is_file()}
    assert {name.partition("/")[0] for name in set(names) - held} == {names[-1].partition("/")[0]}


USE = """
import numpy as np, sparsenn
network = sparsenn.Network.from_scipy([np.eye(20, 30), np.eye(30, 10)])
print(sparsenn.Session(network, device="cpu")(np.ones((2, 20))).sum(), sparsenn.__file__)
"""


@pytest.mark.slow
def test_an_installed_wheel_is_of_use_outside_the_clone(copied: Path, tmp_path: Path) -> None:
    wheel = build(copied, tmp_path / "dist", "wheel")
    assert wheel.name.startswith(f"sparsenn-{sparsenn.__version__}-")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=240)
    python, (site,) = venv / "bin" / "python", venv.glob("lib/python3*/site-packages")
    # libraries are those of this environment, without the links to clones in it
    (site / "libraries.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel]
    subprocess.run(pip, check=True, timeout=240)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["SPARSENN_CACHE"] = str(tmp_path / "cache")

    def output(*command: object) -> str:
        command = tuple(map(str, command))
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    for optimised in ((), ("-OO",)):  # no assertion and no docstring is needed to run
        total, place = output(python, *optimised, "-c", USE).split()
        assert float(total) == 20
        assert Path(place).is_relative_to(site)
    assert output(venv / "bin" / "sparsenn", "--version") == f"sparsenn {sparsenn.__version__}\n"
