"""The stand-alone verification script: two text files, exit codes 0, 1 and 2."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "tools" / "verify_categories.py"


def test_missing_file_folder_and_arguments_are_refused(tmp_path: Path) -> None:
    truth = tmp_path / "truth.tsv"
    truth.write_bytes(b"2\n3\n5\n")
    for arguments in [(tmp_path / "none.tsv", truth), (truth, tmp_path), (truth,)]:
        command = [sys.executable, "-I", "-S", SCRIPT, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Traceback" not in done.stderr


def test_it_needs_the_standard_library_alone() -> None:
    imports = [
        node for node in ast.walk(ast.parse(SCRIPT.read_text())) if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names
    assert SCRIPT.stat().st_mode & 0o111
