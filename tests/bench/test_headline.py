"""The tables and the picture of the README: rows of result files, and nothing where one is missing."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import headline
import pytest
from results_file import Column, ResultError, ResultFile


def result(table: str, *rows: dict[str, object], gpu: str | None = None) -> ResultFile:
    machine = {"cpu": "Chip", "cores": 2, "memory_gib": 8, "gpu": gpu}
    columns = (Column(next(iter(rows[0])), "first"),)
    return ResultFile(table, "Title", machine, {}, "0" * 40, "2026-01-01", {}, columns, rows)


TABLES = {
    "models": [
        result("models", {"key": "lenet300-dns-10000", "milliseconds": 2.0, "onnxruntime": 9.0, "scipy": 8.0}),
    ],
    "cpu-rows": [result("cpu-rows", {"key": "4 × 4096, 205 an output-1", "milliseconds": 0.5, "onnxruntime": 10.0})],
    "cpu-convolutions": [
        result(
            "cpu-convolutions",
            {"key": "resnet50-0.1-1", "milliseconds": 4.0, "onnxruntime": 8.0, "openvino": 6.0},
            {"key": "resnet50-0.1-16", "milliseconds": 40.0, "onnxruntime": 80.0, "openvino": None},
            {"key": "mobilenet_v2-0.1-1", "milliseconds": 4.0, "onnxruntime": 3.0},
        )
    ],
    "few-rows": [
        result(
            "few-rows",
            {"key": "float32-4096-0.05-1", "torch_milliseconds": 0.08, "bound_milliseconds": 0.02},
            gpu="Card",
        )
    ],
    "gpu-convolutions": [
        result(
            "gpu-convolutions",
            {"key": "resnet50-0.1-1-float32", "torch_milliseconds": 2.0, "bound_milliseconds": 1.0},
            gpu="Card",
        )
    ],
    "network": [
        result(
            "network",
            {"method": "SciPy loop", "seconds": 12.0},
            {"method": "engine", "seconds": 0.05},
            {"method": "engine, nothing saved", "seconds": 6.0},
        )
    ],
    "session": [
        result(
            "session",
            {
                "key": "challenge-1024",
                "milliseconds": 4.0,
                "peer": "PyTorch, sparse times dense",
                "peer_milliseconds": 3.0,
            },
            gpu="Card",
        )
    ],
    "sparse-layers": [
        result(
            "sparse-layers",
            {
                "key": "unmerged-1024",
                "milliseconds": milliseconds,
                "peer": "PyTorch, sparse times dense",
                "peer_milliseconds": 3.0,
            },
            gpu=gpu,
        )
        for gpu, milliseconds in (("Older card", 9.0), ("Card", 6.0))
    ],
}


def test_rows_say_the_best_alternative_and_the_factor() -> None:
    found = [(row.group, *headline.texts(row)[1:]) for row in headline.compared(TABLES)]
    assert found == [
        ("practitioner", "SciPy", "8.00 ms", "2.00 ms", "4.0 ×"),
        ("practitioner", "ONNX Runtime", "10.0 ms", "0.500 ms", "20 ×"),
        ("practitioner", "OpenVINO", "6.00 ms", "4.00 ms", "1.5 ×"),
        ("practitioner", "ONNX Runtime", "80.0 ms", "40.0 ms", "2.0 ×"),
        ("practitioner", "ONNX Runtime", "3.00 ms", "4.00 ms", "0.8 ×"),
        ("practitioner", "PyTorch in a CUDA graph", "80.0 µs", "20.0 µs", "4.0 ×"),
        ("practitioner", "PyTorch in a CUDA graph", "2.00 ms", "1.00 ms", "2.0 ×"),
        ("researcher", "SciPy, layer by layer", "12.0 s", "50.0 ms", "240 ×"),
        ("researcher", "SciPy, layer by layer", "12.0 s", "6.00 s", "2.0 ×"),
        ("researcher", "PyTorch, sparse times dense", "3.00 ms", "4.00 ms", "0.8 ×"),
        ("researcher", "PyTorch, sparse times dense", "3.00 ms", "6.00 ms", "0.5 ×"),
    ]


def test_rates_count_all_edges_of_all_images() -> None:
    rates = [headline.rate_text(row) for row in headline.compared(TABLES) if row.edges]
    assert rates == ["4.72", "0.0393", "59.0", "39.3"]  # 60,000 x 120 x 1,024 x 32 in 50 ms, 6 s, 4 ms and 6 ms


@pytest.mark.parametrize("table", sorted(TABLES))
def test_a_missing_row_is_an_error(table: str) -> None:
    changed = [replace(found, rows=({**found.rows[0], "key": "other", "method": "other"},)) for found in TABLES[table]]
    with pytest.raises(ResultError, match=f"no result file of table {table}, with.* a GPU, has"):
        headline.compared({**TABLES, table: changed})


def test_the_picture_has_the_figures_as_text_and_bars_in_proportion() -> None:
    rows = headline.compared(TABLES)
    drawn = ElementTree.fromstring(headline.picture(rows))
    space = "{http://www.w3.org/2000/svg}"
    words = [each.text for each in drawn.iter(f"{space}text")]
    assert words[:3] == [rows[0].task, "SciPy 8.00 ms", "2.00 ms, 4.0 ×"]
    bars = {
        kind: [float(each.attrib["width"]) for each in drawn.iter(f"{space}rect") if each.attrib["class"] == kind]
        for kind in ("peer", "ours")
    }
    assert len(bars["peer"]) == len(bars["ours"]) == len(rows)
    for row, peer, ours in zip(rows, bars["peer"], bars["ours"], strict=True):
        assert ours == pytest.approx(max(1, peer / row.factor), abs=0.1)
