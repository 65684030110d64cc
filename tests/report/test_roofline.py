"""Rooflines as tables, pictures and JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from screens import cells, shown

from sparsenn.report import to_json
from sparsenn.report.roofline import draw_roofline, roofline_record, roofline_table, roofs_record, roofs_table
from sparsenn.studies.measure import Identity, MeasuredRoofs, Roofs
from sparsenn.studies.roofline import Prediction, RooflineResult
from sparsenn.studies.run import LadderResult, RungResult

ROOFS = Roofs(4e12, 6e12, "L2", 50 << 20, {"float32": 3e13, "tf32": 1.5e14, "float16": 3e14}, 3e13, 132)
MEASURED = MeasuredRoofs(ROOFS, Identity("Test GPU", "driver for CUDA 13.0"), measured=False)


@pytest.fixture
def result() -> RooflineResult:
    """One rung that was timed, and one that is wrong."""
    rungs = (
        RungResult("naive", "plain", True, 1e-6, (0.004,), 0.004, 0.0001, 0.003, 25, 0),
        RungResult("broken", "wrong", False, float("inf"), (), None, None, None, None, None, "float16"),
    )
    ladder = LadderResult("conv2d", "cuda:0 (Test)", "layer", 1, 16, 20, ROOFS, 1e-5, 400, 30_000_000_000, rungs)
    predictions = (
        Prediction("naive", 12_000_000_000, "L2", 60_000_000_000, 0.002, "L2"),
        Prediction("compulsory", 400_000_000, "memory", 60_000_000_000, 0.0001, "memory"),
    )
    return RooflineResult(ladder, ROOFS, predictions)


def test_table_has_prediction_and_measurement_side_by_side(result: RooflineResult) -> None:
    text = shown(roofline_table(result))
    assert cells(text) == [
        ["naive", "naive", "12,000,000,000", "60,000,000,000", "5.00", "2.00", "4.00", "2.00", "15,000", "L2"],
        ["broken", "compulsory", "400,000,000", "60,000,000,000", "150", "0.100", "wrong", "–", "–", "memory"],
    ]
    caption = " ".join(text.split())
    assert "conv2d on cuda:0 (Test): 16 rows" in caption
    assert "Compulsory: there is no model of what the kernel moves" in caption
    assert "from L2 if that holds them" in caption


def test_ceilings_are_shown_in_their_units() -> None:
    lines = [line.split() for line in shown(roofs_table(MEASURED)).splitlines()]
    assert [" ".join(line) for line in lines] == [
        "device Test GPU (driver for CUDA 13.0)",
        "memory bandwidth 4,000 GB/s",
        "L2 bandwidth 6,000 GB/s",
        "shared memory bandwidth 30,000 GB/s",
        "L2 cache 52,428,800 bytes",
        "float32 rate 60 TFLOP/s",
        "tf32 rate 300 TFLOP/s",
        "float16 rate 600 TFLOP/s",
        "ceilings measured before, on this device",
    ]


def test_record_is_plain_json(result: RooflineResult) -> None:
    record = json.loads(to_json(roofline_record(result) | {"ceilings": roofs_record(MEASURED)}))
    first, second = record["rungs"]
    assert (first["predicted_seconds"], first["measured_seconds"], first["intensity"]) == (0.002, 0.004, 5.0)
    assert first["operations_per_second"] == 1.5e13
    assert (second["measured_seconds"], second["operations_per_second"], second["correct"]) == (None, None, False)
    assert (second["precision"], second["bound"]) == ("float16", "memory")
    assert record["ceilings"]["multiply_adds"] == {"float32": 3e13, "tf32": 1.5e14, "float16": 3e14}
    assert record["ceilings"]["device"] == "Test GPU"
    assert "seconds" not in first


def test_picture_has_every_roof_and_every_point(result: RooflineResult, tmp_path: Path) -> None:
    path = tmp_path / "roofline.svg"
    other = replace(result, ladder=replace(result.ladder, operation="gemm"))
    still = replace(result, ladder=replace(result.ladder, operation="sort", multiply_adds=0))
    draw_roofline([result, other, still], ROOFS, "Test GPU", path)
    text = path.read_text()
    for told in ("memory, 4,000 GB/s", "L2, 6,000 GB/s", "shared memory, 30,000 GB/s", "float32, 60 TFLOP/s",
                 "tf32, 300 TFLOP/s", "float16, 600 TFLOP/s", "conv2d", "gemm", "naive", "Test GPU"):  # fmt: skip
        assert f"<!-- {told} -->" in text
    assert "<!-- sort -->" not in text
    assert "<!-- broken -->" not in text
