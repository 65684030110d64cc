"""Model files of every kind are told by their names, and read alike."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from sparsenn import Session
from sparsenn.errors import FileFormatError, UsageError
from sparsenn.formats import Column, TableEncoding
from sparsenn.io.files import KINDS, WRITTEN_SUFFIXES, ModelKind, is_model, kind_of, read_model, write_model
from sparsenn.layers import Identity, Linear
from sparsenn.model import Model
from sparsenn.network import Network

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
ROWS = np.eye(4, dtype=np.float32)


def write_safetensors(path: Path) -> None:
    transposed = np.ascontiguousarray(WEIGHTS.T)
    tensor = {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, transposed.nbytes]}
    header = json.dumps({"layer.weight": tensor}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + transposed.tobytes())


def written(path: Path) -> Path:
    """A model of one layer without bias or activation, in the kind of file that the name tells."""
    if path.suffix == ".npz":
        np.savez(path, weight=WEIGHTS.T, bias=np.zeros(3, np.float32))
    elif path.suffix == ".safetensors":
        write_safetensors(path)
    else:
        network = Network((Linear(WEIGHTS, None, Identity()),))
        write_model(path, Model(network, "mse", False, {"source": "a test"}))
    return path


@pytest.mark.parametrize("suffix", [*WRITTEN_SUFFIXES, ".npz", ".safetensors", ".NPZ"])
def test_every_name_is_read_as_what_it_tells(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path / f"model{suffix.lower()}")
    path = path.rename(tmp_path / f"model{suffix}")
    assert is_model(path)
    assert np.array_equal(Session(read_model(path).network, device="cpu")(ROWS), WEIGHTS)


def test_files_of_keras_are_models() -> None:
    (found, *_) = sorted((Path(__file__).parent / "importers/keras/models").glob("*.keras"))
    assert is_model(found)
    assert read_model(found).network.outputs > 0


def test_kinds_that_are_only_read_are_not_written(tmp_path: Path) -> None:
    model = Model(Network((Linear(WEIGHTS),)), "mse", False, {})
    read_only = [suffix for kind in KINDS if kind.writer is None for suffix in kind.suffixes]
    assert {".npz", ".safetensors", ".keras", ".pt", ".pt2", ".pth"} < set(read_only)
    for suffix in read_only:
        with pytest.raises(UsageError, match=r"can only be read; models are written as \.h5, \.hdf5, \.onnx"):
            write_model(tmp_path / f"model{suffix}", model)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_names_tell_kinds(kind: ModelKind) -> None:
    for suffix in kind.suffixes:
        assert kind_of(f"folder/network{suffix}") is kind
        assert kind_of(Path(f"NETWORK{suffix.upper()}")) is kind
    assert kind_of("network.tsv") is None
    assert kind_of(3) is None  # type: ignore[arg-type]
    assert kind_of("radixnet-1024x120") is None


def test_what_runs_code_when_it_is_read_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"anything")
    with pytest.raises(FileFormatError, match="safetensors"):
        read_model(path)


def test_hdf5_is_a_model_by_its_content(tmp_path: Path) -> None:
    model = Model(Network((Linear([[1.0]]),)), "mse", False)
    for name in ("model.h5", "model"):
        write_model(tmp_path / name, model)
        assert is_model(tmp_path / name)
        assert read_model(tmp_path / name).network.edges == 1
    (tmp_path / "other.h5").write_bytes(b"other")
    assert not is_model(tmp_path / "other.h5")
    assert is_model(tmp_path / "other.onnx")
    with pytest.raises(FileFormatError):
        read_model(tmp_path / "other.h5")


def test_what_onnx_would_lose_is_refused(tmp_path: Path) -> None:
    network = Network((Linear(WEIGHTS),))
    texts = [f"colour {number}" for number in range(network.inputs)]
    encoding = TableEncoding((Column("colour", tuple(texts)),), ("kind",), True)
    with pytest.raises(UsageError, match="texts in the column 'colour'"):
        write_model(tmp_path / "model.onnx", Model(network, "mse", False, encoding=encoding))
    assert not list(tmp_path.iterdir())
