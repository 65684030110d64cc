"""The README's first table and picture: rows of result files, and nothing where one is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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
    "network": [result("network", {"method": "SciPy loop", "seconds": 12.0}, {"method": "engine", "seconds": 0.05})],
    "session": [
        result(
            "session",
            {"key": "challenge-1024", "milliseconds": 4.0, "peer": "PyTorch", "peer_milliseconds": 3.0},
            {
                "key": "lenet300-float32",
                "milliseconds": 1.0,
                "peer": "PyTorch, graph, ReLU in the product",
                "peer_milliseconds": 1.5,
            },
            gpu="Card",
        )
    ],
}


def test_rows_say_the_fastest_of_the_others_and_the_factor() -> None:
    found = [headline.texts(row)[1:] for row in headline.compared(TABLES)]
    assert found == [
        ("SciPy", "8 ms", "2 ms", "4.0 ×"),
        ("PyTorch in a CUDA graph", "1.5 ms", "1 ms", "1.5 ×"),
        ("SciPy, layer by layer", "12.0 s", "50 ms", "240 ×"),
        ("PyTorch", "3 ms", "4 ms", "0.8 ×"),
    ]


@pytest.mark.parametrize("table", sorted(TABLES))
def test_a_row_that_is_not_there_is_told(table: str) -> None:
    changed = [replace(found, rows=({**found.rows[0], "key": "other", "method": "other"},)) for found in TABLES[table]]
    with pytest.raises(ResultError, match=f"no result file of table {table}, with.* a GPU, has"):
        headline.compared({**TABLES, table: changed})


def test_the_picture_has_the_figures_as_text_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    rows = headline.compared(TABLES)
    for name in ("one.svg", "two.svg"):
        headline.draw(rows, tmp_path / name)
    text = (tmp_path / "one.svg").read_text()
    assert all(f"{fast}, {factor}" in text for _, _, _, fast, factor in map(headline.texts, rows))
    assert text == (tmp_path / "two.svg").read_text()
