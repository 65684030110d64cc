"""tools/environment.sh, with a Python and a pip that only write down what they are asked to do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from children import interrupts_obeyed

TOOLS = ("bash", "cat", "chmod", "cksum", "cp", "dirname", "flock", "mkdir", "mv", "readlink", "rm", "sleep", "touch")
Start = Callable[..., "subprocess.Popen[str]"]

needs_flock = pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")

FAKE_PYTHON = """\
#!/bin/bash
case "$*" in
  --version) echo "Python $VERSION" ;;
  "-c import sys; print"*) echo "$VERSION"; [[ "$VERSION" != 3.10 ]] ;;
  "-c import venv"*) [[ -z "${NO_VENV:-}" ]] ;;
  "-m venv --clear "*) echo venv >>"$LOG"; rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
  "-m pip --version") [[ -e "${0%/*}/python" ]] ;;
  "-m pip install "*) echo "begin ${!#}" >>"$LOG"; sleep "${SLOW:-0}"
    while [[ -n "${GATE:-}" && ! -e "$GATE" ]]; do sleep 0.05; done
    [[ -n "${FAIL_WITH:-}" && "${!#}" = *"$FAIL_WITH"* ]] && exit 1
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


@pytest.fixture
def start(project: Path) -> Iterator[Start]:
    """Start the program in a session of its own; what is left of that ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(**more: str) -> subprocess.Popen[str]:
        with interrupts_obeyed():
            process = subprocess.Popen(
                [project / "tools" / "sparsenn"],
                env=surroundings(project, **more),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        started.append(process)
        return process

    yield begin
    for process in started:
        with process, suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


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


@pytest.mark.parametrize(("cuda", "extra"), [("12", "[cuda12]"), ("13", "[cuda13]"), ("11", "")])
def test_the_drivers_library_is_asked_first(project: Path, cuda: str, extra: str) -> None:
    python = project.parent / "commands" / "python3"
    asked = f'  "-c import ctypes"*) echo {cuda} ;;\n'
    python.write_text(python.read_text().replace('case "$*" in\n', f'case "$*" in\n{asked}'))
    assert run(project, "sparsenn")[0] == 0
    assert steps(project) == ["venv", f"begin .{extra}", "end"]


@pytest.mark.parametrize("driver", ["470.1", "", "NVIDIA-SMI has failed", "x.1"])
def test_a_driver_that_is_too_old_or_fails_changes_nothing(project: Path, driver: str) -> None:
    install_driver(project, driver)
    code, _, said = run(project, "sparsenn")
    assert (code, "NVIDIA" in said) == (0, False)
    assert steps(project) == ["venv", "begin .", "end"]


def test_a_gpu_can_be_left_alone(project: Path) -> None:
    install_driver(project, "580.1")
    assert "NVIDIA" not in run(project, "sparsenn", SPARSENN_GPU="no")[2]
    assert steps(project) == ["venv", "begin .", "end"]


def test_without_the_extra_it_goes_on(project: Path) -> None:
    install_driver(project, "580.1")
    code, _, said = run(project, "sparsenn", FAIL_WITH="cuda")
    assert code == 0
    assert "the extra cuda13 cannot be installed (see above); going on without" in said
    assert steps(project) == ["venv", "begin .[cuda13]", "begin .", "end"]


def test_tests_take_their_extra_and_run_in_the_root(project: Path, tmp_path: Path) -> None:
    code, out, _ = run(project, "test", "-k", "a b", cwd=tmp_path)
    assert (code, out) == (0, f"ran in {project}: -m pytest -k a b\n")
    assert steps(project) == ["venv", "begin .[test]", "end"]
    assert run(project, "sparsenn")[2] == ""  # what the tests need includes what the program needs
    assert len(steps(project)) == 3


def test_frameworks_are_an_extra_that_includes_that_of_the_tests(project: Path) -> None:
    code, out, _ = run(project, "test", "--frameworks", "FILE")
    assert (code, out) == (0, f"ran in {project}: -m pytest FILE\n")
    assert steps(project) == ["venv", "begin .[test-frameworks]", "end"]
    assert run(project, "test", "FILE")[2] == ""
    assert len(steps(project)) == 3


@pytest.mark.parametrize("arguments", [(), ("--all",)])
def test_without_a_choice_of_tests_they_are_spread_over_the_processors(
    project: Path, arguments: tuple[str, ...]
) -> None:
    out = run(project, "test", *arguments)[1]
    assert out.startswith(
        f"ran in {project}: -m pytest {''.join(f'{each} ' for each in arguments)}--numprocesses auto "
    )
    assert (
        run(project, "test", *arguments, "FILE")[1] == f"ran in {project}: -m pytest {' '.join((*arguments, 'FILE'))}\n"
    )


def test_tests_after_the_program_add_the_extra_only(project: Path) -> None:
    run(project, "sparsenn")
    assert "extra: test" in run(project, "test")[2]
    assert steps(project) == ["venv", "begin .", "end", "begin .[test]", "end"]
    assert stamps(project) == [".installed-base", ".installed-test"]


def test_a_changed_pyproject_installs_again_in_the_same_environment(project: Path) -> None:
    run(project, "test")
    (project / "pyproject.toml").write_text("[project]\nversion = '2'\n")
    run(project, "sparsenn")
    assert steps(project)[3:] == ["begin .", "end"]
    assert stamps(project) == [".installed-base"]


def test_a_moved_project_installs_again(project: Path) -> None:
    run(project, "sparsenn")
    moved = project.rename(project.parent / "moved")
    assert "installing" in run(moved, "sparsenn")[2]


def test_a_failed_installation_is_told_and_tried_again(project: Path) -> None:
    code, out, said = run(project, "sparsenn", FAIL="1")
    assert (code, out) == (1, "")
    assert said.endswith("sparsenn: the installation failed (see above); the next run tries again\n")
    assert stamps(project) == []
    assert run(project, "sparsenn")[0] == 0
    assert steps(project) == ["venv", "begin .", "begin .", "end"]


def test_a_failed_update_leaves_no_stamp_of_the_past(project: Path) -> None:
    run(project, "sparsenn")
    before = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text("[project]\nversion = '2'\n")
    assert run(project, "sparsenn", FAIL="1")[0] == 1
    (project / "pyproject.toml").write_text(before)
    assert "installing" in run(project, "sparsenn")[2]


def test_an_interrupted_installation_leaves_no_stamp(project: Path, start: Start) -> None:
    process = start(SLOW="300")
    limit = time.monotonic() + 120
    while "begin ." not in steps(project) and time.monotonic() < limit:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=240) in (130, -signal.SIGINT)
    assert stamps(project) == []
    assert run(project, "sparsenn")[0] == 0


def test_a_broken_environment_is_made_anew(project: Path) -> None:
    run(project, "sparsenn")
    (project / ".venv" / "bin" / "python").unlink()
    code, _, said = run(project, "sparsenn")
    assert code == 0
    assert "creating .venv" in said


@needs_flock
def test_runs_at_the_same_time_wait_for_one_installation(project: Path, start: Start, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    processes = [start(GATE=str(gate)) for _ in range(3)]
    said = [process.stderr.readline() for process in processes if process.stderr]  # all have begun, none has ended
    gate.touch()
    for process in processes:
        process.communicate(timeout=240)
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert steps(project) == ["venv", "begin .", "end"]
    assert sum("waiting for another installation to end" in text for text in said) == 2


def test_without_flock_it_works_too(project: Path) -> None:
    (project.parent / "commands" / "flock").unlink(missing_ok=True)
    assert run(project, "sparsenn")[0] == 0
    assert stamps(project) == [".installed-base"]


def test_an_old_python_is_passed_over(project: Path) -> None:
    install_python(project, "python3.13")
    old = project.parent / "commands" / "python3"
    old.write_text("#!/bin/bash\necho 3.10; exit 1\n")
    code, _, said = run(project, "sparsenn", VERSION="3.13")
    assert code == 0
    assert "creating .venv with Python 3.13" in said


def test_no_python_that_is_new_enough(project: Path) -> None:
    code, out, said = run(project, "sparsenn", VERSION="3.10")
    assert (code, out) == (1, "")
    assert said.startswith("sparsenn: no Python 3.11 or newer among python3, ")
    assert len(said.splitlines()) == 1


def test_a_python_without_venv(project: Path) -> None:
    code, _, said = run(project, "sparsenn", NO_VENV="1")
    assert code == 1
    assert said == (
        "sparsenn: Python 3.12 has no venv module; install it (Debian, Ubuntu: sudo apt install python3.12-venv)\n"
    )


def test_a_link_to_the_program_works(project: Path, tmp_path: Path) -> None:
    link = tmp_path / "sparsenn"
    link.symlink_to(project / "tools" / "sparsenn")
    done = subprocess.run([link], capture_output=True, text=True, timeout=240, env=surroundings(project), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"ran in {tmp_path}: -P -m sparsenn\n")
