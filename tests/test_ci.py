"""What continuous integration runs, with tools that only write down that they were called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

FAST = "tests: all but the slow ones; nothing that they look at has changed"
TOOLS = ("sparsenn", "check", "test")
PLAIN = ("README.md", "sparsenn/engine/plan.py", "tests/test_plain.py")
FOR_SLOW = (
    *("pyproject.toml", "tools/check", "tools/other", "datasets/model.h5", "sparsenn/datasets/radixnet.py"),
    *(
        "bench/record.py",
        "sparsenn/backends/cuda/runtime/loader.py",
        "sparsenn/studies/gemm/tensor.py",
        "kernels/a.cu",
        "kernels/b.cuh",
        "tests/io/test_slow.py",
        "tests/emulation.py",
        "tests/emulation.h",
    ),
)
"""Files that no slow test looks at, and others."""


@pytest.fixture
def clone(repository: Path, tmp_path: Path) -> Path:
    """A repository of one commit."""
    root = tmp_path / "a clone"
    for name in (*PLAIN, *FOR_SLOW):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("first\n")
    (root / "tests/io/test_slow.py").write_text("@pytest.mark.slow\n")
    for name in TOOLS:
        tool = root / "tools" / name
        tool.write_text(f'#!/bin/sh\necho "{name} $*"\n[ "$FAILS" != {name} ] || exit 7\n')
        tool.chmod(0o755)
    (root / ".ci").mkdir()
    shutil.copy(repository / ".ci" / "run", root / ".ci" / "run")
    git(root, "init", "--quiet")
    commit(root)
    return root


def surroundings(root: Path) -> dict[str, str]:
    """No repository around `root` and nobody's settings are seen."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return inherited | {
        "HOME": str(root.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(root.parent),
    }


def git(root: Path, *arguments: str) -> None:
    somebody = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    command = ["git", *somebody, *arguments]
    subprocess.run(command, cwd=root, env=surroundings(root), check=True, capture_output=True, timeout=240)


def commit(root: Path, *changed: str) -> None:
    for name in changed:
        with (root / name).open("a") as file:
            file.write("# changed\n")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Change")


def ci(root: Path, fails: str = "") -> tuple[int, list[str]]:
    """Run it; returns its exit code and what it wrote."""
    command, environment = [root / ".ci" / "run"], surroundings(root) | {"FAILS": fails}
    done = subprocess.run(command, cwd=root.parent, env=environment, capture_output=True, text=True, timeout=240)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def everything(reason: str) -> tuple[int, list[str]]:
    return 0, ["check ", f"tests: all, the slow ones too: {reason}", "test --frameworks --all"]


def test_fast_tests_suffice_where_nothing_else_has_changed(clone: Path) -> None:
    commit(clone, *PLAIN)
    assert ci(clone) == (0, ["check ", FAST, "test --frameworks"])


def test_slow_tests_run_where_what_they_look_at_has_changed(clone: Path) -> None:
    for name in (*FOR_SLOW, ".ci/run"):  # each against the commit before
        commit(clone, "README.md", name)
        assert ci(clone) == everything(f"{name} has changed")


def test_what_is_not_committed_has_changed_too(clone: Path) -> None:
    commit(clone, "README.md")
    (clone / "kernels" / "a.cu").write_text("other\n")
    assert ci(clone) == everything("kernels/a.cu has changed")


@pytest.mark.parametrize("name", ["kernels/a.cu", "tests/io/test_slow.py"])
def test_what_is_renamed_has_changed(clone: Path, name: str) -> None:
    git(clone, "mv", name, "other.txt")
    commit(clone)
    assert ci(clone) == everything(f"{name} has changed")


def test_a_branch_is_held_against_where_it_left_main(clone: Path) -> None:
    git(clone, "update-ref", "refs/remotes/origin/main", "HEAD")
    commit(clone, "kernels/b.cuh")
    commit(clone, "README.md")
    assert ci(clone) == everything("kernels/b.cuh has changed")
    git(clone, "update-ref", "refs/remotes/origin/main", "HEAD")  # on main: against the commit before
    assert ci(clone)[1][1:] == [FAST, "test --frameworks"]


def test_where_it_cannot_be_told_what_changed_all_tests_run(clone: Path) -> None:
    assert ci(clone) == everything("what has changed cannot be told")  # a single commit, as in a shallow clone
    shutil.rmtree(clone / ".git")
    assert ci(clone) == everything("what has changed cannot be told")


@pytest.mark.parametrize(("fails", "last"), [("sparsenn", None), ("check", "check "), ("test", "test --frameworks")])
def test_it_ends_with_what_fails_and_its_exit_code(clone: Path, fails: str, last: str | None) -> None:
    commit(clone, "README.md")
    code, said = ci(clone, fails)
    assert code == 7
    assert (said or [None])[-1] == last
