"""Compiled kernels on disk: folders, damaged files, and folders that cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNEL = """
import sys
from sparsenn.runtime.jit import compiled

@compiled
def twice(number):
    return number + number

found = [twice(3), twice(1.5)]
kept = sum(sum(function.stats.cache_hits.values()) for function in [twice])
print(found, kept)
"""

FIRST, AGAIN = "[6, 3.0] 0\n", "[6, 3.0] 2\n"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A module that compiles a function twice, and says how often it was found compiled."""
    path = tmp_path / "source" / "kernel.py"
    path.parent.mkdir()
    path.write_text(KERNEL)
    return path


def run(program: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    names = ("SPARSENN_CACHE", "NUMBA_CACHE_DIR", "HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_LOCATOR_CLASSES")
    known = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-W", "always", str(program)]
    done = subprocess.run(
        command, env={**known, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def files(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.rglob(pattern))


@pytest.mark.parametrize("variable", ["SPARSENN_CACHE", "NUMBA_CACHE_DIR"])
def test_a_setting_moves_the_cache(program: Path, tmp_path: Path, variable: str) -> None:
    place = tmp_path / "here"
    for expected in (FIRST, AGAIN):
        done = run(program, **{variable: str(place)})
        assert (done.stdout, done.stderr) == (expected, "")
    assert len(files(place / "numba" if variable == "SPARSENN_CACHE" else place, "*.nbc")) == 2
    assert not files(program.parent, "*.nb?")


def flip(content: bytes) -> bytes:
    at = len(content) * 2 // 3
    return content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :]


@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], flip, lambda content: b""])
@pytest.mark.parametrize("pattern", ["*.nbi", "*.nbc", "*.nb?"])
def test_a_damaged_cache_is_made_again(program: Path, tmp_path: Path, pattern: str, damage: object) -> None:
    place = tmp_path / "here"
    run(program, SPARSENN_CACHE=str(place))
    for path in files(place, pattern):
        path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    again, once_more = (run(program, SPARSENN_CACHE=str(place)) for _ in range(2))
    intact = pattern == "*.nbi"  # an index may have entries that are not damaged
    assert (again.stdout == FIRST or intact, again.stdout[:8], again.stderr) == (True, FIRST[:8], "")
    assert (once_more.stdout, once_more.stderr) == (AGAIN, "")


@pytest.mark.parametrize(("old", "new", "expected"), [("- 1", "- 2", "11\n"), ("STEP = 1", "STEP = 22", "42\n")])
def test_what_a_function_uses_of_other_files_is_looked_at(old: str, new: str, expected: str, tmp_path: Path) -> None:
    """A function called, and a constant: both are compiled into the caller, whose own file stays as it is."""
    used = (
        "from sparsenn.runtime.jit import compiled\n\n@compiled\ndef less(number):\n    return number - 1\n\nSTEP = 1\n"
    )
    program = tmp_path / "program.py"
    (tmp_path / "used.py").write_text(used)
    program.write_text(
        "from sparsenn.runtime.jit import compiled\nfrom used import STEP, less\n\n"
        "@compiled\ndef middle(number):\n    return less(number) * 10\n\n"
        "@compiled\ndef run(number):\n    return middle(number) + STEP\n\n"
        "print(run(3))\n"
    )
    assert run(program).stdout == "21\n"
    (tmp_path / "used.py").write_text(used.replace(old, new))
    assert run(program).stdout == expected


def test_functions_that_follow_and_writers_of_code_are_looked_at(tmp_path: Path) -> None:
    """A function defined behind its caller, and an intrinsic of another file."""
    used = (
        "from numba.core import types\nfrom numba.extending import intrinsic\n"
        "from sparsenn.runtime.jit import compiled\n\n"
        "@compiled\ndef less(number):\n    return number - 1\n\n"
        "@intrinsic\ndef more(typing, number):\n"
        "    def generate(context, builder, signature, arguments):\n"
        "        return builder.add(arguments[0], arguments[0].type(10))\n"
        "    return types.int64(types.int64), generate\n"
    )
    program = tmp_path / "program.py"
    (tmp_path / "used.py").write_text(used)
    program.write_text(
        "from sparsenn.runtime.jit import compiled\nfrom used import less, more\n\n"
        "@compiled\ndef run(number, left):\n"
        "    return behind(number) if left == 0 else run(number, left - 1)\n\n"
        "@compiled\ndef behind(number):\n    return more(less(number))\n\n"
        "print(run(3, 2))\n"
    )
    assert run(program).stdout == "12\n"
    for old, new, expected in (("- 1", "- 2", "11\n"), ("(10)", "(200)", "201\n")):
        used = used.replace(old, new)
        (tmp_path / "used.py").write_text(used)
        assert run(program).stdout == expected


def test_where_nothing_can_be_cached_one_line_says_so(program: Path, tmp_path: Path) -> None:
    """A file stands where each folder would be: root may write to a folder that is read-only."""
    (program.parent / "__pycache__").write_text("")
    (tmp_path / "file").write_text("")
    within = str(tmp_path / "file" / "within")
    done = run(program, SPARSENN_CACHE=within, NUMBA_CACHE_DIR=within, HOME=within, XDG_CACHE_HOME=within)
    assert done.stdout == FIRST
    assert done.stderr.count("compiled kernels cannot be cached") == 1
    assert "set SPARSENN_CACHE to a writable folder" in done.stderr
