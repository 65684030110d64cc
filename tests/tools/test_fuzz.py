"""tools/fuzz: what it finds in readers wrong on purpose, and in the package's own; and files kept from before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from fuzzed_formats import FORMATS
from mutations import shrunk

from sparsenn.errors import SparseNNError

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "fuzzed"

PLANTED = """\
import os, time
from sparsenn.errors import SparseNNError

VALID = b"12 345 6789\\n" * 3

class Planted:
    def files(self):
        return {{"a.csv": VALID}}

    def mutable(self, name):
        return True

    def read(self, folder, name):
        data = (folder / name).read_bytes()
        if data != VALID:
            {fault}
            raise SparseNNError("a.csv: damaged")

FORMATS = {{"planted": Planted()}}
"""


def fuzz(*options: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "fuzz"), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=os.environ | variables)


def planted(folder: Path, fault: str, *options: object) -> subprocess.CompletedProcess[str]:
    (folder / "planted.py").write_text(PLANTED.format(fault=fault))
    found = fuzz("--formats", "planted", "--cases", 30, *options, PYTHONPATH=str(folder))
    assert "Traceback" not in found.stderr, found.stderr
    return found


def test_sound_readers_pass(tmp_path: Path) -> None:
    found = planted(tmp_path, "pass")
    assert found.returncode == 0
    assert "seed 0: 0 that should not end so; " in found.stdout
    assert found.stdout.splitlines()[0].split() == ["read", "refused"]


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        ("'no' + (b'\\0' in data)", "exception", "TypeError: can only concatenate str"),
        ("time.sleep(60 * (b'\\0' * 9 in data))", "hang", "not done after 0.5 seconds"),
        ("b'\\0' * 9 in data and os.abort()", "crash", "exit code -6"),
        ("b'\\0' in data and bytes(1 << 40)", "memory", "MemoryError"),
        ("if b'\\0' in data: raise SparseNNError('\\x1b[2J')", "unprintable", "SparseNNError"),
    ],
)
def test_faults_are_found_shrunk_and_kept(tmp_path: Path, fault: str, kind: str, told: str) -> None:
    found = planted(tmp_path, fault, "--keep", tmp_path / "kept", "--longest", 0.5)
    assert found.returncode == 1, found.stderr
    assert f"of seed 0: {kind}\n" in found.stdout
    assert told in found.stdout
    (kept,) = (tmp_path / "kept" / "planted").iterdir()
    assert kept.name.endswith("-a.csv")
    assert kind == "hang" or len(kept.read_bytes()) < 20
    case = found.stdout.partition("case ")[2].partition(" ")[0]
    again = planted(tmp_path, fault, "--case", case, "--longest", 0.5)
    assert again.returncode == 1
    assert again.stdout.startswith(f"case {case} of seed 0: {kind}\n")


@pytest.mark.parametrize(
    ("options", "told"), [(("--format", "none"), "unknown format 'none'"), (("--format", "planted"), "cannot be read")]
)
def test_what_cannot_run_is_said(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    (tmp_path / "planted.py").write_text(PLANTED.format(fault="pass").replace("!= VALID", "!= b''"))
    found = fuzz("--formats", "planted", *options, PYTHONPATH=str(tmp_path))
    assert found.returncode == 2
    assert told in found.stderr


def test_shrinking_keeps_what_matters() -> None:
    assert shrunk(bytes(999) + b"here" + bytes(500), lambda data: b"here" in data) == b"here"


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
    found = fuzz("--seconds", 15)
    assert found.returncode == 0, found.stdout
