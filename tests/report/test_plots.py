"""The plot by layer: each file type, its content, and no half-written file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparsenn.engine import Result
from sparsenn.report import PLOT_SUFFIXES, draw_layers
from sparsenn.report.plots import layers_figure

MAGIC = {".png": b"\x89PNG\r\n", ".svg": b"<?xml", ".pdf": b"%PDF-"}


def test_every_suffix_is_known_here() -> None:
    assert set(PLOT_SUFFIXES) == set(MAGIC)


@pytest.mark.parametrize("suffix", [*PLOT_SUFFIXES, ".PNG"])
def test_file_type_follows_the_suffix(result: Result, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"layers{suffix}"
    draw_layers(result.statistics, path, "a title")
    assert path.read_bytes().startswith(MAGIC[suffix.lower()])
    assert list(tmp_path.iterdir()) == [path]


def test_curves_are_the_statistics(result: Result) -> None:
    rows, density, time = layers_figure(result.statistics, "a title").axes
    active, distinct = rows.get_lines()
    assert list(active.get_ydata()) == [layer.active_rows for layer in result.statistics]
    looked = [layer for layer in result.statistics if layer.distinct_rows is not None]
    assert list(distinct.get_xdata()) == [layer.layer for layer in looked]
    assert list(distinct.get_ydata()) == [layer.distinct_rows for layer in looked]
    assert list(density.get_lines()[0].get_ydata()) == [layer.density for layer in result.statistics]
    bars = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in time.patches}
    assert bars == pytest.approx({layer.layer: 1e3 * layer.seconds for layer in result.statistics})


def test_one_layer_without_distinct_rows_or_activity(result: Result, tmp_path: Path) -> None:
    dead = replace(result.statistics[0], active_rows=0, distinct_rows=None, density=0.0, seconds=0.0)
    draw_layers([dead], tmp_path / "one.svg")
    assert "distinct" not in (tmp_path / "one.svg").read_text()
