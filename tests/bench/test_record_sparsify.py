"""The record of blocks of transformers: a row for each density and number of tokens; an error where outputs differ."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="is compared")
import record_sparsify
from results_file import read_results

BLOCKS = {"BERT-base": record_sparsify.Sizes(16, 32, 2), "decoder": record_sparsify.Sizes(16, 32, 2, gated=True)}


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENN_COMMIT", "a" * 40)
    monkeypatch.setattr(record_sparsify, "BLOCKS", BLOCKS)
    monkeypatch.setattr(record_sparsify, "results_path", lambda name, folder=None: tmp_path / f"{name}.json")


def test_blocks_stand_beside_pytorch(tmp_path: Path) -> None:
    assert record_sparsify.main(["--seconds", "0.001"]) == 0
    rows = read_results(tmp_path / "sparsify.json").rows
    assert {(row["block"], row["density"], row["tokens"]) for row in rows} == {
        (block, density, tokens) for block in BLOCKS for density in (0.2, 0.5) for tokens in (1, 16, 128)
    }
    assert [row["times"] for row in rows] == sorted(row["times"] for row in rows)


def test_outputs_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(record_sparsify, "TOLERANCE", -1.0)
    assert record_sparsify.main(["--seconds", "0.001"]) == 1
    assert "BERT-base-0.2-1: outputs differ" in capsys.readouterr().err
