"""The recorded trainings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import record_training
from idx_files import write_idx
from results_file import read_results


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(
        record_training, "results_path", lambda name, folder=None: tmp_path / (folder or "desk") / f"{name}.json"
    )
    monkeypatch.setattr(record_training, "single_epochs", lambda runs, notes: [])
    monkeypatch.setattr(record_training, "HIDDEN", (20, 20))
    monkeypatch.setitem(record_training.ABALONE, "hidden", (20, 20))
    rng = np.random.default_rng(6)
    for part in ("train", "test"):
        inputs = rng.random((200, 10)).astype(np.float32)
        lines = (f"{' '.join(map(str, row))}\n{row.mean()}" for row in inputs)
        (tmp_path / f"abalone.{part}").write_text("\n".join(["200 10 1", *lines, ""]))
    for part in ("train", "t10k"):
        labels = rng.integers(0, 10, 100).astype(np.uint8)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", labels)
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", np.repeat(25 * labels, 16).reshape(100, 4, 4))
    return tmp_path


def test_every_kernel_has_its_row(folder: Path) -> None:
    options = ["--abalone", str(folder), "--abalone-epochs", "3", "--mnist", str(folder), "--mnist-epochs", "2"]
    assert record_training.main([*options, "--machine", "lab"]) == 0
    result = read_results(folder / "lab" / "training.json")
    own = [row for row in result.rows if row["method"].startswith("sparsenn")]
    assert [row["method"] for row in own] == ["sparsenn, numba (cpu)", "sparsenn, numpy (cpu)", "sparsenn, numpy (cpu)"]
    for row, epochs in zip(own, (3, 3, 2), strict=True):
        assert len(row["losses"]) == len(row["seconds"]) == len(row["validation"]) == row["epochs"] == epochs
        assert row["losses"][-1] < row["losses"][0]
    assert own[0]["accuracy"] is None
    assert 0 <= own[2]["accuracy"] <= 1
    others = {row["method"] for row in result.rows} - {row["method"] for row in own}
    missing = sum("not there to compare with" in note for note in result.notes)
    assert len(others) + missing == 2  # scikit-learn and FANN: measured, or said to be missing


def test_nothing_to_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record_training.main([]) == 2
    assert "nothing to record" in capsys.readouterr().out
    assert not (folder / "desk").exists()
