"""What is published: wheels that are the same bit by bit, sources that hold what their tests need, and extras."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

NOT_SHIPPED = {".gitattributes"}


@pytest.fixture(scope="module")
def project(repository: Path) -> dict[str, object]:
    """The table of that name of pyproject.toml."""
    found: dict[str, object] = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    return found


@pytest.mark.parametrize("extra", ["cuda12", "cuda13"])
def test_extras_for_gpus_bring_the_compiler(project: dict[str, dict[str, list[str]]], extra: str) -> None:
    compiler, *_ = project["optional-dependencies"][extra]
    assert compiler.startswith(f"cupy-{extra}x[ctk]>=")


def test_whoever_publishes_is_told(project: dict[str, list[str]]) -> None:
    assert project["authors"]
    assert "Operating System :: POSIX :: Linux" in project["classifiers"]


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
