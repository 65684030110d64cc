"""The table of trainings: a row for each trainer of a device, and for libraries that are installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import table_training
from idx_files import write_idx
from recordings import Recorder


def test_every_trainer_has_its_row(tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_training, "HIDDEN", (20, 20))
    monkeypatch.setitem(table_training.ABALONE, "hidden", (20, 20))
    for name in ("abalone", "mnist"):
        (tmp_path / name).mkdir()
    rng = np.random.default_rng(6)
    for name in ("train", "test"):
        inputs = rng.random((200, 10)).astype(np.float32)
        lines = (f"{' '.join(map(str, row))}\n{row.mean()}" for row in inputs)
        (tmp_path / "abalone" / f"abalone.{name}").write_text("\n".join(["200 10 1", *lines, ""]))
    for name in ("train", "t10k"):
        labels = rng.integers(0, 10, 100).astype(np.uint8)
        write_idx(tmp_path / "mnist" / f"{name}-labels-idx1-ubyte.gz", labels)
        write_idx(tmp_path / "mnist" / f"{name}-images-idx3-ubyte.gz", np.repeat(25 * labels, 16).reshape(100, 4, 4))
    found = recorder("training", "--device", "cpu", "--data", str(tmp_path), "--epochs", "20")
    assert not found.failures
    own = [row["method"] for row in found.rows if row["method"].startswith("sparsenn")]
    assert own[:2] == ["sparsenn, numba (cpu)", "sparsenn, numpy (cpu)"]
    for row in found.rows:
        is_mnist = "MNIST" in row["problem"]
        assert len(row["losses"]) == len(row["seconds"]) == row["epochs"] == (2 if is_mnist else 20)
        assert row["losses"][-1] < row["losses"][0]
        assert (row["accuracy"] is None) != is_mnist
    others = sum(find_spec(name) is not None for name in ("sklearn", "torch"))
    assert len(found.rows) == len(own) + others
    assert sum("left out" in note for note in found.result.notes) == 2 - others  # type: ignore[union-attr]
