"""`tools/update_tables --check`: the commits that results name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from results_file import write_results

AUTHOR = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), "-c", "commit.gpgsign=false", *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, **AUTHOR, "GIT_CONFIG_GLOBAL": os.devnull},
    )
    return done.stdout.strip()


def commit(root: Path, path: str) -> str:
    """Change a file, and return the commit that does."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((file.read_text() if file.exists() else "") + "x")
    git(root, "add", path)
    git(root, "commit", "-qm", "change")
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one commit."""
    git(tmp_path, "init", "-q")
    commit(tmp_path, "sparsenn/studies/mlp/ladder.py")
    return tmp_path


def check(root: Path, repository: Path, commit: str, table: str = "mlp") -> tuple[int, str]:
    """Record a table at a commit, write its page, and check both."""
    path = root / "bench" / "results" / "desk" / f"{table}.json"
    write_results(path, table=table, title="A", columns=[("a", "a")], rows=[{"a": 1}], configuration={})
    path.write_text(json.dumps(json.loads(path.read_text()) | {"commit": commit}))
    (root / "README.md").write_text(f"<!-- table:{table} -->\n<!-- /table -->\n")
    command = [sys.executable, str(repository / "tools" / "update_tables"), "--root", str(root)]
    subprocess.run(command, check=True, timeout=120)
    done = subprocess.run([*command, "--check"], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


def test_a_commit_of_the_history_is_right(root: Path, repository: Path) -> None:
    assert check(root, repository, git(root, "rev-parse", "HEAD")) == (0, "")


def test_a_lost_commit_fails(root: Path, repository: Path) -> None:
    code, told = check(root, repository, "0" * 40)
    assert code == 1
    assert "table mlp of 20" in told
    assert "the commit 0000000000 is not in the history; record it again" in told


def test_a_commit_of_another_branch_fails(root: Path, repository: Path) -> None:
    first = git(root, "rev-parse", "HEAD")
    other = commit(root, "other")
    git(root, "reset", "-q", "--hard", first)
    assert check(root, repository, other)[0] == 1


def test_what_was_not_committed_fails(root: Path, repository: Path) -> None:
    code, told = check(root, repository, git(root, "rev-parse", "HEAD") + "-dirty")
    assert code == 1
    assert "recorded with changes that were not committed" in told


def test_code_that_has_changed_since_is_a_note(root: Path, repository: Path) -> None:
    measured = git(root, "rev-parse", "HEAD")
    commit(root, "docs/page.md")
    assert check(root, repository, measured) == (0, "")
    commit(root, "sparsenn/studies/mlp/ladder.py")
    code, told = check(root, repository, measured)
    assert code == 0
    assert "the code it measures has changed since (commits: 1); tools/bench mlp records it again" in told


def test_without_a_history_nothing_is_looked_at(root: Path, repository: Path, tmp_path: Path) -> None:
    lost = "0" * 40
    commit(root, "other")
    shallow = tmp_path / "shallow"
    git(root, "clone", "-q", "--depth", "1", f"file://{root}", str(shallow))
    assert check(shallow, repository, lost) == (0, "")
    plain = tmp_path / "plain"
    plain.mkdir()
    assert check(plain, repository, lost) == (0, "")
