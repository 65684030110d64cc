"""Which files are models, by their names, and what reads and writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsenn import Linear, Model, Network, read_model, write_model
from sparsenn.errors import FileFormatError, UsageError
from sparsenn.io import is_model, model_files
from sparsenn.io.model_files import KINDS, ModelKind, kind_of


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_names_tell_kinds(kind: ModelKind) -> None:
    for suffix in kind.suffixes:
        assert kind_of(f"folder/network{suffix}") is kind
        assert kind_of(Path(f"NETWORK{suffix.upper()}")) is kind
    assert kind_of("network.tsv") is None
    assert kind_of("radixnet-1024x120") is None


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


def test_a_kind_that_is_only_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = ModelKind("Other", (".other",), "sparsenn.io.model:read_model")
    monkeypatch.setattr(model_files, "KINDS", (*KINDS, other))
    with pytest.raises(UsageError, match=r"model.other: Other is only read here; models are written as \.h5"):
        write_model(tmp_path / "model.other", Model(Network((Linear([[1.0]]),)), "mse", False))
    assert not [*tmp_path.iterdir()]
