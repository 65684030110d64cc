"""Tables that need a GPU: a row for each cell, and none where outputs differ."""

from __future__ import annotations

import pytest
import table_gpu
from recordings import Recorder, small_model

pytestmark = pytest.mark.gpu


def test_few_rows_stand_beside_pytorch(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="is compared")
    monkeypatch.setattr(table_gpu, "CHAINS", ((64, 0.25),))
    arguments = ("few-rows", "--seconds", "0.01", "--rows", "1", "9")
    found = recorder(*arguments)
    assert not found.failures
    assert {(row["precision"], row["rows"]) for row in found.rows} == {
        (kind, n) for kind in ("float32", "float16") for n in (1, 9)
    }
    for row in found.rows:
        assert row["times"] == pytest.approx(row["torch_milliseconds"] / row["bound_milliseconds"])
    monkeypatch.setattr(table_gpu, "FEW_TOLERANCE", {"float32": -1.0, "float16": -1.0})
    failures = recorder(*arguments).failures
    assert failures
    assert all("outputs differ" in failure for failure in failures)


def test_convolutions_stand_beside_pytorch(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="is compared")
    import golden_networks

    monkeypatch.setattr(golden_networks, "drawn", small_model)
    monkeypatch.setattr(table_gpu, "PIXELS", 16)
    found = recorder(*("gpu-convolutions", "--only", "resnet18-0.1", "--seconds", "0.01", "--images", "2"))
    assert not found.failures
    assert [row["precision"] for row in found.rows] == ["float32", "tf32", "float16"]
    assert all(
        row["times"] == pytest.approx(row["torch_milliseconds"] / row["bound_milliseconds"]) for row in found.rows
    )
