"""Tables of networks on a CPU: rows for each network and number of rows; no row where outputs differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import table_cpu
from idx_files import write_idx
from recordings import Recorder, small_model

ALWAYS = ("--seconds", "0.01")


@pytest.fixture
def golden() -> Any:
    pytest.importorskip("torch", reason="exports the networks")
    pytest.importorskip("onnxruntime", reason="is compared")
    import golden_networks

    return golden_networks


@pytest.fixture
def small(golden: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small models in place of torchvision's, of small images."""
    monkeypatch.setattr(golden, "drawn", small_model)
    monkeypatch.setattr(table_cpu, "PIXELS", 16)


def test_golden_networks_stand_beside_onnx_runtime(golden: Any, recorder: Recorder) -> None:
    found = recorder("golden", *ALWAYS, "--only", "policy of ELU", "U-Net", "--rows", "1", "5")
    assert not found.failures
    assert {row["key"] for row in found.rows} == {f"{name}-{n}" for name in ("policy of ELU", "U-Net") for n in (1, 5)}
    assert [row["times"] for row in found.rows] == sorted(row["times"] for row in found.rows)
    assert all(row["times"] == pytest.approx(row["onnxruntime"] / row["milliseconds"]) for row in found.rows)
    assert all(row["layers"] + row["foreign"] > 0 for row in found.rows)


def test_outputs_that_differ_are_not_recorded(golden: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_cpu, "TOLERANCE", -1.0)
    found = recorder("golden", *ALWAYS, "--only", "policy of ELU-1")
    assert found.result is None
    assert "policy of ELU-1: outputs differ from onnxruntime" in found.failures[0]


def test_sparse_chains_stand_beside_the_floor(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="is compared")
    monkeypatch.setattr(table_cpu, "CHAINS", {"small": ((40, 30, 20), (4, 3), 16)})
    found = recorder("cpu-rows", *ALWAYS, "--rows", "1")
    assert [(row["network"], row["rows"]) for row in found.rows] == [("small", 1), ("small", 16)]
    assert all(0 < row["floor"] < row["milliseconds"] for row in found.rows)
    assert [layer.edges for layer in table_cpu.chain_problem("small").network] == [120, 60]


def test_shares_of_convolutions_weights(golden: Any, recorder: Recorder, small: None) -> None:
    found = recorder("cpu-convolutions", *ALWAYS, "--only", "resnet18", "--rows", "1", "2")
    assert [(row["left"], row["rows"]) for row in found.rows] == [
        (left, n) for left in (1.0, 0.1, 0.05) for n in (1, 2)
    ]
    assert all(0 < row["floor"] < row["milliseconds"] for row in found.rows)
    pruned = golden.torchvision_model("resnet18", 0.1, 16)
    assert int((pruned[0].weight != 0).sum()) <= 0.11 * pruned[0].weight.numel()
    assert bool((pruned[2].weight != 0).all())


def test_blocks_of_transformers_stand_beside_pytorch(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="is compared")
    import table_sparsify

    small = {"width": 16, "hidden": 32, "heads": 2}
    blocks = {"BERT-base": small | {"is_last": True}, "decoder": small | {"is_decoder": True}}
    monkeypatch.setattr(table_sparsify, "BLOCKS", blocks)
    arguments = ("sparsify", "--seconds", "0.001", "--tokens", "1", "16")
    found = recorder(*arguments)
    assert {(row["block"], row["density"], row["tokens"]) for row in found.rows} == {
        (block, density, tokens) for block in blocks for density in (0.2, 0.5) for tokens in (1, 16)
    }
    monkeypatch.setattr(table_sparsify, "TOLERANCE", dict.fromkeys(table_sparsify.TOLERANCE, -1.0))
    assert "BERT-base-0.2-1-call: outputs differ" in recorder(*arguments).failures[0]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Pruned networks and 20 digits, in the layout of the real ones."""
    rng = np.random.default_rng(0)
    (tmp_path / "networks").mkdir()
    (tmp_path / "mnist").mkdir()

    def weights(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * (rng.random(shape) < 0.1)).astype(np.float32)

    for name in ("lenet300-dns", "lenet300-lobs"):
        arrays = {f"weight{n}": weights(*shape) for n, shape in enumerate(((30, 784), (10, 30)), start=1)}
        np.savez(tmp_path / "networks" / f"{name}.npz", **arrays, bias1=np.ones(30), bias2=np.ones(10))
    shapes = {"conv1": (2, 1, 5, 5), "conv2": (3, 2, 5, 5), "ip1": (20, 48), "ip2": (10, 20)}
    arrays = {f"{name}_weight": weights(*shape) for name, shape in shapes.items()}
    biases = {f"{name}_bias": np.ones(shape[0], np.float32) for name, shape in shapes.items()}
    np.savez(tmp_path / "networks" / "lenet5-dns.npz", **arrays, **biases)
    write_idx(tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz", rng.integers(0, 256, (20, 28, 28), np.uint8))
    write_idx(tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz", rng.integers(0, 10, 20, np.uint8))
    return tmp_path


def test_pruned_networks_stand_beside_peers_and_lost_images_fail(
    data: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="is compared")
    arguments = ("models", "--data", str(data), *ALWAYS, "--rows", "1", "7")
    found = recorder(*arguments)
    assert found.result is None
    assert len(found.failures) == 6
    assert "not 9801" in found.failures[0]  # 20 images cannot be 9,801
    correct = dict(zip(table_cpu.CORRECT, (int(failure.split()[0]) for failure in found.failures[::2]), strict=True))
    monkeypatch.setattr(table_cpu, "CORRECT", correct)
    found = recorder(*arguments)
    assert [row["key"] for row in found.rows] == [f"{name}-{count}" for name in correct for count in (1, 7)]
    assert [row["right"] for row in found.rows] == [count for count in correct.values() for _ in (1, 7)]
    assert all(row["times"] == pytest.approx(row["onnxruntime"] / row["milliseconds"]) for row in found.rows)


def test_torchvision_is_dense_and_pruned(recorder: Recorder, small: None) -> None:
    found = recorder("torchvision", *ALWAYS, "--only", "alexnet", "--rows", "2")
    assert sorted(row["left"] for row in found.rows) == [0.1, 1.0]
    assert all(row["times"] == pytest.approx(row["onnxruntime"] / row["milliseconds"]) for row in found.rows)
