from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import record_models
from idx_files import write_idx
from results_file import read_results

NETWORKS = ("lenet300-dns", "lenet300-lobs", "lenet5-dns")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "networks").mkdir()
    (tmp_path / "mnist").mkdir()

    def weights(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * (rng.random(shape) < 0.1)).astype(np.float32)

    for name in NETWORKS[:2]:
        arrays = {f"weight{n}": weights(*shape) for n, shape in enumerate(((30, 784), (10, 30)), start=1)}
        np.savez(tmp_path / "networks" / f"{name}.npz", **arrays, bias1=np.ones(30), bias2=np.ones(10))
    shapes = {"conv1": (2, 1, 5, 5), "conv2": (3, 2, 5, 5), "ip1": (20, 48), "ip2": (10, 20)}
    arrays = {f"{part}_weight": weights(*shape) for part, shape in shapes.items()}
    biases = {f"{part}_bias": np.ones(shape[0], np.float32) for part, shape in shapes.items()}
    np.savez(tmp_path / "networks" / "lenet5-dns.npz", **arrays, **biases)
    write_idx(tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz", rng.integers(0, 256, (20, 28, 28), np.uint8))
    write_idx(tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz", rng.integers(0, 10, 20, np.uint8))
    return tmp_path


def test_networks_stand_beside_peers_and_lost_images_fail(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_models, "ROWS", (1, 7))
    monkeypatch.setattr(
        record_models, "results_path", lambda name, folder=None: data / (folder or "this") / f"{name}.json"
    )
    assert record_models.main([str(data), "--seconds", "0.01", "--machine", "lab"]) == 1
    assert "lenet5-dns-7" in capsys.readouterr().err  # 20 images cannot be 9,909
    rows = read_results(data / "lab" / "models.json").rows
    assert [row["key"] for row in rows] == [f"{name}-{count}" for name in NETWORKS for count in (1, 7)]
    for row in rows:
        assert 0 < row["milliseconds"] <= row["p99"]
        assert (row["scipy"] is None) == row["key"].startswith("lenet5")
    right = {name: next(row["right"] for row in rows if row["key"].startswith(name)) for name in NETWORKS}
    monkeypatch.setattr(record_models, "RIGHT", right)
    assert record_models.main([str(data), "--seconds", "0.01", "--machine", "lab"]) == 0
