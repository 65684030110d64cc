"""`sparsenn challenge verify`, and its agreement with the stand-alone script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import Run

from sparsenn.formats import from_dense
from sparsenn.io import Dataset, write_categories, write_result

SCRIPT = Path(__file__).parents[2] / "tools" / "verify_categories.py"


@pytest.fixture
def found(dataset: Dataset, tmp_path: Path) -> dict[str, Path]:
    """The true categories as a result in both forms."""
    text, hdf5 = tmp_path / "found.tsv", tmp_path / "found.h5"
    write_categories(text, dataset.truth)
    write_result(hdf5, from_dense(np.zeros((200, 1024))), dataset.truth, {})
    return {"tsv": text, "h5": hdf5}


@pytest.mark.parametrize("form", ["tsv", "h5"])
@pytest.mark.parametrize("against", ["tsv", "h5", "dataset"])
def test_equal_categories_pass(run: Run, problem: Path, found: dict[str, Path], form: str, against: str) -> None:
    done = run("challenge", "verify", found[form], problem if against == "dataset" else found[against])
    assert done.stdout.startswith("PASSED")


@pytest.mark.parametrize("change", ["missing", "unexpected", "other", "none"])
def test_any_difference_fails(run: Run, problem: Path, dataset: Dataset, tmp_path: Path, change: str) -> None:
    extra = np.setdiff1d(np.arange(200), dataset.truth)[:1]
    wrong = {
        "missing": dataset.truth[1:],
        "unexpected": np.append(dataset.truth, extra),
        "other": np.append(dataset.truth[1:], extra),
        "none": dataset.truth[:0],
    }[change]
    write_categories(tmp_path / "wrong.tsv", wrong)
    done = run("challenge", "verify", tmp_path / "wrong.tsv", problem, code=1)
    assert not done.stderr
    assert done.stdout.startswith("FAILED")
    assert (f"({dataset.truth[0] + 1}" in done.stdout) == (change != "unexpected")
    assert (f"1 ({extra[0] + 1}) unexpected" in done.stdout) == (change in ("unexpected", "other"))


@pytest.mark.parametrize(
    "content",
    [
        b"2\n3\n",
        b"3\n2\n",
        b"",
        b"\xef\xbb\xbf2\r\n3\r\n",
        b"4\n",
        b"2\n3",
        b"2\n\n3\n",
        b"2\n3\n\n",
        b"\n",
        b"2\n2\n",
        b"0\n",
        b"-1\n",
        b"2147483647\n",
        b"2147483648\n",
        b"2.0\n",
        b"2\t1\n",
        b"x\n",
        b" 2\n3 \n",
        b"+2\n3\n",
        b"002\n3\n",
        b"2" * 3000 + b"\n",
    ],
)
def test_script_and_verb_agree_on_every_file(run: Run, tmp_path: Path, content: bytes) -> None:
    result, truth = tmp_path / "result.tsv", tmp_path / "truth.tsv"
    result.write_bytes(content)
    truth.write_bytes(b"2\n3\n")
    script = subprocess.run([sys.executable, "-S", SCRIPT, result, truth], capture_output=True, text=True, timeout=240)
    run("challenge", "verify", result, truth, code=script.returncode)
