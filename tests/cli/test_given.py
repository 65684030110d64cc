"""Options that would do nothing are refused, in one line that names them as they were written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Run = Callable[..., Result]

NO_TABLE = "--targets goes with CSV, TSV or Parquet data, which this is not; leave it out"
LABELS = "--classes does nothing here, as IDX labels are classes in any case; leave it out"
NO_VALIDATION = "goes with --validation, which is not given; leave it out"
NO_CHECKPOINT = "goes with --checkpoint, which is not given; leave it out"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train a.data --output m.h5 --targets 3", NO_TABLE),
        ("train a-images-idx3-ubyte.gz --output m.h5 --targets 1", NO_TABLE),
        ("train a.h5 --output m.h5 --targets 1", NO_TABLE),
        ("train a.train --validation a.test --output m.h5 --targets 2", NO_TABLE),
        ("train a.idx --output m.h5 --classes", LABELS),
        ("train a.csv --output m.h5 --validate-every 2", f"--validate-every {NO_VALIDATION}"),
        ("train a.csv --output m.h5 --validation-labels x", f"--validation-labels {NO_VALIDATION}"),
        ("train a.csv --output m.h5 --checkpoint-seconds 2", f"--checkpoint-seconds {NO_CHECKPOINT}"),
        ("train a.csv --output m.h5 --resume", f"--resume {NO_CHECKPOINT}"),
        ("infer m.h5 --inputs a.test --targets 3", NO_TABLE),
        ("infer m.h5 --inputs t10k-images-idx3-ubyte --targets 3", NO_TABLE),
        ("infer m.h5 --inputs t10k-images-idx3-ubyte.gz --classes", LABELS),
        ("infer m.h5 --inputs a.csv --no-verify", "--no-verify goes with a dataset, not with a model; leave it out"),
        ("infer m.h5 --inputs a.csv --verify", "--verify goes with a dataset, not with a model; leave it out"),
    ],
)
def test_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*line.split())
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"error: {message}\n")


@pytest.mark.parametrize(
    "line",
    [
        "train t.csv --targets 2 --validation t.csv --validate-every 2 --checkpoint s.h5 --checkpoint-seconds 1",
        "train t.csv --validation t.data --targets 1 --output m.h5",
        "train t.data --validation t.csv --targets 1 --output m.h5",
    ],
)
def test_taken_where_they_do_something(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("1,2,3\n4,5,6\n")
    Path("t.data").write_text("1 2 1\n1 2\n3\n")
    done = run(*line.split(), "--epochs", 1, "--device", "cpu", "--output", "m.h5")
    assert (done.exit_code, done.stderr) == (0, "")
