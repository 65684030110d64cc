"""The stand-alone verification script: two text files, exit codes 0, 1 and 2."""

from __future__ import annotations

import ast
import gzip
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "verify_categories.py"
TRUTH = b"2\n3\n5\n"


def run_script(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    path = tmp_path / "truth.tsv"
    path.write_bytes(TRUTH)
    return path


def compare(truth: Path, content: bytes, name: str = "found.tsv") -> subprocess.CompletedProcess[str]:
    found = truth.parent / name
    found.write_bytes(content)
    return run_script(found, truth)


@pytest.mark.parametrize(
    "content",
    [TRUTH, b"5\n2\n3\n", b"2\r\n3\r\n5\r\n", b"\xef\xbb\xbf2\n3\n5\n"],
    ids=["equal", "other order", "CRLF", "byte order mark"],
)
def test_equal_categories_pass(truth: Path, content: bytes) -> None:
    done = compare(truth, content)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "PASSED: all 3 true categories, and no others\n"


def test_gzip_is_read(truth: Path) -> None:
    assert compare(truth, gzip.compress(TRUTH), "found.tsv.gz").returncode == 0


@pytest.mark.parametrize(
    ("content", "verdict"),
    [
        (b"2\n3\n", "2 of 3 true categories match; 1 (5) missing, none unexpected"),
        (b"2\n3\n5\n7\n", "3 of 3 true categories match; none missing, 1 (7) unexpected"),
        (b"2\n4\n5\n", "2 of 3 true categories match; 1 (3) missing, 1 (4) unexpected"),
        (b"", "0 of 3 true categories match; 3 (2, 3, 5) missing, none unexpected"),
    ],
)
def test_any_difference_fails(truth: Path, content: bytes, verdict: str) -> None:
    done = compare(truth, content)
    assert (done.returncode, done.stdout, done.stderr) == (1, f"FAILED: {verdict}\n", "")


def test_only_the_first_few_are_named(truth: Path) -> None:
    done = compare(truth, b"".join(b"%d\n" % number for number in range(10, 20)))
    assert "10 (10, 11, 12, 13, 14, ...) unexpected" in done.stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"2\n0\n", ":2: category 0 is outside 1..2147483647"),
        (b"2147483648\n", ":1: category 2147483648 is outside"),
        (b"2\n-3\n", ":2: '-3' is not a category"),
        (b"2\n3.0\n", ":2: '3.0' is not a category"),
        (b"2\n3\t1\n", ":2: '3\\t1' is not a category"),
        (b"two\n", ":1: 'two' is not a category"),
        (b"\xd9\xa1\n", "is not a category"),
        (b"2\n\n3\n", ":2: '' is not a category"),
        (b"2\n3\n5", ":3: the last line has no line end"),
        (b"2\n3\n2\n", ":3: category 2 occurs twice"),
        (b"1" * 5000 + b"\n", "is not a category"),
    ],
)
def test_what_is_not_a_category_is_refused_with_its_line(truth: Path, content: bytes, message: str) -> None:
    done = compare(truth, content)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "found.tsv" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [TRUTH, gzip.compress(TRUTH)[:-6]], ids=["not gzip", "truncated"])
def test_broken_gzip_is_refused(truth: Path, content: bytes) -> None:
    done = compare(truth, content, "found.tsv.gz")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "found.tsv.gz" in done.stderr


def test_missing_file_folder_and_arguments_are_refused(truth: Path) -> None:
    for arguments in [(truth.parent / "none.tsv", truth), (truth, truth.parent), (truth,)]:
        done = run_script(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("content", [TRUTH, b"2\n"])
def test_a_verdict_that_cannot_be_written(truth: Path, content: bytes) -> None:
    found = truth.parent / "found.tsv"
    found.write_bytes(content)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, SCRIPT, found, truth], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "error: the verdict cannot be written: No space left on device\n")


def test_it_needs_the_standard_library_alone() -> None:
    imports = [
        node for node in ast.walk(ast.parse(SCRIPT.read_text())) if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names
    assert SCRIPT.stat().st_mode & 0o111
