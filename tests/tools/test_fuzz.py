"""tools/fuzz: what it finds in readers wrong on purpose, and in the package's own; and files kept from before."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from fuzzed_formats import FORMATS

from sparsenn.errors import SparseNNError

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "fuzzed"


@pytest.mark.parametrize("name", FORMATS)
def test_files_kept_from_before_are_read_or_refused(tmp_path: Path, name: str) -> None:
    """The corpus that --keep and --collect have written: what was wrong once, and each way in which reading ended."""
    form = FORMATS[name]
    files = form.files()
    for file, data in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(data)
    cases = sorted((CORPUS / name).iterdir())
    for case in cases:
        file = unquote(case.name.partition("-")[2])
        shutil.copy(case, tmp_path / file)
        told = ""
        try:
            form.read(tmp_path, file)
        except SparseNNError as error:
            told = str(error)
        assert told.isprintable()
        (tmp_path / file).write_bytes(files[file])
    assert cases


def test_all_formats_for_a_while() -> None:
    command = [sys.executable, ROOT / "tools" / "fuzz", "--seconds", "12"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert found.returncode == 0, found.stdout
