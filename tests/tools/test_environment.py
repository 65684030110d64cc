"""tools/environment.sh, with a Python and a pip that only write down what they are asked to do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = ("bash", "cat", "chmod", "cksum", "cp", "dirname", "flock", "mkdir", "mv", "readlink", "rm", "sleep", "touch")

FAKE_PYTHON = """\
#!/bin/bash
case "$*" in
  --version) echo "Python $VERSION" ;;
  "-c import sys; print"*) echo "$VERSION"; [[ "$VERSION" != 3.10 ]] ;;
  "-c import venv"*) ;;
  "-m venv --clear "*) echo venv >>"$LOG"; rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
  "-m pip --version") [[ -e "${0%/*}/python" ]] ;;
  "-m pip install "*) echo "begin ${!#}" >>"$LOG"
    [[ -z "${FAIL:-}" ]] && echo end >>"$LOG" ;;
  *) echo "ran in $PWD: $*" ;;
esac
"""


@pytest.fixture
def project(repository: Path, tmp_path: Path) -> Path:
    root = tmp_path / "a project"
    shutil.copytree(repository / "tools", root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "pyproject.toml").write_text("[project]\n")
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        if found:
            (commands / name).symlink_to(found)
    install_python(root, "python3")
    return root


def install_python(project: Path, name: str) -> None:
    python = project.parent / "commands" / name
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)


def surroundings(project: Path, **more: str) -> dict[str, str]:
    return {"PATH": str(project.parent / "commands"), "LOG": str(log_of(project)), "VERSION": "3.12", **more}


def run(project: Path, tool: str, *arguments: str, cwd: Path | None = None, **more: str) -> tuple[int, str, str]:
    command = [str(project / "tools" / tool), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, cwd=cwd, env=surroundings(project, **more)
    )
    return done.returncode, done.stdout, done.stderr


def log_of(project: Path) -> Path:
    return project.parent / "log"


def steps(project: Path) -> list[str]:
    return log_of(project).read_text().splitlines() if log_of(project).exists() else []


def stamps(project: Path) -> list[str]:
    return sorted(path.name for path in (project / ".venv").glob(".installed-*"))


def test_first_run_installs_and_says_so_and_the_second_is_silent(project: Path, tmp_path: Path) -> None:
    code, out, said = run(project, "sparsenn", "info", "a b", cwd=tmp_path)
    assert (code, out) == (0, f"ran in {tmp_path}: -P -m sparsenn info a b\n")
    assert said.splitlines() == [
        "sparsenn: creating .venv with Python 3.12 (once)",
        "sparsenn: installing sparsenn and what it needs into .venv (once, about a minute)",
        "sparsenn: compiling the kernels (once, half a minute)",
    ]
    assert steps(project) == ["venv", "begin .", "end"]
    assert stamps(project) == [".installed-base"]
    assert run(project, "sparsenn")[2] == ""
    assert len(steps(project)) == 3


def install_driver(project: Path, version: str) -> None:
    """Have nvidia-smi tell a driver's version, as where there is a GPU."""
    program = project.parent / "commands" / "nvidia-smi"
    program.write_text(f"#!/bin/bash\necho {version}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(("driver", "extra"), [("580.65.06", "cuda13"), ("610.1", "cuda13"), ("535.104", "cuda12")])
def test_where_there_is_a_driver_its_extra_is_installed(project: Path, driver: str, extra: str) -> None:
    install_driver(project, driver)
    code, _, said = run(project, "sparsenn")
    assert code == 0
    assert f"an NVIDIA driver is here: installing what a GPU needs, too (extra: {extra};" in said
    assert steps(project) == ["venv", f"begin .[{extra}]", "end"]
    assert stamps(project) == [".installed-base"]
    run(project, "test")
    assert steps(project)[3:] == [f"begin .[test,{extra}]", "end"]


def test_no_python_that_is_new_enough(project: Path) -> None:
    code, out, said = run(project, "sparsenn", VERSION="3.10")
    assert (code, out) == (1, "")
    assert said.startswith("sparsenn: no Python 3.11 or newer among python3, ")
    assert len(said.splitlines()) == 1
